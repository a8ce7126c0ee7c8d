//! Takes stored bytes from wherever they come, gives decompressed bytes.

use std::io::{self, BufReader, Chain, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc::Receiver;

use super::Compression;
use crate::error::FetchError;

/// The most memory that a zstd frame may ask for is 2 to this many bytes: 128 MiB, zstd's own default. Frames written with
/// `--long=28` or more are refused.
const ZSTD_WINDOW_LOG: u32 = 27;

/// Bytes looked at to tell formats apart.
const HEAD_BYTES: usize = 16;

/// Read from the compressed source at once.
const BUFFER_BYTES: usize = 256 << 10;

/// What comes from a store, piece by piece. The end must be announced: a channel that merely closes means that whoever filled it is
/// gone, and must not look like the end of the file.
pub(super) enum Piece {
    Bytes(Bytes),
    Failed(FetchError),
    End,
}

/// Reads pieces as they come.
pub(super) struct PieceReader {
    pieces: Receiver<Piece>,
    open: Bytes,
    ended: bool,
}

impl PieceReader {
    pub(super) fn new(pieces: Receiver<Piece>) -> Self {
        Self { pieces, open: Bytes::new(), ended: false }
    }
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.open.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.open = bytes,
                Some(Piece::Failed(error)) => return Err(io::Error::other(error)),
                Some(Piece::End) => self.ended = true,
                None => return Err(io::Error::other(Abandoned)),
            }
        }
        let length = buffer.len().min(self.open.len());
        self.open.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// Nobody fills the channel any more.
#[derive(Debug, thiserror::Error)]
#[error("nobody waits for this manifest")]
pub(super) struct Abandoned;

/// Marks errors of the source below a decompressor, so that they are not taken for damaged data.
#[derive(Debug, thiserror::Error)]
#[error("reading failed")]
pub(super) struct SourceFailed(#[source] pub(super) io::Error);

/// Counts what is read, and marks errors.
pub(super) struct Counted<R> {
    inner: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.inner.read(buffer) {
            Ok(length) => {
                self.count.fetch_add(length as u64, Relaxed);
                Ok(length)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => Err(io::Error::other(SourceFailed(error))),
        }
    }
}

/// A source whose first bytes have been looked at and put back.
pub(super) type Sniffed<R> = Chain<Cursor<Vec<u8>>, Counted<R>>;

/// Looks at the first bytes: the compression, those bytes, and a reader that gives everything.
pub(super) fn sniff<R: Read>(
    source: R,
    count: Arc<AtomicU64>,
) -> io::Result<(Compression, Vec<u8>, Sniffed<R>)> {
    let mut source = Counted { inner: source, count };
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&mut source).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    let compression = match head[..] {
        [0x1F, 0x8B, ..] => Compression::Gzip,
        // A frame (RFC 8878, 3.1.1), or a skippable one (3.1.2), with which parallel compressors begin.
        [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Compression::Zstd,
        _ => Compression::Plain,
    };
    Ok((compression, head.clone(), Read::chain(Cursor::new(head), source)))
}

/// The decompressed bytes of all members or frames.
pub(super) fn decompress<'a, R: Read + 'a>(
    compression: Compression,
    source: Sniffed<R>,
) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match compression {
        Compression::Plain => Box::new(source),
        Compression::Gzip => {
            Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, source)))
        }
        Compression::Zstd => {
            let mut decoder =
                zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(BUFFER_BYTES, source))?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            Box::new(decoder)
        }
    })
}

/// Fills as much of `buffer` as the source has; less than all only at the end.
pub(super) fn fill(source: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
