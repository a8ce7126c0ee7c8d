//! Takes a folder, gives an S3 server over it, inside this process.
//!
//! For trying the product without an S3 account, and for tests that want a real server with real signatures. The folders right below
//! the given one are the buckets, files below them the objects:
//!
//! ```text
//!   folder/pictures/a/b.jpg   ◄──►   s3://pictures/a/b.jpg
//! ```
//!
//! Limits, all of the file system behind it: `a/b` and `a/b/c` cannot both be objects, `//` and `/./` in keys are folded, and
//! `If-Match` is ignored. Objects that were put through the server keep their checksum; for files that were placed in the folder by
//! hand it is computed at every request, so large ones are slow. Not for production.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

/// Connections served at once; further ones wait in the listen queue.
const MAX_CONNECTIONS: usize = 1024;

/// A connection that sends no request for this long is closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);

/// The one pair of keys the server knows.
#[derive(Clone)]
pub struct Keys {
    /// Access key id.
    pub access_key_id: String,
    /// Secret access key.
    pub secret_access_key: String,
}

impl std::fmt::Debug for Keys {
    /// Never prints the secret.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Keys").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// A running server; stops when dropped.
#[derive(Debug)]
pub struct EmbeddedS3 {
    address: SocketAddr,
    folder: PathBuf,
    accepting: JoinHandle<()>,
}

/// Why the server cannot start or make a bucket.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedS3Error {
    /// The folder does not exist or cannot be used.
    #[error("cannot serve the folder {} as S3: {reason}", folder.display())]
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// The file system's words.
        reason: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address} for S3")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not a bucket name: lower case letters, digits, `-` and `.`, 3 to 63 of them, a letter or digit first.
    #[error("'{name}' is not a bucket name")]
    BucketName {
        /// What was given.
        name: String,
    },
    /// The bucket's folder cannot be made.
    #[error("cannot make the bucket '{name}'")]
    Bucket {
        /// Which bucket.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl EmbeddedS3 {
    /// Serves `folder` on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// A folder that does not exist, no free port.
    pub async fn start(folder: &Path, keys: &Keys) -> Result<Self, EmbeddedS3Error> {
        Self::start_on(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), folder, keys).await
    }

    /// Serves `folder` on `address`.
    ///
    /// # Errors
    /// A folder that does not exist, an address that is taken.
    pub async fn start_on(address: SocketAddr, folder: &Path, keys: &Keys) -> Result<Self, EmbeddedS3Error> {
        let files = FileSystem::new(folder).map_err(|error| EmbeddedS3Error::Folder {
            folder: folder.to_owned(),
            reason: format!("{error:?}"),
        })?;
        let mut builder = S3ServiceBuilder::new(files);
        builder
            .set_auth(SimpleAuth::from_single(keys.access_key_id.as_str(), keys.secret_access_key.as_str()));
        let service = builder.build();
        let listen = |source| EmbeddedS3Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let accepting = tokio::spawn(accept(listener, service));
        Ok(Self { address, folder: folder.to_owned(), accepting })
    }

    /// Makes an empty bucket, if it is not there.
    ///
    /// # Errors
    /// A name that no bucket may have; a folder that cannot be written to.
    pub fn create_bucket(&self, name: &str) -> Result<(), EmbeddedS3Error> {
        let plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
        let first_is_dot = name.starts_with(['.', '-']);
        if !(3..=63).contains(&name.len()) || !name.bytes().all(plain) || first_is_dot {
            return Err(EmbeddedS3Error::BucketName { name: name.to_owned() });
        }
        std::fs::create_dir_all(self.folder.join(name))
            .map_err(|source| EmbeddedS3Error::Bucket { name: name.to_owned(), source })
    }

    /// Address to give to an S3 client, with path style: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Folder whose subfolders are the buckets.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for EmbeddedS3 {
    fn drop(&mut self) {
        // Ends the accepting task and, with its JoinSet, every connection.
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, service: S3Service) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let service = service.clone();
                connections.spawn(async move {
                    serve(stream, service).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, mostly: give connections time to end instead of turning in circles.
                tracing::warn!(%error, "cannot accept an S3 connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, service: S3Service) {
    // Small answers must not wait for more; failing to say so changes only speed.
    let _ = stream.set_nodelay(true);
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    server.http2().timer(TokioTimer::new()).keep_alive_interval(HEADER_TIMEOUT);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "S3 connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn listens_on_a_free_port_and_stops_when_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys { access_key_id: "id".into(), secret_access_key: "secret".into() };
        let server = EmbeddedS3::start(folder.path(), &keys).await.unwrap();
        for bad in ["", "ab", "../x", ".abc", "ABC", "a/b", &"x".repeat(64)] {
            assert!(matches!(server.create_bucket(bad), Err(EmbeddedS3Error::BucketName { .. })), "{bad}");
        }
        server.create_bucket("pictures").unwrap();
        server.create_bucket("pictures").unwrap();
        assert!(folder.path().join("pictures").is_dir());
        let mut client = TcpStream::connect(server.address()).await.unwrap();
        client.write_all(b"GET /pictures/x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 403"), "an unsigned request must be refused: {answer}");
        let idle = TcpStream::connect(server.address()).await;
        drop(server);
        // The dropped server closes what is open; reading ends, one way or the other.
        let _ = idle.unwrap().read(&mut [0; 16]).await;
    }

    #[tokio::test]
    async fn a_folder_that_does_not_exist_is_refused_by_name() {
        let keys = Keys { access_key_id: "id".into(), secret_access_key: "secret".into() };
        let error = EmbeddedS3::start(Path::new("/nonexistent/folder"), &keys).await.unwrap_err();
        assert!(error.to_string().contains("/nonexistent/folder"));
    }
}
