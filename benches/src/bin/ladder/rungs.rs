//! The rungs: each one is the one before it with one switch turned.

use anyhow::bail;

/// Batches asked for ahead from the third rung on.
pub const AHEAD: usize = 8;

/// A way to feed ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The trainer makes one sample after another.
    Serial,
    /// A worker makes a batch's samples at once; a coordinator carries them.
    Concurrent,
    /// The same, asked for ahead.
    Window,
    /// The same, by reference.
    Reference,
    /// No rung, but what tells two parts of the last one from each other: through the coordinator, pixels as bytes.
    BytesAside,
}

impl Rung {
    /// From the bottom up.
    pub const ALL: [Self; 4] = [Self::Serial, Self::Concurrent, Self::Window, Self::Reference];

    /// All that is measured.
    pub const MEASURED: [Self; 5] =
        [Self::Serial, Self::Concurrent, Self::Window, Self::Reference, Self::BytesAside];

    /// From 0.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// The rung of a number.
    pub fn of(number: u64) -> anyhow::Result<Self> {
        match Self::MEASURED.into_iter().find(|rung| rung.number() == number) {
            Some(rung) => Ok(rung),
            None => bail!("no rung {number}"),
        }
    }

    /// Batches asked for before they are needed.
    pub fn ahead(self) -> usize {
        match self {
            Self::Serial | Self::Concurrent => 0,
            Self::Window | Self::Reference | Self::BytesAside => AHEAD,
        }
    }

    /// Its number in a table, where it is a rung.
    pub fn mark(self) -> String {
        if self == Self::BytesAside { String::new() } else { format!("{} ", self.number()) }
    }

    /// In a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial, in the trainer",
            Self::Concurrent => "fetched at once, a pool for CPU work",
            Self::Window => "asked for ahead",
            Self::Reference => "by reference",
            Self::BytesAside => "aside: 2 with pixels as bytes",
        }
    }

    /// What it does, in a sentence.
    pub fn describes(self) -> &'static str {
        match self {
            Self::Serial => {
                "Each rank gets a picture, decodes it, tokenizes its record, and then turns to the next sample."
            }
            Self::Concurrent => {
                "A worker fetches a batch's pictures at once and decodes them on all cores. A coordinator hands the \
                 batch, the processor's own tensors, to the rank that asked. Nothing is asked before it is needed."
            }
            Self::Window => "The same, but each rank asks for 8 batches ahead.",
            Self::Reference => {
                "The same, but a batch goes from the worker's shared memory to the rank that needs it, pixels as bytes: \
                 the coordinator and its copies are gone."
            }
            Self::BytesAside => {
                "No rung: the coordinator again, but it carries pixels as bytes. What rung 3 gains beyond this is the copies; \
                 the rest is that they are an eighth as long."
            }
        }
    }
}
