//! Takes a path, gives a socket there that is nobody else's.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use tokio::net::UnixListener;

/// The socket that readers connect to; its file goes with it.
pub(crate) struct Door {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode, so that another agent's socket at the same place is left alone.
    file: (u64, u64),
}

impl Door {
    /// Listens at a path. What a dead agent left there is removed.
    pub(crate) fn open(path: &Path, mode: u32) -> anyhow::Result<Self> {
        let at = || format!("cannot listen at {}; choose another path with --socket", path.display());
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match std::os::unix::net::UnixStream::connect(path) {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        std::fs::remove_file(path).with_context(at)?;
                        UnixListener::bind(path).with_context(at)?
                    }
                    Ok(_) => anyhow::bail!("an agent listens at {} already", path.display()),
                    Err(error) => return Err(error).with_context(at),
                }
            }
            bound => bound.with_context(at)?,
        };
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions)
            .with_context(|| format!("cannot set the mode of {}", path.display()))?;
        let file = std::fs::metadata(path).with_context(at)?;
        Ok(Self { listener, path: path.to_owned(), file: (file.dev(), file.ino()) })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if std::fs::metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file) {
            drop(std::fs::remove_file(&self.path));
        }
    }
}
