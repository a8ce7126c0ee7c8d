//! Takes a client's token and the authorities it trusts, gives what its requests carry, and connections over TLS.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use http::{HeaderMap, HeaderValue, header};
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::AccessError;
use crate::file::{Look, Reread, read_one};
use crate::pem;
use crate::token::{self, Token};

/// A socket over TLS.
pub type TlsSocket = tokio_rustls::client::TlsStream<TcpStream>;

/// Where a client's token is.
#[derive(Clone, Debug)]
pub enum TokenSource {
    /// This one, for as long as the client lives.
    Text(Token),
    /// The first line of this file; read again when a worker refuses it.
    File(PathBuf),
}

/// What a client shows and whom it trusts.
#[derive(Clone, Debug, Default)]
pub struct PassSettings {
    /// The token; None sends none.
    pub token: Option<TokenSource>,
    /// PEM of the authorities that are trusted, and no others; None = those of this machine.
    pub authorities: Option<PathBuf>,
}

/// Who is asked: by which words that is told, and which TLS may be spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peer {
    /// A worker, by TLS 1.3.
    #[default]
    Worker,
    /// A Prometheus server of the operator. What stands before it may be older: by TLS 1.2, too.
    Prometheus,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Prometheus => "server",
        }
    }

    /// Where a file of authorities is named.
    fn authorities(self) -> &'static str {
        match self {
            Self::Worker => "--ca-file",
            Self::Prometheus => "the ca of operator.prometheus",
        }
    }

    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        const NEWEST: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
        const OLDER: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];
        match self {
            Self::Worker => NEWEST,
            Self::Prometheus => OLDER,
        }
    }
}

/// What a client shows and whom it trusts; clones share it. Without settings: no token, this machine's authorities.
#[derive(Clone, Default)]
pub struct Pass(Arc<Inner>);

#[derive(Default)]
struct Inner {
    peer: Peer,
    token: Option<Held>,
    authorities: Option<Reread<RootCertStore>>,
    /// This machine's authorities, read when first needed: most workers have no TLS.
    system: OnceLock<Arc<RootCertStore>>,
    configs: Mutex<Configs>,
}

enum Held {
    Text(HeaderValue),
    File {
        file: Reread<HeaderValue>,
        /// Looking again is one client's at a time, and the others then see what it found.
        gate: tokio::sync::Mutex<()>,
    },
}

/// TLS settings by application protocol, and the authorities that they were made for.
#[derive(Default)]
struct Configs(Vec<(Application, Arc<RootCertStore>, Arc<ClientConfig>)>);

/// What is spoken inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    /// HTTP/2.
    Http2,
    /// HTTP/1.1.
    Http1,
}

/// The token that a request carried, to be told from a newer one.
#[derive(Clone)]
pub struct Shown(Option<HeaderValue>);

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass {{ token: {}, .. }}", self.0.token.is_some())
    }
}

/// Why there is no connection over TLS.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TlsFault {
    /// The other side's certificate does not prove that it is who is meant.
    #[error("the worker's certificate is not accepted: {0}")]
    Certificate(String),
    /// The other side speaks no TLS.
    #[error("the worker speaks no TLS; write http://, or give it --tls-cert and --tls-key")]
    NoTls,
    /// What stands in a URL cannot be in a certificate.
    #[error("{0:?} is no name that a certificate can have")]
    Name(String),
    /// It speaks TLS, and not what is needed inside.
    #[error("the other side speaks no {0} inside TLS; is a proxy in between?")]
    Application(&'static str),
    /// This client's own settings.
    #[error("{0}")]
    Settings(String),
    /// The connection broke.
    #[error("TLS handshake failed: {0}")]
    Broken(String),
}

impl TlsFault {
    /// True when asking again does not help before a person has done something.
    #[must_use]
    pub fn needs_a_person(&self) -> bool {
        !matches!(self, Self::Broken(_))
    }
}

impl Pass {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read or used.
    pub fn new(settings: PassSettings) -> Result<Self, AccessError> {
        Self::to(Peer::Worker, settings)
    }

    /// Reads the files, to ask this one.
    ///
    /// # Errors
    /// A file that cannot be read or used.
    pub fn to(peer: Peer, settings: PassSettings) -> Result<Self, AccessError> {
        let token = match settings.token {
            None => None,
            Some(TokenSource::Text(token)) => {
                Some(Held::Text(token.header().ok_or(AccessError::Token(token::TokenError::NotText))?))
            }
            Some(TokenSource::File(path)) => {
                let at = path.clone();
                let file = Reread::open("token", vec![path], move |contents| {
                    let wrong = |source| AccessError::Tokens { path: at.clone(), source };
                    let bytes = contents.first().map_or(&[][..], Vec::as_slice);
                    let tokens = token::parse(bytes).map_err(wrong)?;
                    let first = tokens.first().and_then(Token::header);
                    first.ok_or_else(|| wrong(token::TokenError::None))
                })?;
                Some(Held::File { file, gate: tokio::sync::Mutex::new(()) })
            }
        };
        let authorities = settings.authorities.map(|path| {
            let at = path.clone();
            Reread::open("authorities", vec![path], move |contents| {
                let bytes = contents.first().map_or(&[][..], Vec::as_slice);
                let mut roots = RootCertStore::empty();
                for certificate in pem::certificates(&at, bytes)? {
                    roots.add(certificate).map_err(|error| AccessError::Authority {
                        path: at.clone(),
                        reason: error.to_string(),
                    })?;
                }
                Ok(roots)
            })
        });
        let authorities = authorities.transpose()?;
        Ok(Self(Arc::new(Inner { peer, token, authorities, ..Inner::default() })))
    }

    /// What a request to another server than a worker carries as `authorization`: the token that this file holds alone, read now.
    ///
    /// # Errors
    /// A file that cannot be read, or that holds no token.
    pub fn bearer(path: &Path) -> Result<HeaderValue, AccessError> {
        let wrong = |source| AccessError::Tokens { path: path.to_owned(), source };
        let token = Token::alone(&read_one(path)?).map_err(wrong)?;
        token.header().ok_or_else(|| wrong(token::TokenError::NotText))
    }

    /// Puts the token into a request's headers.
    pub fn show(&self, headers: &mut HeaderMap) -> Shown {
        let value = self.0.token.as_ref().map(|held| match held {
            Held::Text(value) => value.clone(),
            Held::File { file, .. } => HeaderValue::clone(&file.current()),
        });
        if let Some(value) = &value {
            headers.insert(header::AUTHORIZATION, value.clone());
        }
        Shown(value)
    }

    /// A worker has refused what was shown: whether there is another token by now. Reads the file again unless
    /// that has been done since.
    pub async fn renewed(&self, shown: &Shown) -> bool {
        let Some(Held::File { gate, .. }) = &self.0.token else { return false };
        let _one = gate.lock().await;
        if !self.is_current(shown) {
            return true;
        }
        let of = Arc::clone(&self.0);
        let looked = tokio::task::spawn_blocking(move || match &of.token {
            Some(Held::File { file, .. }) => file.look(),
            _ => Look::Same,
        });
        // A task that reads a file ends early only with the runtime.
        looked.await.is_ok() && !self.is_current(shown)
    }

    fn is_current(&self, shown: &Shown) -> bool {
        match &self.0.token {
            Some(Held::File { file, .. }) => shown.0.as_ref() == Some(&file.current()),
            _ => true,
        }
    }

    /// Speaks TLS on a socket that is connected to `host`, which the certificate must name.
    ///
    /// # Errors
    /// See [`TlsFault`].
    pub async fn secure(
        &self,
        host: &str,
        socket: TcpStream,
        application: Application,
    ) -> Result<TlsSocket, TlsFault> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| TlsFault::Name(host.chars().take(128).collect()))?;
        let config = self.config(application).await?;
        let secured = self.handshake(TlsConnector::from(config).connect(name, socket), host).await?;
        let agreed = secured.get_ref().1.alpn_protocol();
        match (application, agreed) {
            (Application::Http2, Some(b"h2")) | (Application::Http1, None | Some(b"http/1.1")) => Ok(secured),
            (Application::Http2, _) => Err(TlsFault::Application("HTTP/2")),
            (Application::Http1, _) => Err(TlsFault::Application("HTTP/1.1")),
        }
    }

    async fn handshake(
        &self,
        connecting: impl Future<Output = std::io::Result<TlsSocket>>,
        host: &str,
    ) -> Result<TlsSocket, TlsFault> {
        connecting.await.map_err(|error| {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            match inner {
                Some(rustls::Error::InvalidCertificate(wrong)) => {
                    TlsFault::Certificate(describe(wrong, host, self.0.peer, self.0.authorities.is_some()))
                }
                Some(rustls::Error::InvalidMessage(_)) => TlsFault::NoTls,
                Some(rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)) => {
                    TlsFault::Application("HTTP/2 or HTTP/1.1")
                }
                Some(other) => TlsFault::Broken(other.to_string()),
                None => TlsFault::Broken(error.to_string()),
            }
        })
    }

    /// TLS settings with the authorities that are trusted now.
    async fn config(&self, application: Application) -> Result<Arc<ClientConfig>, TlsFault> {
        let of = Arc::clone(&self.0);
        let roots = tokio::task::spawn_blocking(move || of.roots())
            .await
            .map_err(|_| TlsFault::Broken("the runtime is ending".into()))?
            .map_err(|error| TlsFault::Settings(error.words()))?;
        let mut configs = self.0.configs.lock().unwrap_or_else(PoisonError::into_inner);
        configs.0.retain(|(_, known, _)| Arc::ptr_eq(known, &roots));
        if let Some((_, _, config)) = configs.0.iter().find(|(known, _, _)| *known == application) {
            return Ok(Arc::clone(config));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(self.0.peer.versions())
            .map_err(|error| TlsFault::Settings(error.to_string()))?
            .with_root_certificates(Arc::clone(&roots))
            .with_no_client_auth();
        config.alpn_protocols = match application {
            Application::Http2 => vec![b"h2".to_vec()],
            Application::Http1 => vec![b"http/1.1".to_vec()],
        };
        let config = Arc::new(config);
        configs.0.push((application, roots, Arc::clone(&config)));
        Ok(config)
    }
}

impl Inner {
    /// The authorities that are trusted; blocks while files are read.
    fn roots(&self) -> Result<Arc<RootCertStore>, AccessError> {
        if let Some(authorities) = &self.authorities {
            authorities.look();
            return Ok(authorities.current());
        }
        if let Some(roots) = self.system.get() {
            return Ok(Arc::clone(roots));
        }
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        // Old machines hold certificates that no library reads any more; the others serve.
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let reason = found.errors.first().map_or("none were found".to_owned(), ToString::to_string);
            return Err(AccessError::NoAuthorities { setting: self.peer.authorities(), reason });
        }
        Ok(Arc::clone(self.system.get_or_init(|| Arc::new(roots))))
    }
}

/// What is wrong with a certificate, and what to do.
fn describe(wrong: &CertificateError, host: &str, peer: Peer, has_file: bool) -> String {
    let (name, setting) = (peer.name(), peer.authorities());
    match wrong {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("{wrong}; renew the {name}'s certificate")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("{wrong}; is the clock of this machine right?")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("{wrong}; ask by a name that it has, or give the {name} one for {host:?}")
        }
        // The second is what an authority gives that was made anew under its old name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature if has_file => {
            format!("{wrong}; none of the authorities in {setting} has signed it")
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!(
                "{wrong}; no authority of this machine has signed it, name the one that did with {setting}"
            )
        }
        other => {
            format!("{other}; an authority in {setting} must have signed it, and it must not be one itself")
        }
    }
}
