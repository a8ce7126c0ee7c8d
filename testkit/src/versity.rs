//! Takes a folder, gives versitygw over it: an S3 server that shares no line of code with ours.
//!
//! The folders right below the given one are the buckets. Objects are put through the server ([`crate::client`]), so that they have
//! ETags; what S3 knows of them lies in a folder beside, so any file system will do.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::certificates::Certificate;
use crate::{TestKeys, client_with};

/// Buckets are reached as `BUCKET.s3.test` too.
pub const VIRTUAL_DOMAIN: &str = "s3.test";

/// A running server; ends when dropped, and with the process that started it.
#[derive(Debug)]
pub struct VersityGw {
    /// A shell that ends the server when its standard input is closed, which happens whatever becomes of this process.
    shell: Child,
    server: u32,
    address: SocketAddr,
    has_tls: bool,
    keys: (String, String),
    /// Metadata, users, log.
    _beside: TempDir,
}

impl VersityGw {
    /// Serves `folder` on a free port of 127.0.0.1. Builds the server first when it is not built yet, which takes minutes once.
    #[must_use]
    pub fn start(folder: &Path) -> Self {
        let keys = (TestKeys::ACCESS_KEY_ID, TestKeys::SECRET_ACCESS_KEY);
        Self::start_with(folder, keys)
    }

    /// The same with other keys: id and secret.
    #[must_use]
    pub fn start_with(folder: &Path, keys: (&str, &str)) -> Self {
        Self::launch(folder, keys, None)
    }

    /// The same with the usual keys, over TLS alone.
    #[must_use]
    pub fn start_with_tls(folder: &Path, certificate: &Certificate) -> Self {
        Self::launch(folder, (TestKeys::ACCESS_KEY_ID, TestKeys::SECRET_ACCESS_KEY), Some(certificate))
    }

    fn launch(folder: &Path, keys: (&str, &str), certificate: Option<&Certificate>) -> Self {
        let tls = certificate.map(|files| {
            [OsStr::new("--cert"), files.certificate.as_os_str(), OsStr::new("--key"), files.key.as_os_str()]
        });
        let beside = tempfile::tempdir().expect("a folder for temporary files");
        let [metadata, users, log] = ["metadata", "users", "log"].map(|name| beside.path().join(name));
        for made in [&metadata, &users] {
            fs::create_dir_all(made).expect("a folder that can be written to");
        }
        let script = "log=$1; shift; \"$@\" >\"$log\" 2>&1 & echo $!; cat >/dev/null; kill $!; wait";
        let mut shell = Command::new("sh")
            .args(["-c", script, "sh"])
            .args([&log, program()])
            // Keys by environment: command lines can be read by everybody.
            .env("ROOT_ACCESS_KEY", keys.0)
            .env("ROOT_SECRET_KEY", keys.1)
            .args(["--port", "127.0.0.1:0", "--virtual-domain", VIRTUAL_DOMAIN, "--keep-alive", "--iam-dir"])
            .arg(users)
            .args(tls.into_iter().flatten())
            .args(["posix", "--sidecar"])
            .args([metadata.as_path(), folder])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The shell would say that the server was ended.
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let mut line = String::new();
        let output = shell.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("the server's process id");
        let server: u32 = line.trim().parse().expect("the server's process id");
        let address = loop {
            // Each look takes system calls of its own, so this is no waiting by the clock.
            if let Some(port) = listening_port(server) {
                break SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            }
            let alive = fs::read_to_string(format!("/proc/{server}/stat"));
            let gone =
                alive.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')));
            assert!(!gone, "versitygw ended: {}", fs::read_to_string(&log).unwrap_or_default());
            std::thread::yield_now();
        };
        let keys = (keys.0.into(), keys.1.into());
        Self { shell, server, address, has_tls: certificate.is_some(), keys, _beside: beside }
    }

    /// Makes an empty bucket.
    pub async fn create_bucket(&self, name: &str) {
        let (id, secret) = &self.keys;
        let client = client_with(&self.endpoint(), (id, secret));
        client.create_bucket().bucket(name).send().await.expect("a new bucket");
    }

    /// Makes a user who may do nothing until a bucket's policy says otherwise.
    pub fn create_user(&self, access_key_id: &str, secret_access_key: &str) {
        let (id, secret) = &self.keys;
        let output = Command::new(program())
            .args(["admin", "--access", id, "--secret", secret])
            .args(["--endpoint-url", &self.endpoint(), "create-user", "--role", "user"])
            .args(["--access", access_key_id, "--secret", secret_access_key])
            .output()
            .expect("versitygw");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// `http://127.0.0.1:PORT`, or `https`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http{}://{}", if self.has_tls { "s" } else { "" }, self.address)
    }

    /// Address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's process.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.server
    }
}

impl Drop for VersityGw {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // It only fails for a process that was waited for already.
        let _ = self.shell.wait();
    }
}

/// The built program, by `tools/versitygw.sh`.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/versitygw.sh");
        let output = Command::new(script).output().expect("tools/versitygw.sh");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        PathBuf::from(String::from_utf8(output.stdout).expect("a path in UTF-8").trim_end())
    })
}

/// The TCP port of 127.0.0.1 that a process listens on, by proc_pid_fd(5) and proc_pid_net(5).
fn listening_port(process: u32) -> Option<u16> {
    let sockets: HashSet<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .ok()?
        .filter_map(|entry| {
            let target = fs::read_link(entry.ok()?.path()).ok()?;
            let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).ok()?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, state, _, _, _, _, _, inode, ..] = fields[..] else {
            return None;
        };
        let (_, port) = local.split_once(':')?;
        (state == "0A" && sockets.contains(inode)).then(|| u16::from_str_radix(port, 16).ok())?
    })
}
