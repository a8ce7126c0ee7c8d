//! Takes a path, gives a file whose readers find the former contents or the new ones, never half of them.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A file that is only ever replaced as a whole, by one beside it that takes its name.
#[derive(Clone, Debug)]
pub struct WholeFile(PathBuf);

impl WholeFile {
    /// The file at `path`, which need not exist. A link is followed: what it leads to is replaced, not the link.
    ///
    /// # Errors
    /// Something is there that is no plain file: taking its name would remove it, as `/dev/null` for a whole machine. A link to
    /// nowhere; a folder that cannot be searched.
    pub fn at(path: &Path) -> io::Result<Self> {
        let path = match fs::canonicalize(path) {
            Ok(real) if fs::metadata(&real)?.is_file() => real,
            Ok(_) => return Err(io::Error::new(ErrorKind::InvalidInput, "it is there and is no plain file")),
            Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_ok() => {
                return Err(io::Error::new(ErrorKind::InvalidInput, "it is a link to nowhere"));
            }
            // Whether its folder exists shows when it is written.
            Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error),
        };
        Ok(Self(path))
    }

    /// Replaces it by what `fill` writes. What was there stays until all of that is on the disk.
    ///
    /// # Errors
    /// No room, no permission, no such folder; those of `fill`.
    pub fn replace(&self, fill: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> io::Result<()> {
        let folder = self.0.parent().filter(|folder| !folder.as_os_str().is_empty());
        // What anybody could read stays so; the process's mask takes from that what it takes from every new file.
        let mode = fs::metadata(&self.0).map_or(0o666, |there| there.permissions().mode() & 0o777);
        let mut file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        let mut out = io::BufWriter::new(file.as_file_mut());
        fill(&mut out)?;
        out.flush()?;
        drop(out);
        file.as_file().sync_data()?;
        file.persist(&self.0).map(drop).map_err(|error| error.error)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replace(path: &Path, text: &str) -> io::Result<()> {
        WholeFile::at(path)?.replace(|out| out.write_all(text.as_bytes()))
    }

    #[test]
    fn a_file_is_made_and_replaced_and_nothing_stays_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        replace(&path, "one").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        replace(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let refused = WholeFile::at(&path).unwrap().replace(|_| Err(io::Error::other("no more")));
        assert_eq!(refused.unwrap_err().to_string(), "no more");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// `/dev/full` given as a list's file became a plain file.
    #[test]
    fn what_is_no_plain_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [Path::new("/dev/null"), folder.path(), &socket] {
            let error = WholeFile::at(path).unwrap_err().to_string();
            assert!(error.contains("no plain file"), "{}: {error}", path.display());
        }
        let nowhere = folder.path().join("nowhere");
        std::os::unix::fs::symlink(folder.path().join("gone"), &nowhere).unwrap();
        assert!(WholeFile::at(&nowhere).unwrap_err().to_string().contains("link to nowhere"));
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "before").unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        replace(&link, "after").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().file_type().is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "after");
    }
}
