//! Takes a folder of key files, gives the keys in them, fresh after each rotation.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};

const ACCESS_KEY_ID: &str = "access-key-id";
const SECRET_ACCESS_KEY: &str = "secret-access-key";
const SESSION_TOKEN: &str = "session-token";

/// A key file longer than this is no key file.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Reading is tried this often when the files change in between: id and secret must belong together.
const READ_ATTEMPTS: usize = 5;

/// Keys from the files of a folder. Each request looks at the files' metadata (three `stat` calls) and reads them again only when it
/// differs, so the SDK's own cache must be off.
#[derive(Debug)]
pub(crate) struct FolderCredentials {
    folder: PathBuf,
    last: Mutex<Option<(Fingerprint, Credentials)>>,
}

/// What tells a file that was written or replaced from the one read before.
type Fingerprint = [Option<(u64, u64, i64, i64, u64)>; 3];

impl FolderCredentials {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, last: Mutex::new(None) }
    }

    fn load(&self) -> Result<Credentials, CredentialsError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = self.fingerprint()?;
        if let Some((seen, credentials)) = &*last
            && *seen == before
        {
            return Ok(credentials.clone());
        }
        for _ in 0..READ_ATTEMPTS {
            let read = self.read();
            let after = self.fingerprint()?;
            if before == after {
                let credentials = read?;
                *last = Some((after, credentials.clone()));
                return Ok(credentials);
            }
            before = after;
        }
        Err(CredentialsError::provider_error(format!("the files in {} keep changing", self.folder.display())))
    }

    fn read(&self) -> Result<Credentials, CredentialsError> {
        let required = |name: &str| {
            read_key(&self.folder.join(name))?.ok_or_else(|| {
                CredentialsError::provider_error(format!(
                    "{} does not exist",
                    self.folder.join(name).display()
                ))
            })
        };
        let id = required(ACCESS_KEY_ID)?;
        let secret = required(SECRET_ACCESS_KEY)?;
        let token = read_key(&self.folder.join(SESSION_TOKEN))?.filter(|token| !token.is_empty());
        Ok(Credentials::new(id, secret, token, None, "folder"))
    }

    fn fingerprint(&self) -> Result<Fingerprint, CredentialsError> {
        let mut seen = Fingerprint::default();
        for (slot, name) in seen.iter_mut().zip([ACCESS_KEY_ID, SECRET_ACCESS_KEY, SESSION_TOKEN]) {
            *slot = match fs::metadata(self.folder.join(name)) {
                Ok(metadata) => Some(identity(&metadata)),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(CredentialsError::provider_error(error)),
            };
        }
        Ok(seen)
    }
}

fn identity(metadata: &Metadata) -> (u64, u64, i64, i64, u64) {
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len())
}

fn read_key(path: &Path) -> Result<Option<String>, CredentialsError> {
    let bytes = match fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
            return Err(CredentialsError::provider_error(format!(
                "{} is too long for a key",
                path.display()
            )));
        }
        Ok(_) => fs::read_to_string(path).map_err(CredentialsError::provider_error)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CredentialsError::provider_error(error)),
    };
    // People make such files with editors and `echo`; keys never contain white space.
    Ok(Some(bytes.trim().to_owned()))
}

impl ProvideCredentials for FolderCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::ready(self.load())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_again_when_a_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let staged = folder.path().join("staged");
            fs::write(&staged, text).unwrap();
            fs::rename(staged, folder.path().join(name)).unwrap();
        };
        let source = FolderCredentials::new(folder.path().to_owned());
        assert!(source.load().is_err());
        write("access-key-id", "one\n");
        write("secret-access-key", " secret ");
        let first = source.load().unwrap();
        assert_eq!(
            (first.access_key_id(), first.secret_access_key(), first.session_token()),
            ("one", "secret", None)
        );
        write("access-key-id", "two");
        write("session-token", "token\n");
        let second = source.load().unwrap();
        assert_eq!((second.access_key_id(), second.session_token()), ("two", Some("token")));
        fs::remove_file(folder.path().join("secret-access-key")).unwrap();
        assert!(source.load().is_err());
    }
}
