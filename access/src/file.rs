//! Takes files, gives what is made of them, and makes it anew when they change.
//!
//! What a file holds is compared, not its times: a secret that Kubernetes mounts is a link that turns elsewhere, and clocks of
//! file systems are coarse. The files are small.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sha2::{Digest as _, Sha256};

use crate::error::AccessError;

/// Bundles of authorities have a quarter of this.
const MAX_FILE_BYTES: u64 = 1 << 20;

type Make<T> = dyn Fn(&[Vec<u8>]) -> Result<T, AccessError> + Send + Sync;

/// Something made of files.
pub(crate) struct Reread<T> {
    what: &'static str,
    paths: Vec<PathBuf>,
    make: Box<Make<T>>,
    current: RwLock<Arc<T>>,
    seen: Mutex<Seen>,
    /// Times that something new was made of other contents.
    changes: AtomicU64,
    /// Times that other contents could not be used.
    failures: AtomicU64,
}

/// What the files were when they were last looked at.
#[derive(PartialEq, Eq)]
enum Seen {
    Content([u8; 32]),
    Unreadable,
}

/// What looking again has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing new.
    Same,
    /// Something new is current.
    Changed,
    /// The files cannot be used; what was made before stays.
    Broken,
}

impl<T> Reread<T> {
    /// Reads the files and makes it; `what` names it in logs.
    pub(crate) fn open(
        what: &'static str,
        paths: Vec<PathBuf>,
        make: impl Fn(&[Vec<u8>]) -> Result<T, AccessError> + Send + Sync + 'static,
    ) -> Result<Self, AccessError> {
        let contents = read(&paths)?;
        let current = RwLock::new(Arc::new(make(&contents)?));
        let seen = Mutex::new(Seen::Content(digest(&contents)));
        let (changes, failures) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { what, paths, make: Box::new(make), current, seen, changes, failures })
    }

    /// What was last made.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Times that changed files came into use, and times that they could not.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.changes.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// Looks at the files again. Says in the log what follows, once for each change.
    pub(crate) fn look(&self) -> Look {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let read = read(&self.paths);
        let now = read.as_ref().map_or(Seen::Unreadable, |contents| Seen::Content(digest(contents)));
        if now == *seen {
            return Look::Same;
        }
        // Only a change is news.
        *seen = now;
        match read.and_then(|contents| (self.make)(&contents)) {
            Ok(made) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(made);
                self.changes.fetch_add(1, Ordering::Relaxed);
                tracing::info!(what = self.what, files = ?self.paths, "changed files are in use");
                Look::Changed
            }
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let reason = chain(&error);
                tracing::warn!(
                    what = self.what,
                    reason,
                    "changed files cannot be used; the ones before stay in use"
                );
                Look::Broken
            }
        }
    }
}

/// An error and its sources in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

fn read(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, AccessError> {
    paths.iter().map(|path| read_one(path)).collect()
}

pub(crate) fn read_one(path: &Path) -> Result<Vec<u8>, AccessError> {
    let failed = |source| AccessError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(AccessError::TooLong { path: path.to_owned(), limit: MAX_FILE_BYTES });
    }
    Ok(bytes)
}

fn digest(contents: &[Vec<u8>]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for content in contents {
        hasher.update((content.len() as u64).to_le_bytes());
        hasher.update(content);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        let parse = |contents: &[Vec<u8>]| {
            let text = String::from_utf8_lossy(&contents[0]).into_owned();
            text.parse::<u32>().map_err(|error| AccessError::Tls(error.to_string()))
        };
        assert!(Reread::open("number", vec![path.clone()], parse).is_err(), "no file");
        std::fs::write(&path, "1").unwrap();
        let number = Reread::open("number", vec![path.clone()], parse).unwrap();
        let steps: [(Option<&str>, Look, u32); 9] = [
            (Some("1"), Look::Same, 1),
            (Some("2"), Look::Changed, 2),
            (Some("x"), Look::Broken, 2),
            (Some("x"), Look::Same, 2),
            (None, Look::Broken, 2),
            (None, Look::Same, 2),
            (Some(""), Look::Broken, 2),
            (Some("2"), Look::Changed, 2),
            (Some("3"), Look::Changed, 3),
        ];
        for (content, look, value) in steps {
            match content {
                Some(content) => std::fs::write(&path, content).unwrap(),
                None => drop(std::fs::remove_file(&path)),
            }
            assert_eq!((number.look(), *number.current()), (look, value), "{content:?}");
        }
        let counts = (number.changes.into_inner(), number.failures.into_inner());
        assert_eq!(counts, (3, 3));
    }

    #[test]
    fn a_file_without_end_is_not_read_to_its_end() {
        let endless = vec![PathBuf::from("/dev/zero")];
        let error = Reread::open("zeros", endless, |_| Ok(())).err().unwrap();
        assert!(matches!(error, AccessError::TooLong { .. }), "{error}");
    }
}
