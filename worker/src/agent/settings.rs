//! Takes arguments, gives settings: two types, so that nothing unchecked is read later.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use feedmill_access::{AccessError, GuardFiles, Pass, PassSettings, TokenSource};
use feedmill_client::{ClientError, FleetSettings};
use feedmill_protocol::local::AGENT_VARIABLE;
use feedmill_protocol::pipeline::Quantity;

use crate::settings::{SettingsError, guard_files, host_name};

/// The run that is named to workers for whatever has none of its own.
const COMMON_RUN: &str = "agent";

/// A slab has at least this size, so that a reader maps few of them.
const LEAST_SLAB: u64 = 64 << 20;

/// Arguments of an agent.
#[derive(Args, Clone, Debug)]
pub struct AgentArgs {
    /// Workers to fetch from: http://HOST:PORT, a name with many addresses, file:PATH of a list; several, or with commas
    /// between
    #[arg(long, value_name = "URL", required = true, value_delimiter = ',')]
    pub upstream: Vec<String>,
    /// The socket for processes of this node [default: $FEEDMILL_AGENT, else feedmill-agent.sock in the system's
    /// folder for temporary files]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Who may connect to the socket, as an octal mode
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
    pub socket_mode: u32,
    /// Where to listen for HTTP; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8471")]
    pub listen: SocketAddr,
    /// File with bearer tokens: those that are admitted over HTTP, one a line; the first is shown to the workers; read
    /// again when it changes
    #[arg(long, value_name = "FILE", env = "FEEDMILL_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Certificates of authorities that the workers' certificates come from, PEM [default: those of the machine]
    #[arg(long, value_name = "FILE", env = "FEEDMILL_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// Listen on an address that others reach although no token is asked for
    #[arg(long)]
    pub insecure_no_token: bool,
    /// Certificate chain, PEM: speak TLS, and TLS only; read again when it changes
    #[arg(long, value_name = "FILE", env = "FEEDMILL_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE", env = "FEEDMILL_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// A name for people [default: the host name]
    #[arg(long)]
    pub name: Option<String>,
    /// Shared memory for batches
    #[arg(long, value_name = "BYTES", default_value = "8Gi")]
    pub memory: Quantity,
    /// Memory for batches on their way from the workers
    #[arg(long, value_name = "BYTES", default_value = "1Gi")]
    pub fetch_memory: Quantity,
    /// The largest batch
    #[arg(long, value_name = "BYTES", default_value = "64Mi")]
    pub max_batch: Quantity,
    /// Processes of this node at once; half of the memory is divided among them
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub readers: u16,
    /// How long a process that holds its share may release nothing before it is refused more
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub release_seconds: u64,
    /// How long requests may still run after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub drain_seconds: u64,
    /// End when standard input is closed, so as not to outlive a parent
    #[arg(long)]
    pub exit_with_stdin: bool,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "is no octal mode such as 600 or 666".into())
}

/// Checked settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Its name.
    pub name: String,
    /// The workers behind.
    pub upstream: FleetSettings,
    /// Where processes of this node connect.
    pub socket: PathBuf,
    /// Who may.
    pub socket_mode: u32,
    /// Where to listen for HTTP.
    pub listen: SocketAddr,
    /// Who is admitted there, and how it proves who it is.
    pub access: GuardFiles,
    /// Bytes of shared memory.
    pub memory: u64,
    /// Bytes of batches on their way.
    pub fetch_memory: u64,
    /// Bytes of the largest batch.
    pub max_batch: u64,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Processes at once.
    pub readers: u32,
    /// Bytes that each of them may hold, and one batch beyond them.
    pub share: u64,
    /// How long room that is held is waited for.
    pub release: Duration,
    /// How long requests may still run after SIGTERM.
    pub drain: Duration,
    /// End when standard input is closed.
    pub exit_with_stdin: bool,
}

/// Arguments that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentSettingsError {
    /// An address that is none.
    #[error("--upstream cannot be used")]
    Upstream(#[source] Box<ClientError>),
    /// A token or authorities that cannot be read.
    #[error("the workers cannot be asked")]
    Access(#[from] AccessError),
    /// Nobody would be asked for a token.
    #[error(transparent)]
    Listen(#[from] SettingsError),
    /// Readers could not hold a single batch.
    #[error(
        "half of --memory = {memory} bytes, divided among --readers = {readers}, is {each} bytes, less than one batch \
         of --max-batch = {max_batch} bytes; --memory must be at least {needed} bytes, or lower one of the others"
    )]
    Share {
        /// The memory.
        memory: u64,
        /// Processes at once.
        readers: u32,
        /// What there is for each.
        each: u64,
        /// The largest batch.
        max_batch: u64,
        /// What the memory must be.
        needed: u64,
    },
    /// Too little for one batch.
    #[error("--fetch-memory = {fetch} bytes cannot hold one batch of --max-batch = {max_batch} bytes")]
    Fetch {
        /// The memory.
        fetch: u64,
        /// The largest batch.
        max_batch: u64,
    },
    /// No bytes.
    #[error("--max-batch must be above zero")]
    NoBatch,
}

impl AgentSettings {
    /// Checks arguments and fills in what was left out.
    ///
    /// # Errors
    /// See [`AgentSettingsError`].
    pub fn new(args: &AgentArgs) -> Result<Self, AgentSettingsError> {
        let upstream = FleetSettings::from_sources(COMMON_RUN, args.upstream.iter().map(String::as_str));
        let mut upstream = upstream.map_err(|error| AgentSettingsError::Upstream(Box::new(error)))?;
        upstream.pass = Pass::new(PassSettings {
            token: args.token_file.clone().map(TokenSource::File),
            authorities: args.ca_file.clone(),
        })?;
        let certificate = args.tls_cert.clone().zip(args.tls_key.clone());
        let access = guard_files(args.listen, args.token_file.clone(), args.insecure_no_token, certificate)?;
        let max_batch = args.max_batch.0;
        if max_batch == 0 {
            return Err(AgentSettingsError::NoBatch);
        }
        let (memory, readers) = (args.memory.0, u32::from(args.readers));
        // Whole slabs are what there is.
        let slab_bytes = max_batch.max(LEAST_SLAB);
        let usable = memory - memory % slab_bytes;
        let each = usable / 2 / u64::from(readers);
        if each < max_batch || usable / 4 < max_batch {
            let halves = max_batch.saturating_mul(2 * u64::from(readers.max(2)));
            let needed = halves.div_ceil(slab_bytes).saturating_mul(slab_bytes);
            return Err(AgentSettingsError::Share { memory, readers, each, max_batch, needed });
        }
        let fetch = args.fetch_memory.0;
        if fetch < max_batch {
            return Err(AgentSettingsError::Fetch { fetch, max_batch });
        }
        let socket = args.socket.clone().or_else(|| std::env::var_os(AGENT_VARIABLE).map(PathBuf::from));
        Ok(Self {
            name: args.name.clone().or_else(host_name).unwrap_or_else(|| "agent".into()),
            upstream,
            socket: socket.unwrap_or_else(|| std::env::temp_dir().join("feedmill-agent.sock")),
            socket_mode: args.socket_mode,
            listen: args.listen,
            access,
            memory: usable,
            fetch_memory: fetch,
            max_batch,
            slab_bytes,
            readers,
            share: each - max_batch,
            release: Duration::from_secs(args.release_seconds),
            drain: Duration::from_secs(args.drain_seconds),
            exit_with_stdin: args.exit_with_stdin,
        })
    }

    /// Bytes that answers over HTTP may hold; at least one batch.
    #[must_use]
    pub fn answers_bytes(&self) -> u64 {
        self.memory / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: AgentArgs,
    }

    fn settings(arguments: &[&str]) -> Result<AgentSettings, AgentSettingsError> {
        let arguments = ["agent", "--upstream", "http://a,http://b:1"].iter().chain(arguments);
        AgentSettings::new(&Cli::try_parse_from(arguments).unwrap().args)
    }

    #[test]
    fn shares_hold_a_batch_each_and_a_quarter_stays_free() {
        let usual = settings(&[]).unwrap();
        assert_eq!((usual.upstream.workers.len(), usual.share, usual.slab_bytes), (2, 192 << 20, 64 << 20));
        let large = settings(&["--max-batch", "256Mi", "--readers", "8"]).unwrap();
        assert_eq!((large.slab_bytes, large.share), (256 << 20, 256 << 20));
        // Memory that is no whole slab does not count.
        assert_eq!(settings(&["--memory", "4200Mi"]).unwrap().memory, 4160 << 20);
        let lent = (usual.share + usual.max_batch) * u64::from(usual.readers);
        assert!(lent + usual.answers_bytes() <= usual.memory * 3 / 4);
    }

    #[test]
    fn what_cannot_work_names_the_setting() {
        let cases: [(&[&str], &str); 5] = [
            (&["--memory", "1Gi"], "--memory must be at least 2147483648 bytes"),
            (&["--readers", "65"], "--readers = 65"),
            (&["--memory", "0"], "--memory"),
            (&["--fetch-memory", "1Mi"], "--fetch-memory"),
            (&["--max-batch", "0"], "--max-batch"),
        ];
        for (arguments, part) in cases {
            let error = settings(arguments).unwrap_err().to_string();
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
        let arguments = ["agent", "--upstream", "ftp://a"];
        let error = AgentSettings::new(&Cli::try_parse_from(arguments).unwrap().args).unwrap_err();
        assert!(matches!(error, AgentSettingsError::Upstream(_)));
        for wrong in [["--socket-mode", "888"], ["--socket-mode", "1777"], ["--readers", "0"]] {
            assert!(Cli::try_parse_from(["agent", "--upstream", "http://a"].iter().chain(&wrong)).is_err());
        }
        assert!(Cli::try_parse_from(["agent"]).is_err());
    }
}
