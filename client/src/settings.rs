//! Where workers are, bounds and times.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use feedmill_access::Pass;
use feedmill_protocol::http::DEFAULT_PORT;

use crate::error::ClientError;

/// Where a worker listens: `http://host:port`, or `https://host:port` over TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    is_tls: bool,
    host: String,
    port: u16,
    /// The name that this address was found by.
    name: Option<String>,
}

impl Endpoint {
    /// The host, an IPv6 address without its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the worker is called by whoever named it: the name that was resolved, else the host. Its certificate must
    /// have that name.
    #[must_use]
    pub fn server_name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.host())
    }

    /// One of this name's addresses.
    pub(crate) fn at(&self, address: SocketAddr) -> Self {
        let name = Some(self.server_name().to_owned());
        Self { is_tls: self.is_tls, name, ..Self::from(address) }
    }

    /// True for the other of two addresses of one name, one of each family.
    pub(crate) fn is_name_of_other_family(&self, other: &Self) -> bool {
        self.name.is_some()
            && (&self.name, self.port) == (&other.name, other.port)
            && self.host.starts_with('[') != other.host.starts_with('[')
    }

    pub(crate) fn is_same_address(&self, other: &Self) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }
}

impl Endpoint {
    /// Whether TLS is spoken there.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The same over TLS.
    #[must_use]
    pub fn over_tls(self) -> Self {
        Self { is_tls: true, ..self }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        let host = match address {
            SocketAddr::V4(address) => address.ip().to_string(),
            SocketAddr::V6(address) => format!("[{}]", address.ip()),
        };
        Self { is_tls: false, host, port: address.port(), name: None }
    }
}

impl FromStr for Endpoint {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let wrong =
            |reason: &'static str| ClientError::Endpoint { text: text.chars().take(128).collect(), reason };
        let (is_tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(wrong("does not begin with http:// or https://")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@']) {
            return Err(wrong("has a path or a user name"));
        }
        let authority: http::uri::Authority =
            rest.parse().map_err(|_| wrong("has no host or a malformed one"))?;
        let port = match authority.port() {
            Some(port) => port.as_str().parse().map_err(|_| wrong("has a port past 65535"))?,
            None if rest.ends_with(']') || !rest.contains(':') => DEFAULT_PORT,
            None => return Err(wrong("has a port that is no number")),
        };
        if authority.host().is_empty() {
            return Err(wrong("has no host"));
        }
        Ok(Self { is_tls, host: authority.host().to_owned(), port, name: None })
    }
}

/// How long things may take.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// How long a batch is waited for before that is an error.
    pub total: Duration,
    /// How long a batch is waited for before a warning.
    pub warning: Duration,
    /// Connecting, name resolution included. A worker in the same cluster answers in milliseconds; a
    /// second retransmission of a lost SYN comes after 3 s.
    pub connect: Duration,
    /// A whole request on a control connection.
    pub control: Duration,
    /// From sending a request for a batch to the head of its answer. Long, because a batch that is
    /// not urgent waits its turn at the worker; a frozen worker is found by PING long before.
    pub head: Duration,
    /// A body that has begun and brings nothing for this long has stopped. A worker takes a lease back
    /// after 10 s and more, so it has given up as well.
    pub body_stall: Duration,
    /// A PING is sent when nothing has come for this long, also while nothing is asked.
    pub keep_alive_interval: Duration,
    /// The connection is given up when a PING is not answered for this long. A runtime that is blocked
    /// for longer (by a trainer's step on the same thread) loses its connections, and only time.
    pub keep_alive_timeout: Duration,
    /// `Retry-After` is honoured up to this, so that one answer cannot park a rank.
    pub max_retry_after: Duration,
    /// The shortest pause between two rounds over all workers.
    pub backoff_min: Duration,
    /// The longest pause between two rounds over all workers.
    pub backoff_max: Duration,
    /// How long an agent may be away before whoever waits is told; a restart is not noticed within it.
    pub agent: Duration,
    /// How long a worker that is down may hide that all others have another plan.
    pub plan_grace: Duration,
    /// A worker from which nothing comes for this long, although it was asked for a word, is suspect: all that
    /// is outstanding there is asked of others at once.
    pub silence: Duration,
    /// A connection that carries nothing for this long is closed.
    pub idle: Duration,
    /// How often names are resolved again; also at once when nobody can be asked. Records of a cluster's
    /// services live for 5 to 30 s.
    pub resolve: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            total: Duration::from_secs(300),
            warning: Duration::from_secs(30),
            connect: Duration::from_secs(3),
            control: Duration::from_secs(5),
            head: Duration::from_secs(100),
            body_stall: Duration::from_secs(10),
            keep_alive_interval: Duration::from_secs(1),
            keep_alive_timeout: Duration::from_secs(3),
            max_retry_after: Duration::from_secs(10),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            agent: Duration::from_secs(10),
            plan_grace: Duration::from_secs(10),
            silence: Duration::from_millis(500),
            idle: Duration::from_secs(120),
            resolve: Duration::from_secs(10),
        }
    }
}

impl Timeouts {
    /// The pause after `failures` failures in a row: doubling from the shortest to the longest, and
    /// between half of that and all of it by `jitter` in 0..1, so that ranks do not come in step.
    pub(crate) fn backoff(&self, failures: u32, jitter: f64) -> Duration {
        let doubled =
            self.backoff_min.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(self.backoff_max);
        doubled.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0).max(self.backoff_min)
    }
}

/// How a fleet is reached.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// Addresses and names of workers; a name stands for all its addresses, now and later.
    /// [`crate::Fleet::set_workers`] changes them.
    pub workers: Vec<Endpoint>,
    /// Files with more of them, read again when they change.
    pub lists: Vec<PathBuf>,
    /// The socket of this node's agent. Everything is asked of it then, and of no worker.
    pub agent: Option<PathBuf>,
    /// One name per start of a training, shared by its ranks.
    pub run: String,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// An answer that says it is longer is refused before memory is taken for it.
    pub max_batch_bytes: u64,
    /// Requests outstanding on one bulk connection. A connection window of 64 MiB carries 15 streams of
    /// 4 MiB that nobody reads without blocking another one (measured: unread streams x stream window
    /// must stay below the connection window).
    pub streams_per_connection: usize,
    /// Computes every sample's hash again and holds it against the one that came.
    pub verify_hashes: bool,
    /// How often workers are asked how much they have ahead; None = never, and then nobody is found silent.
    pub load_every: Option<Duration>,
    /// How often a rank reports; None = only by [`crate::Fleet::report`].
    pub report_every: Option<Duration>,
    /// Asks a second worker for a range that is late, at most for 3 % of all ranges.
    pub hedge: bool,
    /// The token that requests carry, and the authorities whose certificates are trusted.
    pub pass: Pass,
}

impl FleetSettings {
    /// The usual bounds and times for these workers.
    #[must_use]
    pub fn new(run: impl Into<String>, workers: Vec<Endpoint>) -> Self {
        Self {
            workers,
            lists: Vec::new(),
            agent: None,
            run: run.into(),
            timeouts: Timeouts::default(),
            max_batch_bytes: 1 << 30,
            streams_per_connection: 15,
            verify_hashes: false,
            load_every: Some(Duration::from_secs(1)),
            report_every: Some(Duration::from_secs(2)),
            hedge: true,
            pass: Pass::default(),
        }
    }

    /// The same for workers as people write them: `http://HOST:PORT` of a worker or of a name with many
    /// addresses, several of them with commas between, `file:PATH` of a list.
    ///
    /// # Errors
    /// An address that is none.
    pub fn from_sources<'a>(
        run: impl Into<String>,
        sources: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, ClientError> {
        let mut settings = Self::new(run, Vec::new());
        for source in sources.into_iter().flat_map(|source| source.split(',')).map(str::trim) {
            match source.strip_prefix("file:") {
                Some(path) if path.trim_start_matches('/').is_empty() => {
                    let (text, reason) = (source.to_owned(), "names no file");
                    return Err(ClientError::Endpoint { text, reason });
                }
                // file:///path has an empty host.
                Some(path) => settings.lists.push(path.strip_prefix("//").unwrap_or(path).into()),
                None => settings.workers.push(source.parse()?),
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_parse_or_say_why_not() {
        let cases = [
            ("http://10.0.0.1:9000", Ok(("10.0.0.1", 9000))),
            ("http://worker-0.data.svc/", Ok(("worker-0.data.svc", DEFAULT_PORT))),
            ("http://[::1]:80", Ok(("::1", 80))),
            ("http://[::1]", Ok(("::1", DEFAULT_PORT))),
            ("https://a:1", Ok(("a", 1))),
            ("https://[::1]", Ok(("::1", DEFAULT_PORT))),
            ("HTTPS://a:1", Err("https://")),
            ("httpss://a:1", Err("https://")),
            ("https://", Err("host")),
            ("a:1", Err("http://")),
            ("http://", Err("host")),
            ("http://:80", Err("host")),
            ("http://a:70000", Err("port")),
            ("http://a:", Err("port")),
            ("http://a:x", Err("port")),
            ("http://a/b", Err("path")),
            ("http://u@a", Err("path or a user")),
        ];
        for (text, expected) in cases {
            match (text.parse::<Endpoint>(), expected) {
                (Ok(endpoint), Ok(pair)) => {
                    assert_eq!((endpoint.host(), endpoint.port()), pair);
                    assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
                    assert_eq!(endpoint.is_tls(), text.starts_with("https"));
                }
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (got, _) => panic!("{text:?} gave {got:?}"),
            }
        }
    }

    #[test]
    fn sources_are_addresses_names_and_files() {
        let read = |sources: &[&str]| FleetSettings::from_sources("run", sources.iter().copied());
        let settings = read(&["http://a:1, http://b", "file:/x/list", "file:///y", "file:z"]).unwrap();
        let workers: Vec<String> = settings.workers.iter().map(ToString::to_string).collect();
        assert_eq!(workers, ["http://a:1", "http://b:8470"]);
        assert_eq!(settings.lists, ["/x/list", "/y", "z"].map(PathBuf::from));
        for (source, part) in [("a:1", "http://"), ("file:", "no file"), ("http://a,", "http://")] {
            let error = read(&[source]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_never_fall_below_the_shortest() {
        let timeouts = Timeouts::default();
        assert_eq!(timeouts.backoff(1, 0.0), timeouts.backoff_min);
        assert_eq!(timeouts.backoff(3, 1.0), Duration::from_millis(200));
        assert_eq!(timeouts.backoff(3, 0.0), Duration::from_millis(100));
        assert_eq!(timeouts.backoff(u32::MAX, 1.0), timeouts.backoff_max);
    }
}
