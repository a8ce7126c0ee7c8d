//! Takes the files of a server that is asked over TLS, gives whom to trust and what to show.
//!
//! Files are looked at anew for each query: Kubernetes changes what it mounts, and a token of a service account lives an hour. One that is not
//! there is told where the answer would be: other servers and pipelines go on.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use feedmill_access::{Application, Pass, PassSettings, Peer, TlsFault, TlsSocket};
use feedmill_scaler::prometheus::Mute;
use http::HeaderValue;
use tokio::net::TcpStream;

/// Whom to trust and what to show.
#[derive(Clone, Debug)]
pub(super) struct Secure {
    files: Arc<Files>,
}

#[derive(Debug)]
struct Files {
    /// PEM of the authorities that are trusted, and no others; none = those of this machine.
    ca: Option<PathBuf>,
    token: Option<PathBuf>,
    /// Made when the authorities could be read for the first time; it follows their file from then on.
    pass: OnceLock<Pass>,
}

impl Secure {
    pub(super) fn new(ca: Option<PathBuf>, token: Option<PathBuf>) -> Self {
        Self { files: Arc::new(Files { ca, token, pass: OnceLock::new() }) }
    }

    /// What the files say now.
    ///
    /// # Errors
    /// [`Mute::Unprepared`].
    pub(super) async fn read(&self) -> Result<(Pass, Option<HeaderValue>), Mute> {
        let files = Arc::clone(&self.files);
        let read = tokio::task::spawn_blocking(move || Ok((files.pass()?, files.bearer()?)));
        // A task that reads files ends early only with the runtime.
        read.await.unwrap_or(Err(Mute::Down))
    }
}

impl Files {
    fn pass(&self) -> Result<Pass, Mute> {
        if let Some(pass) = self.pass.get() {
            return Ok(pass.clone());
        }
        let settings = PassSettings { token: None, authorities: self.ca.clone() };
        let pass = Pass::to(Peer::Prometheus, settings).map_err(|error| {
            let hint = "see that the ConfigMap or Secret of its ca is there, with that key";
            Mute::unprepared(format_args!("{}; {hint}", error.words()))
        })?;
        Ok(self.pass.get_or_init(|| pass).clone())
    }

    fn bearer(&self) -> Result<Option<HeaderValue>, Mute> {
        let token = self.token.as_deref().map(Pass::bearer).transpose();
        token.map_err(|error| {
            let hint =
                "see that the Secret of its token is there, with that key and nothing but the token in it";
            Mute::unprepared(format_args!("{}; {hint}", error.words()))
        })
    }
}

/// Speaks TLS on a socket that is connected to `host`, which the certificate must name.
///
/// # Errors
/// [`Mute::Insecure`]; [`Mute::Unprepared`] where no authority is known.
pub(super) async fn secured(pass: &Pass, host: &str, socket: TcpStream) -> Result<TlsSocket, Mute> {
    pass.secure(host, socket, Application::Http1).await.map_err(|fault| match fault {
        TlsFault::Certificate(reason) => {
            Mute::insecure(format_args!("its certificate is not accepted: {reason}"))
        }
        TlsFault::NoTls => Mute::insecure("it speaks no TLS; correct its port, or write http://"),
        TlsFault::Settings(reason) => Mute::unprepared(reason),
        other => Mute::insecure(other),
    })
}

#[cfg(test)]
mod tests;
