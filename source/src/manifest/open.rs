//! Takes the address of a manifest, gives it opened: the one pass over its bytes.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc::channel;

use super::digest::{BLOCK_BYTES, TreeDigest};
use super::download::download;
use super::framing::{Broken, Scanner, detect, foreign};
use super::index::Index;
use super::input::{Abandoned, PieceReader, SourceFailed, decompress, fill, sniff};
use super::{Compression, Framing, Manifest, ManifestError, ManifestSettings, Progress, Stamp, Stamps};
use crate::error::{AttemptError, FetchError, PermanentKind};
use crate::stores::Stores;
use crate::uri::ObjectUri;

/// Blocks that may wait to be hashed.
const BLOCKS_AHEAD: usize = 3;

impl Manifest {
    /// Opens and indexes the manifest, reading all of it once. `progress` is called after every block, from another thread.
    ///
    /// Memory beyond the index: 4 pieces of 8 MiB (S3), 4 blocks of 4 MiB, and up to 128 MiB for the window of a zstd frame.
    /// Dropping the future ends the work after the current block.
    ///
    /// # Errors
    /// See [`ManifestError`]. [`ManifestError::Fetch`] may hold a transient error: open again later.
    pub async fn open(
        stores: &Stores,
        uri: &ObjectUri,
        settings: &ManifestSettings,
        progress: impl Fn(Progress) + Send + 'static,
    ) -> Result<Self, ManifestError> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let _guard = CancelOnDrop(Arc::clone(&cancelled));
        let mut pass = Pass {
            uri: uri.clone(),
            settings: settings.clone(),
            cancelled,
            progress: Box::new(progress),
            input_total: 0,
        };
        match uri {
            ObjectUri::File(path) => {
                let path = path.clone();
                on_thread(uri, move || pass.open_file(&path)).await
            }
            ObjectUri::S3 { .. } => {
                let fetch = |source| ManifestError::Fetch { uri: uri.clone(), source: Box::new(source) };
                let version = stores.head(uri).await.map_err(fetch)?;
                pass.input_total = version.size;
                let (sender, receiver) = channel(1);
                let opened = on_thread(uri, move || pass.open_stream(PieceReader::new(receiver)));
                let (opened, ()) = tokio::join!(opened, download(stores, uri, version, sender));
                opened
            }
        }
    }
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

async fn on_thread<T: Send + 'static>(
    uri: &ObjectUri,
    work: impl FnOnce() -> Result<T, ManifestError> + Send + 'static,
) -> Result<T, ManifestError> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|error| Err(ManifestError::Io { uri: uri.clone(), source: io::Error::other(error) }))
}

/// All that the pass over one manifest needs.
struct Pass {
    uri: ObjectUri,
    settings: ManifestSettings,
    cancelled: Arc<AtomicBool>,
    progress: Box<dyn Fn(Progress) + Send>,
    input_total: u64,
}

/// What the pass found.
struct Scanned {
    bytes: u64,
    framing: Framing,
    index: Index,
    digest: [u8; 32],
}

impl Pass {
    fn open_file(mut self, path: &Path) -> Result<Manifest, ManifestError> {
        let (file, metadata) = crate::file::open(path).map_err(|error| self.not_opened(error))?;
        let stamp = Stamp::of(&metadata);
        self.input_total = metadata.len();
        let count = Arc::new(AtomicU64::new(0));
        let (compression, head, source) =
            sniff(&file, Arc::clone(&count)).map_err(|error| self.failed(error, 0))?;
        let manifest = if compression == Compression::Plain {
            self.refuse_foreign(&head)?;
            let mut source = source;
            let scanned = self.scan(&mut source, &count, None)?;
            let file = file.try_clone().map_err(|source| self.io(source))?;
            self.assemble(file, stamp, compression, scanned, self.settings.disk.lease())
        } else {
            self.copy(compression, source, &count)?
        };
        let after = file.metadata().map_err(|source| self.io(source))?;
        if Stamp::of(&after) == stamp { Ok(manifest) } else { Err(ManifestError::Changed { uri: self.uri }) }
    }

    fn open_stream(self, source: impl Read) -> Result<Manifest, ManifestError> {
        let count = Arc::new(AtomicU64::new(0));
        let (compression, head, source) =
            sniff(source, Arc::clone(&count)).map_err(|error| self.failed(error, 0))?;
        if compression == Compression::Plain {
            self.refuse_foreign(&head)?;
        }
        self.copy(compression, source, &count)
    }

    /// Decompresses into a file of the cache folder and scans on the way.
    fn copy<R: Read>(
        &self,
        compression: Compression,
        source: super::input::Sniffed<R>,
        count: &AtomicU64,
    ) -> Result<Manifest, ManifestError> {
        let mut lease = self.settings.disk.lease();
        if compression == Compression::Plain {
            // Known to be too large before a byte is written.
            self.grow(&mut lease, self.input_total)?;
        }
        fs::create_dir_all(&self.settings.cache_dir).map_err(|source| self.not_copied(source))?;
        let file =
            tempfile::tempfile_in(&self.settings.cache_dir).map_err(|source| self.not_copied(source))?;
        let mut source = decompress(compression, source).map_err(|source| self.io(source))?;
        let scanned = self.scan(&mut source, count, Some((&file, &mut lease)))?;
        let stamp = Stamp::of(&file.metadata().map_err(|source| self.io(source))?);
        Ok(self.assemble(file, stamp, compression, scanned, lease))
    }

    fn assemble(
        &self,
        file: File,
        stamp: Stamp,
        compression: Compression,
        scanned: Scanned,
        lease: super::disk::DiskLease,
    ) -> Manifest {
        let Scanned { bytes, framing, index, digest } = scanned;
        let max_line_bytes = self.settings.max_line_bytes;
        Manifest {
            uri: self.uri.clone(),
            file,
            stamps: Mutex::new(Stamps { good: stamp, bad: None }),
            verifying: Mutex::default(),
            bytes,
            compression,
            framing,
            digest,
            index,
            max_line_bytes,
            _disk: lease,
        }
    }

    /// The pass: blocks of 4 MiB are read, copied and indexed here and hashed on a second thread.
    fn scan(
        &self,
        source: &mut dyn Read,
        count: &AtomicU64,
        mut copy: Option<(&File, &mut super::disk::DiskLease)>,
    ) -> Result<Scanned, ManifestError> {
        std::thread::scope(|scope| {
            let (to_hash, blocks) = mpsc::sync_channel::<Vec<u8>>(BLOCKS_AHEAD);
            let (give_back, hashed) = mpsc::channel::<Vec<u8>>();
            let hasher = scope.spawn(move || {
                let mut digest = TreeDigest::default();
                for block in blocks {
                    digest.add_block(&block);
                    // The other side may have stopped early.
                    let _ = give_back.send(block);
                }
                digest.finish()
            });
            let mut index = Index::default();
            let mut scanner: Option<(Scanner, Framing)> = None;
            let mut bytes: u64 = 0;
            loop {
                if self.cancelled.load(Relaxed) {
                    return Err(ManifestError::Cancelled { uri: self.uri.clone() });
                }
                let mut block = hashed.try_recv().unwrap_or_default();
                block.resize(BLOCK_BYTES, 0);
                let length = fill(source, &mut block).map_err(|error| self.failed(error, bytes))?;
                block.truncate(length);
                let (scanner, skip) = match &mut scanner {
                    Some((scanner, _)) => (scanner, 0),
                    None => {
                        self.refuse_foreign(&block)?;
                        let (skip, framing) = detect(&block);
                        (&mut scanner.insert((Scanner::new(framing, skip), framing)).0, skip)
                    }
                };
                if let Some((file, lease)) = &mut copy {
                    self.grow(lease, bytes + length as u64)?;
                    file.write_all(&block).map_err(|source| self.not_copied(source))?;
                }
                let mut each = |span: super::framing::Span| {
                    index.push(span.start, span.line);
                    ControlFlow::Continue(())
                };
                // At most 3, and only for a block that is at least so long.
                let text = &block[skip as usize..];
                let mut fed = scanner.feed(text, &mut each).map(|_| ());
                bytes += length as u64;
                let at_end = length < BLOCK_BYTES;
                if at_end && fed.is_ok() {
                    fed = scanner.finish(&mut each);
                }
                fed.map_err(|broken| self.broken(broken))?;
                let progress = Progress {
                    input_bytes: count.load(Relaxed),
                    input_total: self.input_total,
                    bytes,
                    records: index.len(),
                };
                (self.progress)(progress);
                if !block.is_empty() && to_hash.send(block).is_err() {
                    return Err(self.io(io::Error::other("the hashing thread ended")));
                }
                if at_end {
                    break;
                }
            }
            drop(to_hash);
            index.finish();
            let digest = hasher.join().map_err(|_| self.io(io::Error::other("the hashing thread failed")))?;
            let framing = scanner.map_or(Framing::Lines, |(_, framing)| framing);
            Ok(Scanned { bytes, framing, index, digest })
        })
    }

    fn refuse_foreign(&self, head: &[u8]) -> Result<(), ManifestError> {
        match foreign(head) {
            Some(found) => Err(ManifestError::Format { uri: self.uri.clone(), found }),
            None => Ok(()),
        }
    }

    fn grow(&self, lease: &mut super::disk::DiskLease, bytes: u64) -> Result<(), ManifestError> {
        lease.grow_to(bytes).map_err(|full| ManifestError::CacheFull {
            uri: self.uri.clone(),
            needed: full.needed,
            limit: full.limit,
            used: full.used_by_others,
        })
    }

    fn not_copied(&self, source: io::Error) -> ManifestError {
        ManifestError::Copy { uri: self.uri.clone(), folder: self.settings.cache_dir.clone(), source }
    }

    fn io(&self, source: io::Error) -> ManifestError {
        ManifestError::Io { uri: self.uri.clone(), source }
    }

    fn broken(&self, broken: Broken) -> ManifestError {
        let Broken { offset, line, what } = broken;
        ManifestError::BrokenArray { uri: self.uri.clone(), offset, line, what }
    }

    /// An error while reading: of the store, of the disk, or of the decompressor.
    fn failed(&self, error: io::Error, offset: u64) -> ManifestError {
        let uri = self.uri.clone();
        let source = match error.downcast::<SourceFailed>() {
            Ok(SourceFailed(source)) => source,
            Err(source) => {
                return ManifestError::Damaged { uri, offset, source };
            }
        };
        match source.downcast::<FetchError>() {
            Ok(FetchError::Permanent { kind: PermanentKind::Changed, .. }) => ManifestError::Changed { uri },
            Ok(source) => ManifestError::Fetch { uri, source: Box::new(source) },
            Err(source) if source.get_ref().is_some_and(|inner| inner.is::<Abandoned>()) => {
                ManifestError::Cancelled { uri }
            }
            Err(source) => ManifestError::Io { uri, source },
        }
    }

    /// Opening a local file is not retried: unlike an image, a manifest is looked at by a person when it is not there.
    fn not_opened(&self, error: AttemptError) -> ManifestError {
        let uri = self.uri.clone();
        let permanent = |kind| FetchError::Permanent { kind, uri: uri.clone() };
        let source = match error {
            AttemptError::Missing => permanent(PermanentKind::Missing),
            AttemptError::Denied { code } => {
                FetchError::Denied { remedy: crate::classify::remedy(&code, false), code, uri: uri.clone() }
            }
            AttemptError::Transient { kind, detail } => {
                FetchError::Transient { attempts: 1, last: kind, detail, uri: uri.clone() }
            }
            AttemptError::TooLarge { bytes, limit } => permanent(PermanentKind::TooLarge { bytes, limit }),
            AttemptError::InvalidKey => permanent(PermanentKind::InvalidKey),
            AttemptError::Changed => permanent(PermanentKind::Changed),
            AttemptError::PastEnd => permanent(PermanentKind::PastEnd),
        };
        ManifestError::Fetch { uri, source: Box::new(source) }
    }
}
