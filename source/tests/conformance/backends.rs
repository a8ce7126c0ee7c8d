//! The backends that everything here runs on: two S3 servers that have no code in common, the second one in both styles, and files.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use feedmill_source::{CredentialsSource, FetchSettings, ObjectPrefix, ObjectUri, S3Settings, Stores};
use feedmill_testkit::{EmbeddedS3, FaultProxy, TestKeys, VIRTUAL_DOMAIN, VersityGw, client};
use tempfile::TempDir;

pub const BUCKET: &str = "bucket";

/// What serves the folder.
pub enum Server {
    Embedded(EmbeddedS3),
    Versity(VersityGw),
    Files,
}

/// One backend with an empty bucket.
pub struct Backend {
    pub server: Server,
    /// Before the server, so that requests can be seen and broken.
    pub proxy: Option<FaultProxy>,
    s3: S3Settings,
    folder: TempDir,
}

impl Backend {
    /// Ours, in this process.
    pub async fn embedded() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = EmbeddedS3::start(folder.path(), &TestKeys::keys()).await.unwrap();
        server.create_bucket(BUCKET).unwrap();
        let proxy = FaultProxy::start(server.address()).await;
        let s3 = path_style(&proxy);
        Self { server: Server::Embedded(server), proxy: Some(proxy), s3, folder }
    }

    /// versitygw with the bucket in the path.
    pub async fn versity() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = VersityGw::start(folder.path());
        server.create_bucket(BUCKET).await;
        let proxy = FaultProxy::start(server.address()).await;
        let s3 = path_style(&proxy);
        Self { server: Server::Versity(server), proxy: Some(proxy), s3, folder }
    }

    /// versitygw with the bucket in the host's name, as at AWS.
    pub async fn versity_by_host() -> Self {
        let backend = Self::versity().await;
        let port = backend.proxy().address().port();
        let s3 = S3Settings {
            endpoint: Some(format!("http://{VIRTUAL_DOMAIN}:{port}")),
            force_path_style: false,
            connect_to: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            ..backend.s3
        };
        Self { s3, ..backend }
    }

    /// A folder.
    pub async fn files() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        Self { server: Server::Files, proxy: None, s3: S3Settings::default(), folder }
    }

    pub fn proxy(&self) -> &FaultProxy {
        self.proxy.as_ref().expect("an S3 server")
    }

    /// A client that puts objects as other programs do.
    pub fn client(&self) -> aws_sdk_s3::Client {
        match &self.server {
            Server::Embedded(server) => client(&server.endpoint()),
            Server::Versity(server) => client(&server.endpoint()),
            Server::Files => panic!("files have no client"),
        }
    }

    /// An object; what lies below the embedded server and the files is a plain folder.
    pub async fn put(&self, key: &str, bytes: &[u8]) {
        if let Server::Versity(_) = self.server {
            let put = self.client().put_object().bucket(BUCKET).key(key).body(bytes.to_vec().into());
            put.send().await.unwrap_or_else(|error| panic!("{key:?}: {error:?}"));
            return;
        }
        let path = self.folder.path().join(BUCKET).join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap_or_else(|error| panic!("{key:?}: {error}"));
    }

    pub fn uri(&self, key: &str) -> ObjectUri {
        let bucket = BUCKET.to_owned();
        match self.server {
            Server::Files => ObjectUri::File(self.folder.path().join(BUCKET).join(key)),
            _ => ObjectUri::S3 { bucket, key: key.to_owned() },
        }
    }

    pub fn prefix(&self, folder: &str) -> ObjectPrefix {
        match self.server {
            Server::Files => ObjectPrefix::File(self.folder.path().join(BUCKET).join(folder)),
            _ => ObjectPrefix::S3 { bucket: BUCKET.into(), prefix: format!("{folder}/") },
        }
    }

    pub fn stores(&self) -> Stores {
        self.stores_with(|_, _| ())
    }

    /// Stores whose settings differ from the usual ones.
    pub fn stores_with(&self, change: impl FnOnce(&mut S3Settings, &mut FetchSettings)) -> Stores {
        let mut s3 = self.s3.clone();
        s3.credentials = keys(TestKeys::ACCESS_KEY_ID, TestKeys::SECRET_ACCESS_KEY, None);
        let mut settings = FetchSettings {
            max_attempts: 3,
            retry_base: Duration::from_millis(1),
            missing_pause: Duration::from_millis(1),
            connect_timeout: Duration::from_secs(60),
            read_timeout: Duration::from_secs(60),
            get_deadline: Duration::from_secs(60),
            ..FetchSettings::default()
        };
        change(&mut s3, &mut settings);
        Stores::new(s3, settings).unwrap()
    }
}

fn path_style(proxy: &FaultProxy) -> S3Settings {
    S3Settings { endpoint: Some(proxy.endpoint()), force_path_style: true, ..S3Settings::default() }
}

/// Given keys.
pub fn keys(id: &str, secret: &str, session_token: Option<&str>) -> CredentialsSource {
    CredentialsSource::Static {
        access_key_id: id.into(),
        secret_access_key: secret.into(),
        session_token: session_token.map(str::to_owned),
    }
}

/// A key file as a mounted secret has it: replaced at once.
pub fn write_key(folder: &Path, name: &str, text: &str) {
    let staged = folder.join("staged");
    std::fs::write(&staged, text).unwrap();
    std::fs::rename(staged, folder.join(name)).unwrap();
}
