//! Takes a purpose, gives a folder for temporary files that goes with this process, and takes away those of processes
//! that were killed.
//!
//! A folder's name carries the process's id, and a file in it is locked for as long as the process lives. A folder is stale
//! when it is this user's, no process has its id, and nobody holds its lock: the id alone says nothing where processes in
//! different containers share a folder for temporary files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Once;

use tempfile::TempDir;

const PREFIX: &str = "feedmill-";
const LOCK: &str = "lock";

/// A folder that only its owner may look into; it is removed when dropped.
pub struct Scratch {
    folder: TempDir,
    /// Locked until the process ends, however it ends.
    _lock: File,
}

impl Scratch {
    /// A new folder below the system's folder for temporary files. The first one of a process removes stale ones.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(what: &str) -> io::Result<Self> {
        static CLEANED: Once = Once::new();
        let all = std::env::temp_dir();
        CLEANED.call_once(|| remove_stale(&all));
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-{what}-", std::process::id()))
            .tempdir_in(all)?;
        let lock = File::create(folder.path().join(LOCK))?;
        lock.lock()?;
        Ok(Self { folder, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes what killed processes of this user left behind. What cannot be looked at or removed stays.
fn remove_stale(all: &Path) {
    let Ok(entries) = fs::read_dir(all) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_stale(path)) {
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::debug!(path = %path.display(), %error, "a folder of a killed process stays");
        }
    }
}

fn is_stale(path: &Path) -> bool {
    // Not followed: a link with such a name is somebody's trick.
    let ours = fs::symlink_metadata(path).is_ok_and(|metadata| {
        metadata.file_type().is_dir() && metadata.uid() == rustix::process::getuid().as_raw()
    });
    ours && owner(path).is_some_and(|owner| !lives(owner)) && is_unlocked(&path.join(LOCK))
}

/// The id of the process that a folder's name carries.
fn owner(path: &Path) -> Option<rustix::process::Pid> {
    let (id, _) = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split_once('-')?;
    rustix::process::Pid::from_raw(id.parse().ok()?)
}

fn lives(owner: rustix::process::Pid) -> bool {
    // Whatever else the answer is, there is somebody.
    rustix::process::test_kill_process(owner) != Err(rustix::io::Errno::SRCH)
}

fn is_unlocked(lock: &PathBuf) -> bool {
    let plain = fs::symlink_metadata(lock).is_ok_and(|metadata| metadata.file_type().is_file());
    plain && File::open(lock).is_ok_and(|file| file.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// An id that no process has: that of one that has ended and was waited for.
    fn dead() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn folders_of_killed_processes_are_removed_and_no_others() {
        let all = tempfile::tempdir().unwrap();
        let make = |name: String, lock: bool| {
            let path = all.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("data"), "x").unwrap();
            if lock {
                fs::write(path.join(LOCK), "").unwrap();
            }
            path
        };
        let (dead, alive) = (dead(), std::process::id());
        let stale = make(format!("feedmill-{dead}-local-a"), true);
        let locked = make(format!("feedmill-{dead}-local-b"), true);
        let lock = File::open(locked.join(LOCK)).unwrap();
        lock.lock().unwrap();
        let kept = [
            locked,
            make(format!("feedmill-{dead}-local-c"), false),
            make(format!("feedmill-{alive}-local-d"), true),
            make("feedmill-local-e".into(), true),
            make("feedmill-0-local-f".into(), true),
            make(format!("other-{dead}-local-g"), true),
        ];
        let elsewhere = make("data".into(), true);
        let link = all.path().join(format!("feedmill-{dead}-local-h"));
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        remove_stale(all.path());
        assert!(!stale.exists());
        for path in kept.iter().chain([&elsewhere, &link]) {
            assert!(path.join("data").exists(), "{} is gone", path.display());
        }
        drop(lock);
        remove_stale(all.path());
        assert!(!kept[0].exists(), "nobody holds its lock any more");
    }

    #[test]
    fn a_folder_goes_with_its_holder_and_is_nobody_elses_to_remove() {
        let scratch = Scratch::new("test").unwrap();
        let path = scratch.path().to_owned();
        assert_eq!(
            owner(&path).map(|owner| owner.as_raw_nonzero().get().unsigned_abs()),
            Some(std::process::id())
        );
        assert!(!is_unlocked(&path.join(LOCK)));
        drop(scratch);
        assert!(!path.exists());
    }
}
