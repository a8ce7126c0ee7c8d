//! What is promised for any input, one function a surface. Each takes bytes, tells whether they were taken, and panics
//! when the promise is broken.
//!
//! A surface that is added gets a function in a file of its own, a corpus, and a line in [`ALL`]; the tests, the
//! long run and `docs/robustness.md` follow from it.

mod frame;
mod image;
mod manifest;
mod record;
mod request;

use crate::corpus::{self, RECORD_WORDS, REQUEST_WORDS};

/// A surface: what is done with an input, and what inputs begin as.
#[derive(Clone, Copy)]
pub struct Surface {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is promised; tells whether the input was taken.
    pub body: fn(&[u8]) -> bool,
    /// Inputs to begin with.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// What its format is made of; empty for binary ones.
    pub words: &'static [&'static [u8]],
    /// Cases in the tests: together a hundred thousand, in about a minute.
    pub cases: u64,
}

/// Every surface.
pub const ALL: &[Surface] = &[
    Surface { name: "frame", body: frame::body, corpus: corpus::frames, words: &[], cases: 20_000 },
    Surface {
        name: "record",
        body: record::body,
        corpus: corpus::records,
        words: RECORD_WORDS,
        cases: 30_000,
    },
    Surface {
        name: "text",
        body: record::text,
        corpus: corpus::conversations,
        words: RECORD_WORDS,
        cases: 12_000,
    },
    Surface {
        name: "request",
        body: request::body,
        corpus: corpus::requests,
        words: REQUEST_WORDS,
        cases: 20_000,
    },
    Surface {
        name: "image-header",
        body: image::header,
        corpus: corpus::pictures,
        words: &[],
        cases: 16_000,
    },
    Surface {
        name: "image-pixels",
        body: image::pixels,
        corpus: corpus::pictures,
        words: &[],
        cases: 16_000,
    },
    Surface {
        name: "manifest",
        body: manifest::body,
        corpus: corpus::framed_manifests,
        words: &[],
        cases: 1_500,
    },
];

/// The surface of this name.
#[must_use]
pub fn surface(name: &str) -> Option<Surface> {
    ALL.iter().copied().find(|surface| surface.name == name)
}

/// Runs the surface of this name over one input.
///
/// # Panics
/// When a promise is broken, or there is no such surface.
pub fn run(name: &str, data: &[u8]) {
    match surface(name) {
        Some(surface) => drop((surface.body)(data)),
        None => panic!("there is no surface {name:?}"),
    }
}

/// Runs the surface of this name over the files that the command line names.
///
/// # Panics
/// When a promise is broken, or a file cannot be read.
pub fn replay(name: &str) {
    for path in std::env::args_os().skip(1) {
        match std::fs::read(&path) {
            Ok(data) => run(name, &data),
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}
