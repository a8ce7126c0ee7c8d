//! Takes blocks of JSON lines in order, gives each line that is not blank.

use std::ops::ControlFlow;

use super::framing::Span;

/// Splits at `\n` alone, whatever the block borders are. Holds no text, so a line of any length needs no memory.
#[derive(Debug)]
pub(super) struct LineScanner {
    /// Byte after the blocks seen.
    offset: u64,
    /// Where the open line begins.
    start: u64,
    /// Its number.
    line: u64,
    /// Whether it has more than white space so far.
    filled: bool,
    /// Last byte of the open line in earlier blocks, to see a `\r` before a `\n` at the border.
    last: u8,
}

impl LineScanner {
    /// Begins at byte `offset`, which begins line number `line`.
    pub(super) fn new(offset: u64, line: u64) -> Self {
        Self { offset, start: offset, line, filled: false, last: 0 }
    }

    pub(super) fn feed(
        &mut self,
        block: &[u8],
        each: &mut impl FnMut(Span) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', block) {
            self.extend(&block[begin..end]);
            begin = end + 1;
            let end = self.offset + end as u64;
            if let ControlFlow::Break(()) = self.close(end, each) {
                return ControlFlow::Break(());
            }
            self.start = end + 1;
            self.line += 1;
        }
        self.extend(&block[begin..]);
        self.offset += block.len() as u64;
        ControlFlow::Continue(())
    }

    /// The last line, when it does not end in `\n`.
    pub(super) fn finish(&mut self, each: &mut impl FnMut(Span) -> ControlFlow<()>) -> ControlFlow<()> {
        self.close(self.offset, each)
    }

    /// Start and number of the open line, if it is known not to be blank.
    pub(super) fn open(&self) -> Option<(u64, u64)> {
        self.filled.then_some((self.start, self.line))
    }

    fn extend(&mut self, part: &[u8]) {
        if let Some(last) = part.last() {
            self.last = *last;
            self.filled = self.filled || part.iter().any(|byte| !matches!(byte, b' ' | b'\t' | b'\r'));
        }
    }

    fn close(&mut self, end: u64, each: &mut impl FnMut(Span) -> ControlFlow<()>) -> ControlFlow<()> {
        if !std::mem::take(&mut self.filled) {
            return ControlFlow::Continue(());
        }
        let end = end - u64::from(self.last == b'\r');
        each(Span { start: self.start, end, line: self.line })
    }
}
