//! Takes `NAME={"url": …, "ca": …, "token": …, "wait": …, "fill": …, "desired": …}`, gives a server and the paths of its queries.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;
use serde::Deserialize;

use super::secure::Secure;
use crate::validate::Key;

/// What stands in a query for a pipeline's namespace and name.
const NAMESPACE: &str = "$namespace";
const PIPELINE: &str = "$pipeline";
/// As long as the longest text of a pipeline; a request line twice as long, with its bytes in three characters each, is still taken by servers.
const LONGEST: usize = 4096;

/// A Prometheus server and its queries.
#[derive(Clone, Debug)]
pub struct Server {
    /// By which pipelines name it.
    pub name: String,
    /// `host` or `host:port`, as it stands in its address.
    pub(super) authority: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// Of an address that begins with `https://`.
    pub(super) secure: Option<Secure>,
    /// What stands before `/api/v1/query`.
    pub(super) prefix: String,
    /// Share of its time that a rank waits, 0..1.
    pub(super) wait: String,
    /// The emptiest queue, 0..1.
    pub(super) fill: String,
    /// Workers that would do at the load they are planned for.
    pub(super) desired: Option<String>,
}

/// Why something is no server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// No name.
    #[error("it must begin with a name of lower-case letters, digits and minus, and `=`")]
    Name,
    /// Two of one name.
    #[error("two Prometheus servers have the name {0}; give each its own")]
    Twice(String),
    /// No JSON, or another one.
    #[error("after its name it must have url, wait, fill and maybe desired, ca and token, as JSON: {0}")]
    Json(String),
    /// An address that cannot be used.
    #[error("its url must be https://HOST[:PORT][/PATH] or http://…, without user and query, and is {0}")]
    Url(String),
    /// A query that is none.
    #[error("its query {0} must have 1 to {LONGEST} bytes")]
    Query(&'static str),
    /// No path.
    #[error("its {0} must be the absolute path of a file")]
    File(&'static str),
    /// Whoever listens would learn the token.
    #[error(
        "its {0} needs a url that begins with https://; over http:// a token could be read by others, and nobody is known by a certificate"
    )]
    Plain(&'static str),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    url: String,
    wait: String,
    fill: String,
    desired: Option<String>,
    ca: Option<PathBuf>,
    token: Option<PathBuf>,
}

impl FromStr for Server {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        let (name, rest) = text.split_once('=').ok_or(ServerError::Name)?;
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !(1..=63).contains(&name.len()) || !name.chars().all(is_part) {
            return Err(ServerError::Name);
        }
        let given: Given =
            serde_json::from_str(rest).map_err(|error| ServerError::Json(error.to_string()))?;
        let queries =
            [("wait", Some(&given.wait)), ("fill", Some(&given.fill)), ("desired", given.desired.as_ref())];
        for (which, query) in queries {
            if query.is_some_and(|query| query.trim().is_empty() || query.len() > LONGEST) {
                return Err(ServerError::Query(which));
            }
        }
        let wrong = || ServerError::Url(given.url.clone());
        let uri: Uri = given.url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        let default_port = match uri.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            _ => return Err(wrong()),
        };
        if uri.query().is_some()
            || authority.as_str().contains('@')
            || authority.host().is_empty()
            || given.url.contains('#')
        {
            return Err(wrong());
        }
        let is_secure = default_port == 443;
        for (which, file) in [("ca", given.ca.as_deref()), ("token", given.token.as_deref())] {
            match file {
                // Also a token that was written in the place of its file's path, which errors would tell.
                Some(path) if !path.is_absolute() => return Err(ServerError::File(which)),
                Some(_) if !is_secure => return Err(ServerError::Plain(which)),
                _ => {}
            }
        }
        Ok(Self {
            name: name.into(),
            authority: authority.as_str().into(),
            host: authority.host().trim_matches(['[', ']']).into(),
            port: authority.port_u16().unwrap_or(default_port),
            secure: is_secure.then(|| Secure::new(given.ca, given.token)),
            prefix: uri.path().trim_end_matches('/').into(),
            wait: given.wait,
            fill: given.fill,
            desired: given.desired,
        })
    }
}

impl Server {
    /// Path and query of a request for the present value of a query; what was scraped longer ago than so many seconds does not count.
    /// <https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries>
    pub(super) fn path(&self, query: &str, key: &Key, stale_after: u32) -> String {
        // Names in Kubernetes have no character that means something in a query.
        let query = query.replace(NAMESPACE, &key.namespace).replace(PIPELINE, &key.name);
        let mut path =
            format!("{}/api/v1/query?timeout=2s&lookback_delta={stale_after}s&query=", self.prefix);
        for byte in query.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                path.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(path, "%{byte:02X}");
            }
        }
        path
    }
}
