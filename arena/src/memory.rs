//! Takes a size, gives sparse shared memory: a memfd mapped into this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// What nobody may do to a file that is mapped: a shrunk one would kill this process at its next access (SIGBUS).
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A memfd and its mapping. The kernel frees it with the last descriptor and mapping, however the
/// processes end, so nothing stale survives a restart.
pub(crate) struct SharedMemory {
    file: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread; what may be read and written when is up to the callers
// of the unsafe methods below.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; the struct itself is never changed after it was made.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// A file of `bytes` (a multiple of the page size), no page of it resident.
    pub(crate) fn create(bytes: usize) -> io::Result<Self> {
        let file =
            rustix::fs::memfd_create("feedmill-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, FIXED)?;
        Self::map(file, bytes)
    }

    /// A file of `bytes` whose descriptors other processes get: through this mapping alone it can be written.
    /// It cannot be punched.
    pub(crate) fn create_for_readers(bytes: usize) -> io::Result<Self> {
        let file =
            rustix::fs::memfd_create("feedmill-slab", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        // The seal refuses every later writable mapping and every write, so ours comes first.
        let memory = Self::map(file, bytes)?;
        match rustix::fs::fcntl_add_seals(&memory.file, FIXED | SealFlags::FUTURE_WRITE) {
            // Kernels before 5.1 do not know it; descriptors for readers are opened read-only there.
            Err(Errno::INVAL) => rustix::fs::fcntl_add_seals(&memory.file, FIXED)?,
            sealed => sealed?,
        }
        Ok(memory)
    }

    /// A descriptor of the file for a process that reads it and must not write it.
    pub(crate) fn reader_fd(&self) -> io::Result<OwnedFd> {
        if rustix::fs::fcntl_get_seals(&self.file)?.contains(SealFlags::FUTURE_WRITE) {
            return Ok(rustix::io::fcntl_dupfd_cloexec(&self.file, 0)?);
        }
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn map(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the kernel mapped at address zero"))?;
        let memory = Self { file, base, bytes };
        // Huge pages would make more resident than what was asked for, and the budget counts
        // pages. Where the kernel knows none, it refuses the advice and there is nothing to avoid.
        let _ = memory.advise(Advice::LinuxNoHugepage);
        // A core dump would try to write the whole sparse space.
        let _ = memory.advise(Advice::LinuxDontDump);
        Ok(memory)
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is exactly our mapping, and neither advice changes its contents.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, advice) }
    }

    /// Returns the pages of a page aligned range to the system; they read as zeros afterwards.
    /// Safe for memory, as bytes stay bytes, but only the owner of the range may call it.
    pub(crate) fn punch(&self, offset: usize, len: usize) -> rustix::io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset as u64, len as u64))
    }

    /// Makes a page aligned range resident in one call instead of one fault per page: 1.5 instead of
    /// 1.9 microseconds of CPU a page, measured. Only for pages that are not resident: walking over
    /// those that are costs more than it saves. A hint: where the kernel (before 5.14) cannot, the
    /// pages come by faults.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        if len > 0 && self.contains(offset, len) {
            // SAFETY: the range lies in our mapping, and populating keeps its contents.
            let _ = unsafe {
                rustix::mm::madvise(self.base.as_ptr().add(offset).cast(), len, Advice::LinuxPopulateWrite)
            };
        }
    }

    /// The bytes of a range; empty when it does not lie in the mapping.
    ///
    /// # Safety
    /// Nobody may write to the range while the slice lives.
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        if !self.contains(offset, len) {
            return &[];
        }
        // SAFETY: the range is mapped, readable and initialised (fresh pages are zeros) as long as
        // self lives; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) }
    }

    /// The bytes of a range, to write; empty when it does not lie in the mapping.
    ///
    /// # Safety
    /// Nobody else may read or write the range while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the caller's promise, per range")]
    pub(crate) unsafe fn bytes_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        if !self.contains(offset, len) {
            return &mut [];
        }
        // SAFETY: the range is mapped, writable and initialised as long as self lives; the caller
        // keeps everybody else away.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), len) }
    }

    /// A second descriptor of the file that children inherit.
    pub(crate) fn inheritable_fd(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::dup(self.file.as_fd())?)
    }

    fn contains(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: every slice borrows from self, so none is left; the range is exactly the mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
