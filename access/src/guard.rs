//! Takes a request's head, says whether it is admitted; and the worker's side of TLS.
//!
//! Without a token file everybody who reaches the port is admitted. On a loopback address that would include pages from
//! elsewhere in this machine's browser: those whose name was made to mean 127.0.0.1 (DNS rebinding), whose requests carry
//! that name, and those that only send, whose requests browsers mark (`sec-fetch-site`).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, Method, Uri, header};
use rustls::ServerConfig;

use crate::error::AccessError;
use crate::file::Reread;
use crate::pem;
use crate::token::{self, Admitted};

/// Where a worker's tokens and its certificate are.
#[derive(Clone, Debug, Default)]
pub struct GuardFiles {
    /// Tokens, one a line; None admits everybody.
    pub tokens: Option<PathBuf>,
    /// Certificate chain and key; None speaks cleartext.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Refuse requests that were sent to another name than this machine's own, or by pages from elsewhere.
    pub own_names_only: bool,
}

/// What a worker holds against those who ask.
#[derive(Default)]
pub struct Guard {
    tokens: Option<Reread<Admitted>>,
    tls: Option<Reread<ServerConfig>>,
    own_names_only: bool,
    denied: AtomicU64,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard {{ tokens: {}, tls: {} }}", self.tokens.is_some(), self.tls.is_some())
    }
}

/// What is said to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It has what it takes: it may ask for everything.
    Admitted,
    /// It may ask for what is open to everybody.
    Stranger(Denial),
}

/// Why somebody is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// No token came.
    NoToken,
    /// A token that is none of ours, or no longer.
    WrongToken,
    /// The request was sent to a name that this machine does not have.
    OtherName,
    /// A page from elsewhere has sent it.
    OtherPage,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardStats {
    /// Tokens that are admitted now.
    pub tokens: u64,
    /// Requests that were refused.
    pub denied: u64,
    /// Times that changed files came into use.
    pub changes: u64,
    /// Times that changed files could not be used.
    pub failures: u64,
}

impl Guard {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read or used.
    pub fn new(files: GuardFiles) -> Result<Self, AccessError> {
        let tokens = files.tokens.map(|path| {
            let at = path.clone();
            Reread::open("tokens", vec![path], move |contents| {
                let bytes = contents.first().map_or(&[][..], Vec::as_slice);
                let tokens =
                    token::parse(bytes).map_err(|source| AccessError::Tokens { path: at.clone(), source })?;
                Ok(Admitted::of(&tokens))
            })
        });
        let tls = files.certificate.map(|(certificate, key)| {
            let paths = vec![certificate.clone(), key.clone()];
            Reread::open("certificate", paths, move |contents| {
                let [chain, secret] = contents else { return Err(AccessError::Tls("no files".into())) };
                let pair = |error: rustls::Error| AccessError::Pair {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    reason: error.to_string(),
                };
                let chain = pem::certificates(&certificate, chain)?;
                let secret = pem::key(&key, secret)?;
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                let mut config = ServerConfig::builder_with_provider(provider)
                    .with_protocol_versions(&[&rustls::version::TLS13])
                    .map_err(|error| AccessError::Tls(error.to_string()))?
                    .with_no_client_auth()
                    .with_single_cert(chain, secret)
                    .map_err(pair)?;
                config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
                Ok(config)
            })
        });
        Ok(Self {
            tokens: tokens.transpose()?,
            tls: tls.transpose()?,
            own_names_only: files.own_names_only,
            denied: AtomicU64::new(0),
        })
    }

    /// How TLS is spoken now; None when it is not.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.as_ref().map(Reread::current)
    }

    /// Whether TLS is spoken.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether a token is asked for.
    #[must_use]
    pub fn wants_token(&self) -> bool {
        self.tokens.is_some()
    }

    /// True when files may change.
    #[must_use]
    pub fn has_files(&self) -> bool {
        self.tokens.is_some() || self.tls.is_some()
    }

    /// Looks at the files again; blocks while they are read.
    pub fn look(&self) {
        if let Some(tokens) = &self.tokens {
            tokens.look();
        }
        if let Some(tls) = &self.tls {
            tls.look();
        }
    }

    /// What is said to a request with this head.
    #[must_use]
    pub fn decide(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Decision {
        if let Some(tokens) = &self.tokens {
            return match token::presented(headers) {
                Some(token) if tokens.current().admits(token) => Decision::Admitted,
                Some(_) => Decision::Stranger(Denial::WrongToken),
                None => Decision::Stranger(Denial::NoToken),
            };
        }
        if self.own_names_only && !is_own_name(uri, headers) {
            return Decision::Stranger(Denial::OtherName);
        }
        if self.own_names_only && is_of_other_page(method, headers) {
            return Decision::Stranger(Denial::OtherPage);
        }
        Decision::Admitted
    }

    /// Counts a refusal and says it, ever more seldom: on the first, second, fourth and so on.
    pub fn denied(&self, denial: Denial, method: &Method, peer: impl fmt::Display) {
        let count = self.denied.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if count.is_power_of_two() {
            tracing::warn!(count, %peer, %method, reason = ?denial, "a request is refused");
        }
    }

    /// What has happened so far.
    #[must_use]
    pub fn stats(&self) -> GuardStats {
        let of = [self.tokens.as_ref().map(Reread::counts), self.tls.as_ref().map(Reread::counts)];
        let add = |a: (u64, u64), b: (u64, u64)| (a.0 + b.0, a.1 + b.1);
        let (changes, failures) = of.into_iter().flatten().fold((0, 0), add);
        GuardStats {
            tokens: self.tokens.as_ref().map_or(0, |tokens| tokens.current().len() as u64),
            denied: self.denied.load(Ordering::Relaxed),
            changes,
            failures,
        }
    }
}

/// Whether a request was sent to an address, to localhost, or to a name without a dot: nobody can own one of these and
/// make it mean this machine.
fn is_own_name(uri: &Uri, headers: &HeaderMap) -> bool {
    let host = match uri.authority() {
        Some(authority) => authority.host(),
        None => {
            let mut hosts = headers.get_all(header::HOST).iter();
            match (hosts.next().map(http::HeaderValue::to_str), hosts.next()) {
                // HTTP/1.0 without a host comes from no browser.
                (None, _) => return true,
                (Some(Ok(host)), None) => match without_port(host) {
                    Some(host) => host,
                    None => return false,
                },
                _ => return false,
            }
        }
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    let lower = host.to_ascii_lowercase();
    host.parse::<std::net::IpAddr>().is_ok() || lower.ends_with(".localhost") || !lower.contains('.')
}

/// Whether a browser sends this for a page from elsewhere; a link to here that somebody follows is none of that.
fn is_of_other_page(method: &Method, headers: &HeaderMap) -> bool {
    let is = |name: &str, values: &[&str]| {
        headers.get(name).is_some_and(|value| values.iter().any(|known| value == known))
    };
    let is_link = method == Method::GET && is("sec-fetch-mode", &["navigate"]);
    headers.contains_key("sec-fetch-site") && !is("sec-fetch-site", &["same-origin", "none"]) && !is_link
}

fn without_port(host: &str) -> Option<&str> {
    match host.rsplit_once(':') {
        // A colon within brackets belongs to an IPv6 address.
        Some((name, port)) if !port.contains(']') => {
            port.bytes().all(|byte| byte.is_ascii_digit()).then_some(name)
        }
        _ => Some(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn without_a_token_names_that_others_own_are_refused_on_loopback() {
        let guard = Guard::new(GuardFiles { own_names_only: true, ..GuardFiles::default() }).unwrap();
        let cases = [
            ("127.0.0.1:8470", true),
            ("127.0.0.1", true),
            ("[::1]:8470", true),
            ("[::1]", true),
            ("localhost:8470", true),
            ("LOCALHOST", true),
            ("a.localhost:1", true),
            ("worker", true),
            ("evil.example:8470", false),
            ("evil.example", false),
            ("evil.example.", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example:8470", false),
            ("127.0.0.1:8470.evil.example", false),
        ];
        for (host, admitted) in cases {
            let uri = "/v1/plan".parse().unwrap();
            let decision = guard.decide(&Method::GET, &uri, &headers(&[("host", host)]));
            assert_eq!(decision == Decision::Admitted, admitted, "{host}: {decision:?}");
        }
        let other: Uri = "http://evil.example/v1/plan".parse().unwrap();
        let decision = guard.decide(&Method::GET, &other, &headers(&[("host", "localhost")]));
        assert_eq!(decision, Decision::Stranger(Denial::OtherName));
        let open = Guard::default();
        assert_eq!(open.decide(&Method::GET, &other, &HeaderMap::new()), Decision::Admitted);
    }

    #[test]
    fn without_a_token_pages_from_elsewhere_send_nothing_here() {
        let guard = Guard::new(GuardFiles { own_names_only: true, ..GuardFiles::default() }).unwrap();
        let cases = [
            ("GET", "same-origin", "cors", true),
            ("POST", "same-origin", "cors", true),
            ("GET", "none", "navigate", true),
            ("GET", "cross-site", "navigate", true),
            ("POST", "cross-site", "navigate", false),
            ("POST", "cross-site", "no-cors", false),
            ("GET", "cross-site", "no-cors", false),
            ("GET", "same-site", "cors", false),
            ("GET", "", "", false),
        ];
        for (method, site, mode, admitted) in cases {
            let headers =
                headers(&[("host", "127.0.0.1:1"), ("sec-fetch-site", site), ("sec-fetch-mode", mode)]);
            let method = method.parse().unwrap();
            let decision = guard.decide(&method, &"/v1/reports".parse().unwrap(), &headers);
            assert_eq!(decision == Decision::Admitted, admitted, "{method} {site} {mode}");
        }
    }

    #[test]
    fn tokens_are_read_again_and_broken_files_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let (old, new) = ("old-token-0123456789", "new-token-0123456789");
        std::fs::write(&path, format!("{old}\n")).unwrap();
        let files = GuardFiles { tokens: Some(path.clone()), ..GuardFiles::default() };
        let guard = Guard::new(files).unwrap();
        let uri = "/v1/plan".parse().unwrap();
        let admits = |token: &str| {
            let headers = headers(&[("authorization", &format!("Bearer {token}"))]);
            guard.decide(&Method::GET, &uri, &headers) == Decision::Admitted
        };
        assert_eq!(guard.decide(&Method::GET, &uri, &HeaderMap::new()), Decision::Stranger(Denial::NoToken));
        let steps = [
            (format!("{old}\r\n"), true, false),
            (format!("{new}\n{old}\n"), true, true),
            (String::new(), true, true),
            ("short".into(), true, true),
            (format!("{new}\n"), false, true),
        ];
        for (content, old_admitted, new_admitted) in steps {
            std::fs::write(&path, &content).unwrap();
            guard.look();
            assert_eq!((admits(old), admits(new)), (old_admitted, new_admitted), "{content:?}");
        }
        assert_eq!(guard.stats(), GuardStats { tokens: 1, denied: 0, changes: 3, failures: 2 });
    }
}
