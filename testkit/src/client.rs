//! Takes an endpoint, gives a client that puts objects there, with the SDK's own ways of doing so.

use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Region};

use crate::TestKeys;

/// A client with the tests' keys, path style.
#[must_use]
pub fn client(endpoint: &str) -> Client {
    client_with(endpoint, (TestKeys::ACCESS_KEY_ID, TestKeys::SECRET_ACCESS_KEY))
}

/// The same with other keys: id and secret.
#[must_use]
pub fn client_with(endpoint: &str, (id, secret): (&str, &str)) -> Client {
    let keys = Credentials::new(id, secret, None, None, "testkit");
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new("us-east-1"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .force_path_style(true)
        .endpoint_url(endpoint)
        .credentials_provider(keys);
    Client::from_conf(config.build())
}

/// Puts every file below `folder` into `bucket`, under its path below the folder.
pub async fn put_folder(client: &Client, bucket: &str, folder: &std::path::Path, prefix: &str) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
        let key = format!("{prefix}{name}");
        if path.is_dir() {
            Box::pin(put_folder(client, bucket, &path, &format!("{key}/"))).await;
        } else {
            let bytes = std::fs::read(&path).expect("a file");
            client.put_object().bucket(bucket).key(key).body(bytes.into()).send().await.expect("a put");
        }
    }
}
