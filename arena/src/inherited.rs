//! Takes a descriptor that a parent passed on, gives access to the bytes of its regions.

use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

/// The arena of a parent process, as a child sees it. Bytes are copied in and out at the offsets
/// that the parent names; there is no mapping, so nothing that happens to the file kills the child.
#[derive(Debug)]
pub struct InheritedArena(File);

impl InheritedArena {
    /// From a descriptor of [`Arena::inheritable_fd`](crate::Arena::inheritable_fd), standard input
    /// for example.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(File::from(fd))
    }

    /// From the number of an inherited descriptor.
    ///
    /// # Errors
    /// There is no such descriptor, or `/proc` is not mounted.
    pub fn open(number: RawFd) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{number}");
        File::options().read(true).write(true).open(path).map(Self)
    }

    /// Writes all `bytes` at `offset`: into a region whose writer the parent holds.
    ///
    /// # Errors
    /// The range does not lie in the arena, or memory is used up.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset as u64)
    }

    /// Fills `bytes` from `offset`: from a region that the parent leases.
    ///
    /// # Errors
    /// The range does not lie in the arena.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset as u64)
    }
}
