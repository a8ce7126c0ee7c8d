//! Takes an address, gives answers over HTTP/1.1: readiness, metrics, one batch.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::Context as _;

/// A kept connection.
pub struct Connection(BufReader<TcpStream>);

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        Ok(Self(BufReader::new(socket)))
    }

    /// Asks and waits for the whole answer, which must say how long it is.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn get(&mut self, path: &str) -> anyhow::Result<Answer> {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n")?;
        let (mut status, mut length) = (None, None);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            match line.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = Some(value.trim().parse()?);
                }
                None => status = line.split(' ').nth(1).and_then(|status| status.parse().ok()),
                Some(_) => {}
            }
        }
        let mut body = vec![0; length.context("an answer without a length")?];
        self.0.read_exact(&mut body)?;
        Ok(Answer { status: status.context("an answer without a status")?, body })
    }
}
