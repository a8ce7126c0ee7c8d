//! Takes arguments, gives settings: two types, so that nothing unchecked is read later.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use feedmill_access::GuardFiles;
use feedmill_protocol::pipeline::{Pipeline, ValidatedPipeline};

use crate::suspect::Sandbox;

/// Arguments of a worker.
#[derive(Args, Clone, Debug)]
pub struct WorkerArgs {
    /// The DataPipeline document
    #[arg(long, value_name = "FILE")]
    pub pipeline: PathBuf,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8470")]
    pub listen: SocketAddr,
    /// File with bearer tokens that are admitted, one a line; read again when it changes
    #[arg(long, value_name = "FILE", env = "FEEDMILL_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Listen on an address that others reach although no token is asked for
    #[arg(long)]
    pub insecure_no_token: bool,
    /// Certificate chain, PEM: speak TLS, and TLS only; read again when it changes
    #[arg(long, value_name = "FILE", env = "FEEDMILL_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE", env = "FEEDMILL_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// A name that is unique in the fleet [default: the host name]
    #[arg(long)]
    pub name: Option<String>,
    /// Threads for CPU work [default: the CPU quota]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Folder for downloaded manifests [default: the system's folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    pub cache_dir: Option<PathBuf>,
    /// S3 server, instead of the pipeline's
    #[arg(long, value_name = "URL")]
    pub s3_endpoint: Option<String>,
    /// Folder with access-key-id, secret-access-key and perhaps session-token
    #[arg(long, value_name = "FOLDER")]
    pub s3_credentials_dir: Option<PathBuf>,
    /// Certificates of the authorities that S3 servers are signed by, PEM [default: $AWS_CA_BUNDLE, then the system's]
    #[arg(long, value_name = "FILE")]
    pub s3_ca_file: Option<PathBuf>,
    /// Folder with a file for each stream that holds the plan digest to serve by; with another plan the worker stays unready
    #[arg(long, value_name = "FOLDER")]
    pub plan_dir: Option<PathBuf>,
    /// How long requests may still run after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub drain_seconds: u64,
    /// End when standard input is closed, so as not to outlive a parent
    #[arg(long)]
    pub exit_with_stdin: bool,
}

/// Checked settings of a worker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its name.
    pub name: String,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Who is admitted, and how it proves who it is.
    pub access: GuardFiles,
    /// Threads for CPU work.
    pub threads: usize,
    /// Folder for downloaded manifests.
    pub cache_dir: PathBuf,
    /// S3 server, instead of the pipeline's.
    pub s3_endpoint: Option<String>,
    /// Folder with S3 keys.
    pub s3_credentials: Option<PathBuf>,
    /// Certificates of the authorities that S3 servers are signed by.
    pub s3_ca_file: Option<PathBuf>,
    /// Folder with the plan to serve by.
    pub plan_dir: Option<PathBuf>,
    /// How long requests may still run after SIGTERM.
    pub drain: Duration,
    /// End when standard input is closed.
    pub exit_with_stdin: bool,
    /// Where pictures are made that may kill whoever decodes them.
    pub sandbox: Sandbox,
}

/// Arguments that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the pipeline {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is no pipeline.
    #[error("{} is no DataPipeline: {reason}", path.display())]
    Yaml {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        reason: String,
    },
    /// The pipeline contradicts itself.
    #[error("{} contradicts itself:{}", path.display(), listed(fields))]
    Fields {
        /// The file.
        path: PathBuf,
        /// Each wrong field with its reason.
        fields: Vec<String>,
    },
    /// Nobody would be asked for a token.
    #[error(
        "--listen {listen} without a token gives the data to everybody who reaches that address; give --token-file \
         FILE, listen on 127.0.0.1:{}, or say --insecure-no-token",
        listen.port()
    )]
    NoToken {
        /// The address.
        listen: SocketAddr,
    },
    /// The cache folder.
    #[error(
        "--cache-dir {} {}",
        path.display(),
        if path.exists() { "is no folder; name another one" } else { "does not exist; make it" }
    )]
    CacheDir {
        /// The folder.
        path: PathBuf,
    },
}

fn listed(fields: &[String]) -> String {
    fields.iter().fold(String::new(), |text, field| text + "\n  " + field)
}

/// Reads and checks a pipeline document.
///
/// # Errors
/// The file cannot be read, is no pipeline, or contradicts itself.
pub fn read_pipeline(path: &Path) -> Result<ValidatedPipeline, SettingsError> {
    let at = || path.to_owned();
    let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read { path: at(), source })?;
    let pipeline: Pipeline = serde_saphyr::from_str(&text)
        .map_err(|error| SettingsError::Yaml { path: at(), reason: error.to_string() })?;
    pipeline.validate().map_err(|errors| SettingsError::Fields {
        path: at(),
        fields: errors.iter().map(ToString::to_string).collect(),
    })
}

impl Settings {
    /// Checks arguments and fills in what was left out.
    ///
    /// # Errors
    /// A cache folder that is none, an address that others reach without a token.
    pub fn new(args: &WorkerArgs) -> Result<Self, SettingsError> {
        let cache_dir = args.cache_dir.clone().unwrap_or_else(std::env::temp_dir);
        if !cache_dir.is_dir() {
            return Err(SettingsError::CacheDir { path: cache_dir });
        }
        let certificate = args.tls_cert.clone().zip(args.tls_key.clone());
        let access = guard_files(args.listen, args.token_file.clone(), args.insecure_no_token, certificate)?;
        let name = args.name.clone().or_else(host_name).unwrap_or_else(|| "worker".into());
        Ok(Self {
            name,
            listen: args.listen,
            access,
            threads: args.threads.map_or_else(cpu_quota, usize::from),
            cache_dir,
            s3_endpoint: args.s3_endpoint.clone(),
            s3_credentials: args.s3_credentials_dir.clone(),
            s3_ca_file: args.s3_ca_file.clone(),
            plan_dir: args.plan_dir.clone(),
            drain: Duration::from_secs(args.drain_seconds),
            exit_with_stdin: args.exit_with_stdin,
            sandbox: Sandbox::default(),
        })
    }
}

/// Who is admitted at an address: without a token only who reaches loopback, unless that is asked for.
pub(crate) fn guard_files(
    listen: SocketAddr,
    tokens: Option<PathBuf>,
    insecure: bool,
    certificate: Option<(PathBuf, PathBuf)>,
) -> Result<GuardFiles, SettingsError> {
    let is_guarded_by_place = tokens.is_none() && !insecure;
    if is_guarded_by_place && !listen.ip().to_canonical().is_loopback() {
        return Err(SettingsError::NoToken { listen });
    }
    Ok(GuardFiles { tokens, certificate, own_names_only: is_guarded_by_place })
}

/// Whole CPUs that the cgroup's quota and the affinity mask allow, at least one.
#[must_use]
pub fn cpu_quota() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: WorkerArgs,
    }

    fn settings(words: &[&str]) -> Result<Settings, SettingsError> {
        let words = ["worker", "--pipeline", "p.yaml"].iter().chain(words);
        Settings::new(&Line::try_parse_from(words).unwrap().args)
    }

    /// It was "no folder", where there was nothing at all.
    #[test]
    fn a_cache_folder_that_does_not_exist_is_told_apart_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (path, said) in
            [(folder.path().join("absent"), "does not exist; make it"), (file, "is no folder")]
        {
            let error = settings(&["--cache-dir", path.to_str().unwrap()]).err().unwrap().to_string();
            assert!(error.contains(&format!("{} {said}", path.display())), "{error}");
        }
    }

    #[test]
    fn without_a_token_only_this_machine_is_served_unless_told_otherwise() {
        let token = ["--token-file", "tokens"];
        let cases: [(&str, &[&str], bool); 12] = [
            ("127.0.0.1:8470", &[], true),
            ("127.9.9.9:0", &[], true),
            ("[::1]:8470", &[], true),
            ("[::ffff:127.0.0.1]:8470", &[], true),
            ("0.0.0.0:8470", &[], false),
            ("[::]:8470", &[], false),
            ("10.0.0.7:8470", &[], false),
            ("[::ffff:10.0.0.7]:8470", &[], false),
            ("0.0.0.0:8470", &token, true),
            ("[::]:8470", &token, true),
            ("0.0.0.0:8470", &["--insecure-no-token"], true),
            ("0.0.0.0:8470", &["--tls-cert", "c.pem", "--tls-key", "k.pem"], false),
        ];
        for (listen, more, is_taken) in cases {
            let words: Vec<&str> = ["--listen", listen].into_iter().chain(more.iter().copied()).collect();
            match settings(&words) {
                Ok(settings) => assert!(is_taken, "{listen} {more:?}: {settings:?}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(!is_taken && text.contains("--insecure-no-token"), "{listen} {more:?}: {text}");
                    assert!(text.contains("--token-file") && text.contains(listen), "{text}");
                }
            }
        }
        assert!(Line::try_parse_from(["worker", "--pipeline", "p", "--tls-cert", "c.pem"]).is_err());
    }

    #[test]
    fn names_of_others_are_refused_only_where_nothing_else_protects() {
        let own_names_only = |words: &[&str]| settings(words).unwrap().access.own_names_only;
        assert!(own_names_only(&[]));
        assert!(!own_names_only(&["--insecure-no-token"]));
        assert!(!own_names_only(&["--token-file", "tokens"]));
    }
}
