//! Takes the descriptor of another process's slab, gives the bytes of its batches without a copy.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::SealFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A slab of another process, mapped for reading once and for all. It outlives the process that made it.
pub struct MappedSlab {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread and is only read.
unsafe impl Send for MappedSlab {}
// SAFETY: as above.
unsafe impl Sync for MappedSlab {}

impl MappedSlab {
    /// Maps a slab of `bytes`; the descriptor is closed.
    ///
    /// # Errors
    /// The file has another size, or could be shrunk under the mapping, which would kill this process at its next
    /// access; the kernel refuses the mapping.
    pub fn map(file: OwnedFd, bytes: u64) -> io::Result<Arc<Self>> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
        let length = usize::try_from(bytes).map_err(|_| invalid("a slab larger than this address space"))?;
        let is_as_long = u64::try_from(rustix::fs::fstat(&file)?.st_size).is_ok_and(|size| size == bytes);
        if length == 0 || !is_as_long {
            return Err(invalid("a slab of another size than was said"));
        }
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(invalid("a slab that is not sealed against shrinking"));
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, &file, 0)?
        };
        let base: NonNull<u8> =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the kernel mapped at address zero"))?;
        // A core dump of a trainer need not hold its batches.
        // SAFETY: the range is exactly our mapping, and the advice does not change its contents.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), length, Advice::LinuxDontDump) };
        Ok(Arc::new(Self { base, bytes: length }))
    }

    /// The bytes of a range, which the slab's owner promises not to change until they are released; none when it
    /// does not lie in the slab.
    #[must_use]
    pub fn region(self: &Arc<Self>, offset: u64, len: u64) -> Option<MappedRegion> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let end = offset.checked_add(len)?;
        (end <= self.bytes).then(|| MappedRegion { slab: Arc::clone(self), offset, len })
    }
}

impl Drop for MappedSlab {
    fn drop(&mut self) {
        // SAFETY: every region holds the slab, so no slice is left; the range is exactly the mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl fmt::Debug for MappedSlab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedSlab").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// The bytes of one batch in another process's slab.
#[derive(Clone, Debug)]
pub struct MappedRegion {
    slab: Arc<MappedSlab>,
    offset: usize,
    len: usize,
}

impl Deref for MappedRegion {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping (checked when this was made), which is readable as long as `slab`
        // lives and cannot shrink (its seal was checked). Its owner writes a place only before it lends it and after
        // it was released; that is the contract between the two processes.
        unsafe { std::slice::from_raw_parts(self.slab.base.as_ptr().add(self.offset), self.len) }
    }
}

impl AsRef<[u8]> for MappedRegion {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
