//! Takes a path and a limit, gives the bytes of a plain file, or how reading failed. Blocking; called on the blocking pool.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use bytes::Bytes;

use crate::error::{AttemptError, TransientKind};
use crate::stores::{Fetched, ObjectVersion};

/// Opens a plain file for reading. A pipe or device is refused, and does not block.
pub(crate) fn open(path: &Path) -> Result<(File, Metadata), AttemptError> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| meaning(&error))?;
    let metadata = file.metadata().map_err(|error| meaning(&error))?;
    if metadata.is_file() { Ok((file, metadata)) } else { Err(AttemptError::InvalidKey) }
}

pub(crate) fn version(metadata: &Metadata) -> ObjectVersion {
    let tag = format!("{}.{:09}-{}", metadata.mtime(), metadata.mtime_nsec(), metadata.ino());
    ObjectVersion { size: metadata.len(), tag }
}

pub(crate) fn get(path: &Path, range: Option<Range<u64>>, max_bytes: u64) -> Result<Fetched, AttemptError> {
    let (file, metadata) = open(path)?;
    let range = range.unwrap_or(0..metadata.len());
    let bytes = range.end.min(metadata.len()).saturating_sub(range.start);
    if bytes > max_bytes {
        return Err(AttemptError::TooLarge { bytes, limit: max_bytes });
    }
    let length = usize::try_from(bytes).map_err(|_| AttemptError::TooLarge { bytes, limit: max_bytes })?;
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, range.start).map_err(|error| meaning(&error))?;
    let after = version(&file.metadata().map_err(|error| meaning(&error))?);
    if after != version(&metadata) {
        return Err(AttemptError::transient(
            TransientKind::IncompleteBody,
            "the file changed while it was read",
        ));
    }
    Ok(Fetched { bytes: Bytes::from(buffer), version: after })
}

/// Names of the plain files in a folder that begin with `begins`. Names that are not UTF-8 cannot be written in a pipeline and are left
/// out.
pub(crate) fn list(folder: &Path, begins: &str, most: usize) -> Result<Vec<String>, AttemptError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| meaning(&error))? {
        let entry = entry.map_err(|error| meaning(&error))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Links are followed: what they point at is the choice of whoever made the folder.
        if name.starts_with(begins)
            && std::fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file())
        {
            names.push(name);
            if names.len() > most {
                break;
            }
        }
    }
    Ok(names)
}

fn meaning(error: &io::Error) -> AttemptError {
    match error.kind() {
        ErrorKind::NotFound => AttemptError::Missing,
        ErrorKind::PermissionDenied => AttemptError::Denied { code: "EACCES".into() },
        // A name that no file can have: a file as a folder, too long, a folder, a NUL.
        ErrorKind::NotADirectory
        | ErrorKind::InvalidFilename
        | ErrorKind::IsADirectory
        | ErrorKind::InvalidInput => AttemptError::InvalidKey,
        ErrorKind::UnexpectedEof => {
            AttemptError::transient(TransientKind::IncompleteBody, "the file became shorter")
        }
        // Opening a socket or a device without a driver; following links in a circle.
        _ if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ELOOP)) => AttemptError::InvalidKey,
        _ => AttemptError::transient(TransientKind::LocalIo, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plain_file_is_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, b"0123456789").unwrap();
        assert_eq!(get(&file, None, 10).unwrap().bytes, "0123456789");
        assert_eq!(get(&file, Some(2..5), 10).unwrap().bytes, "234");
        assert_eq!(get(&file, Some(8..50), 10).unwrap().bytes, "89");
        assert!(matches!(get(&file, None, 9), Err(AttemptError::TooLarge { bytes: 10, limit: 9 })));
        assert!(matches!(get(folder.path(), None, 10), Err(AttemptError::InvalidKey)));
        assert!(matches!(get(&file.join("b"), None, 10), Err(AttemptError::InvalidKey)));
        assert!(matches!(get(&folder.path().join("b"), None, 10), Err(AttemptError::Missing)));
        assert!(matches!(get(&folder.path().join("x".repeat(300)), None, 10), Err(AttemptError::InvalidKey)));
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(matches!(get(&socket, None, 10), Err(AttemptError::InvalidKey)));
        let circle = folder.path().join("circle");
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        assert!(matches!(get(&circle, None, 10), Err(AttemptError::InvalidKey)));
    }
}
