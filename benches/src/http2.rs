//! Takes an address, gives answers over HTTP/2 with the settings that a client should have: long frames, a
//! stream's window that stays in the cache, a connection's window above all streams together.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

const FRAME_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;

/// The stream window of a usual client.
pub const STREAM_WINDOW: u32 = 4 << 20;

/// A connection; clones ask on it at the same time.
#[derive(Clone)]
pub struct Connection(SendRequest<Empty<Bytes>>);

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there.
    pub async fn open(address: SocketAddr, stream_window: u32) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .max_frame_size(FRAME_BYTES)
            .initial_stream_window_size(stream_window)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(socket))
            .await?;
        tokio::spawn(async move {
            // Its end shows in the requests.
            drop(connection.await);
        });
        Ok(Self(sender))
    }

    /// Asks, and copies the answer's body into `into` from its beginning, waiting after each frame.
    /// Gives the number of bytes, which may not exceed those of `into`.
    ///
    /// # Errors
    /// The connection breaks, another status than 200, a longer body.
    pub async fn get(&mut self, path: &str, into: &mut [u8], pause: Duration) -> anyhow::Result<usize> {
        let request = Request::get(format!("http://bench{path}")).body(Empty::new())?;
        self.0.ready().await?;
        let answer = self.0.send_request(request).await?;
        let status = answer.status();
        let mut body = answer.into_body();
        let mut received = 0;
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                let Some(room) = into.get_mut(received..received + data.len()) else {
                    bail!("{path} answers with more than {} bytes", into.len());
                };
                room.copy_from_slice(&data);
                received += data.len();
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        if status != 200 {
            bail!("{path} answers {status}: {}", String::from_utf8_lossy(&into[..received]));
        }
        Ok(received)
    }

    /// Asks, and gives the whole body.
    ///
    /// # Errors
    /// The connection breaks, another status than 200.
    pub async fn get_all(&mut self, path: &str) -> anyhow::Result<Vec<u8>> {
        let request = Request::get(format!("http://bench{path}")).body(Empty::new())?;
        self.0.ready().await?;
        let answer = self.0.send_request(request).await?;
        let status = answer.status();
        let length = answer.headers().get(hyper::header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0);
        let mut body = answer.into_body();
        let mut whole = Vec::with_capacity(length);
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                whole.extend_from_slice(&data);
            }
        }
        if status != 200 {
            bail!("{path} answers {status}: {}", String::from_utf8_lossy(&whole));
        }
        Ok(whole)
    }
}
