//! Takes messages and descriptors, gives them to the other end of a Unix socket, and what came from there.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use feedmill_arena::handover;
use feedmill_protocol::local::{Assembler, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Bytes read at once; messages have a few hundred.
const READ_BYTES: usize = 16 << 10;

/// Descriptors that came and that no message has named; an agent sends each with its message.
const MOST_UNCLAIMED: usize = 16;

/// Messages that wait to be sent while more are read: far beyond what a reader that reads lets stand.
const MOST_UNSENT: usize = 4 * 1024;

/// One end of the socket between an agent and a reader; both use it.
pub struct LocalWire {
    stream: UnixStream,
    /// What is to be sent, and the descriptor that goes with its first byte.
    out: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    /// Bytes of the first of them that are sent.
    sent: usize,
    assembler: Assembler,
    takes_descriptors: bool,
    descriptors: VecDeque<OwnedFd>,
    buffer: Vec<u8>,
}

impl LocalWire {
    /// Over a connected socket, for messages of at most `limit` bytes. Descriptors that come are closed by the
    /// system unless they are taken.
    #[must_use]
    pub fn new(stream: UnixStream, limit: usize, takes_descriptors: bool) -> Self {
        Self {
            stream,
            out: VecDeque::new(),
            sent: 0,
            assembler: Assembler::new(limit),
            takes_descriptors,
            descriptors: VecDeque::new(),
            buffer: vec![0; READ_BYTES],
        }
    }

    /// Queues a message; [`turn`](Self::turn) sends it.
    pub fn put(&mut self, message: &impl Serialize, descriptor: Option<OwnedFd>) {
        self.out.push_back((encode(message), descriptor));
    }

    /// Whether everything is sent.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.out.is_empty()
    }

    /// The next message that has come whole. Take all of them after each turn.
    ///
    /// # Errors
    /// What came is no message.
    pub fn message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        self.assembler.message().map_err(|error| error.to_string())
    }

    /// The next descriptor that has come.
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// Sends and receives what can be now; waits until something can. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The other end closed the connection, or it is broken.
    pub async fn turn(&mut self) -> Result<(), String> {
        let interest = match self.out.len() {
            0 => Interest::READABLE,
            unsent if unsent < MOST_UNSENT => Interest::READABLE | Interest::WRITABLE,
            // Who does not read is not read either: its questions would be answered into memory without bound.
            _ => Interest::WRITABLE,
        };
        let ready = self.stream.ready(interest).await.map_err(|error| error.to_string())?;
        if ready.is_readable() {
            self.receive()?;
        }
        if ready.is_writable() {
            self.send()?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), String> {
        let Self { stream, buffer, descriptors, .. } = self;
        let received = match self.takes_descriptors {
            true => {
                stream.try_io(Interest::READABLE, || handover::receive(stream.as_fd(), buffer, descriptors))
            }
            false => stream.try_read(buffer),
        };
        match received {
            Ok(0) => return Err("the other end closed the connection".into()),
            Ok(received) => self.assembler.push(self.buffer.get(..received).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.to_string()),
        }
        match self.descriptors.len() > MOST_UNCLAIMED {
            true => Err("descriptors come that no message names".into()),
            false => Ok(()),
        }
    }

    fn send(&mut self) -> Result<(), String> {
        while let Some((bytes, descriptor)) = self.out.front_mut() {
            let rest = bytes.get(self.sent..).unwrap_or_default();
            let written = self.stream.try_io(Interest::WRITABLE, || {
                handover::send(self.stream.as_fd(), rest, descriptor.as_ref().map(AsFd::as_fd))
            });
            match written {
                Ok(written) => {
                    *descriptor = None;
                    self.sent += written;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            }
            if self.sent >= bytes.len() {
                self.out.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for LocalWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalWire").field("unsent", &self.out.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_does_not_read_what_it_asked_for_is_not_asked_further() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut wire = LocalWire::new(here, 1 << 20, false);
        let mut other = LocalWire::new(there, 1 << 20, false);
        let long = "x".repeat(1000);
        for _ in 0..2 * MOST_UNSENT {
            wire.put(&long, None);
        }
        other.put(&"a question", None);
        while !other.is_sent() {
            other.send().unwrap();
        }
        let reads = tokio::spawn(async move {
            let mut answers = 0;
            while answers < 2 * MOST_UNSENT {
                other.turn().await.unwrap();
                while other.message::<String>().unwrap().is_some() {
                    answers += 1;
                }
            }
        });
        let question = loop {
            wire.turn().await.unwrap();
            if let Some(question) = wire.message::<String>().unwrap() {
                break question;
            }
        };
        assert_eq!(question, "a question");
        assert!(wire.out.len() < MOST_UNSENT, "{} unsent", wire.out.len());
        while !wire.is_sent() {
            wire.turn().await.unwrap();
        }
        reads.await.unwrap();
    }
}
