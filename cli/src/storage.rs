//! Takes folders, gives an S3 server over them for as long as it is held, and a folder with its keys.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::scratch::Scratch;
use anyhow::{Context as _, bail, ensure};
use feedmill_embedded_s3::{EmbeddedS3, Keys};

/// A folder that is served as S3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketFolder {
    /// The bucket that the folder is; None = its subfolders are the buckets.
    bucket: Option<String>,
    folder: PathBuf,
}

impl FromStr for BucketFolder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (bucket, folder) = match text.split_once('=') {
            Some((bucket, folder)) => (Some(bucket.to_owned()), folder),
            None => (None, text),
        };
        if folder.is_empty() || bucket.as_deref() == Some("") {
            return Err("write FOLDER, or BUCKET=FOLDER".into());
        }
        Ok(Self { bucket, folder: folder.into() })
    }
}

/// A running S3 server of this process. Ends, and takes its keys away, when dropped.
pub struct Storage {
    server: EmbeddedS3,
    /// Keys, and links to the folders.
    scratch: Scratch,
}

const BUCKETS: &str = "buckets";
const KEYS: &str = "keys";

impl Storage {
    /// Serves the folders, or nothing when there are none.
    ///
    /// # Errors
    /// A folder that is not there, two buckets of one name.
    pub async fn start(folders: &[BucketFolder]) -> anyhow::Result<Option<Self>> {
        if folders.is_empty() {
            return Ok(None);
        }
        // Only its owner may look into it.
        let scratch = Scratch::new("s3").context("cannot make a folder for the embedded S3 server")?;
        // Links, so that the server's own files lie here and never beside the data.
        let buckets = scratch.path().join(BUCKETS);
        fs::create_dir(&buckets)?;
        for (bucket, folder) in list(folders)? {
            std::os::unix::fs::symlink(&folder, buckets.join(&bucket)).with_context(|| {
                format!(
                    "cannot serve {} as bucket {bucket}; is there another one of this name?",
                    folder.display()
                )
            })?;
        }
        let keys = Keys { access_key_id: random_hex(8)?, secret_access_key: random_hex(20)? };
        let folder = scratch.path().join(KEYS);
        fs::create_dir(&folder)?;
        fs::write(folder.join("access-key-id"), &keys.access_key_id)?;
        fs::write(folder.join("secret-access-key"), &keys.secret_access_key)?;
        let server = EmbeddedS3::start(&buckets, &keys).await?;
        Ok(Some(Self { server, scratch }))
    }

    /// `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.server.endpoint()
    }

    /// The folder with the files `access-key-id` and `secret-access-key`.
    pub fn keys(&self) -> PathBuf {
        self.scratch.path().join(KEYS)
    }
}

/// Each bucket and its folder.
fn list(folders: &[BucketFolder]) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut buckets = Vec::new();
    for BucketFolder { bucket, folder } in folders {
        let absolute = fs::canonicalize(folder)
            .with_context(|| format!("--embedded-s3: cannot use the folder {}", folder.display()))?;
        ensure!(absolute.is_dir(), "--embedded-s3: {} is no folder", folder.display());
        match bucket {
            Some(bucket) => buckets.push((checked(bucket)?, absolute)),
            None => buckets.extend(subfolders(&absolute)?),
        }
    }
    Ok(buckets)
}

fn subfolders(folder: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut buckets = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !name.starts_with('.') {
            buckets.push((checked(name)?, path.clone()));
        }
    }
    ensure!(
        !buckets.is_empty(),
        "--embedded-s3: {} has no subfolders to be buckets; to serve it as one bucket write --embedded-s3 BUCKET={0}",
        folder.display()
    );
    Ok(buckets)
}

fn checked(bucket: &str) -> anyhow::Result<String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    if (3..=63).contains(&bucket.len()) && bucket.bytes().all(plain) && !bucket.starts_with(['-', '.']) {
        return Ok(bucket.to_owned());
    }
    bail!(
        "--embedded-s3: {bucket:?} is no bucket's name: 3 to 63 lower-case letters, digits, minus and dots, a letter or digit first"
    )
}

fn random_hex(bytes: usize) -> anyhow::Result<String> {
    let mut buffer = vec![0; bytes];
    let mut source = fs::File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    source.read_exact(&mut buffer).context("cannot read /dev/urandom")?;
    Ok(buffer.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_buckets_or_hold_buckets() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["one", "two-2", ".git"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let names = |text: String| {
            let mut names: Vec<String> =
                list(&[text.parse().unwrap()])?.into_iter().map(|(bucket, _)| bucket).collect();
            names.sort();
            anyhow::Ok(names)
        };
        let path = folder.path().display();
        assert_eq!(names(path.to_string()).unwrap(), ["one", "two-2"]);
        assert_eq!(names(format!("other={path}")).unwrap(), ["other"]);
        for (text, part) in [
            (format!("{path}/one"), "no subfolders"),
            (format!("{path}/none"), "cannot use"),
            (format!("Bucket={path}"), "no bucket's name"),
        ] {
            assert!(names(text.clone()).unwrap_err().to_string().contains(part), "{text}");
        }
    }
}
