//! Takes blocks of one JSON array in order, gives each of its elements.
//!
//! It tells where elements begin and end and nothing more: strings, escapes and brackets are followed, what stands between is left to
//! whoever parses the element. So one malformed element is one bad record, unless its quotes or brackets do not match.

use std::ops::ControlFlow;

use super::framing::{Broken, Span};

/// Elements nested deeper are refused; serde_json's own limit is the same. One bit each, so the brackets fit a u128.
const MAX_DEPTH: u32 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before `[`.
    Before,
    /// After `[`: an element or `]`.
    FirstOrEnd,
    /// After `,`: an element.
    Element,
    /// Inside brackets of an element.
    Nested,
    /// Inside a string.
    Text,
    /// After a backslash in a string.
    Escape,
    /// Inside a number, `true`, `false` or `null` that is itself an element.
    Bare,
    /// After an element: `,` or `]`.
    CommaOrEnd,
    /// After the array's `]`.
    After,
}

/// Holds no text, so an element of any length needs no memory.
#[derive(Debug)]
pub(super) struct ArrayScanner {
    state: State,
    offset: u64,
    line: u64,
    start: u64,
    start_line: u64,
    depth: u32,
    /// Bit k is set when the bracket at depth k is `{`.
    braces: u128,
}

impl ArrayScanner {
    /// Begins before the array's `[`.
    pub(super) fn new(offset: u64, line: u64) -> Self {
        Self { state: State::Before, offset, line, start: offset, start_line: line, depth: 0, braces: 0 }
    }

    /// Begins where an element begins.
    pub(super) fn at_element(offset: u64, line: u64) -> Self {
        Self { state: State::Element, ..Self::new(offset, line) }
    }

    pub(super) fn feed(
        &mut self,
        block: &[u8],
        each: &mut impl FnMut(Span) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Broken> {
        let base = self.offset;
        let mut at = 0;
        while let Some(&byte) = block.get(at) {
            if self.state == State::Text {
                // Most of a manifest is text: jump to what matters in it.
                let Some(found) = memchr::memchr3(b'"', b'\\', b'\n', &block[at..]) else {
                    break;
                };
                at += found + 1;
                match block[at - 1] {
                    b'"' if self.depth > 0 => self.state = State::Nested,
                    b'"' => {
                        if self.end(base + at as u64, each).is_break() {
                            return Ok(ControlFlow::Break(()));
                        }
                    }
                    b'\\' => self.state = State::Escape,
                    _ => self.line += 1,
                }
                continue;
            }
            let here = base + at as u64;
            at += 1;
            if self.step(byte, here, each)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            self.line += u64::from(byte == b'\n');
        }
        self.offset = base + block.len() as u64;
        Ok(ControlFlow::Continue(()))
    }

    pub(super) fn finish(&mut self) -> Result<(), Broken> {
        match self.state {
            State::After => Ok(()),
            State::Before => self.broken(self.offset, "there is no array"),
            State::Text | State::Escape => self.broken(self.offset, "the file ends inside a string"),
            State::Nested => self.broken(self.offset, "the file ends inside an element"),
            _ => self.broken(self.offset, "the file ends before the array's ']'"),
        }
    }

    /// Start and line of the element whose end has not come yet.
    pub(super) fn open(&self) -> Option<(u64, u64)> {
        matches!(self.state, State::Nested | State::Text | State::Escape | State::Bare)
            .then_some((self.start, self.start_line))
    }

    fn step(
        &mut self,
        byte: u8,
        here: u64,
        each: &mut impl FnMut(Span) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Broken> {
        let space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        match (self.state, byte) {
            (State::Nested, b'"') => self.state = State::Text,
            (State::Nested, b'{' | b'[') => self.push(byte, here)?,
            (State::Nested, b'}' | b']') => {
                self.pop(byte, here)?;
                if self.depth == 0 {
                    return Ok(self.end(here + 1, each));
                }
            }
            (State::Nested, _) => {}
            (State::Escape, _) => self.state = State::Text,
            (State::Bare, b',' | b']') => {
                if self.end(here, each).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                self.state = if byte == b',' { State::Element } else { State::After };
            }
            (State::Bare, _) if space => return Ok(self.end(here, each)),
            (State::Bare, b'{' | b'}' | b'[' | b'"') => {
                return self.broken(here, "expected ',' or ']'");
            }
            (State::Bare, _) => {}
            (_, _) if space => {}
            (State::Before, b'[') => self.state = State::FirstOrEnd,
            (State::Before, _) => return self.broken(here, "expected '['"),
            (State::FirstOrEnd | State::CommaOrEnd, b']') => self.state = State::After,
            (State::CommaOrEnd, b',') => self.state = State::Element,
            (State::CommaOrEnd, _) => return self.broken(here, "expected ',' or ']'"),
            (State::FirstOrEnd | State::Element, b',' | b']' | b'}') => {
                return self.broken(here, "expected an element");
            }
            (State::FirstOrEnd | State::Element, _) => {
                self.start = here;
                self.start_line = self.line;
                match byte {
                    b'{' | b'[' => {
                        self.state = State::Nested;
                        self.push(byte, here)?;
                    }
                    b'"' => self.state = State::Text,
                    _ => self.state = State::Bare,
                }
            }
            (State::After, _) => {
                return self
                    .broken(here, "text after the array's end (JSON lines must be objects, not arrays)");
            }
            (State::Text, _) => {}
        }
        Ok(ControlFlow::Continue(()))
    }

    fn push(&mut self, byte: u8, here: u64) -> Result<(), Broken> {
        if self.depth == MAX_DEPTH {
            return self.broken(here, "brackets are nested deeper than 128");
        }
        let bit = 1_u128 << self.depth;
        self.braces = if byte == b'{' { self.braces | bit } else { self.braces & !bit };
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self, byte: u8, here: u64) -> Result<(), Broken> {
        // Nested implies a depth of at least 1.
        self.depth -= 1;
        let brace = self.braces >> self.depth & 1 == 1;
        if brace == (byte == b'}') {
            Ok(())
        } else {
            self.broken(here, "this bracket does not close the one that is open")
        }
    }

    fn end(&mut self, end: u64, each: &mut impl FnMut(Span) -> ControlFlow<()>) -> ControlFlow<()> {
        self.state = State::CommaOrEnd;
        each(Span { start: self.start, end, line: self.start_line })
    }

    fn broken<T>(&self, offset: u64, what: &'static str) -> Result<T, Broken> {
        Err(Broken { offset, line: self.line, what })
    }
}
