//! Takes pictures under suspicion, gives their patches: made in a child process that may die.
//!
//! ```text
//!  feedmill-deaths: 2 ─► ledger: these positions ─► make ─► sandbox ─► child: limits on memory and CPU time
//!                          ▲                                  │            │ patches, or a fault of the picture
//!                          └── this record kills ◄── it died ─┴────────────┘
//! ```
//!
//! A file can kill the process that decodes it: by a fault in a decoder written in C, by taking more memory
//! than it announced, by never coming to an end. When workers have died under a range, its pictures are made
//! here. The child gets bytes and gives bytes through pipes: it never sees the arena, credentials or files, so
//! whatever the file does to it, only its own answer is lost. The worker then names the record.

/// What the child process does.
mod child;
/// What the two processes say to each other.
mod job;
/// Which positions are suspected, which records are known to kill.
mod ledger;
/// Starts the child, watches it, tells how it ended.
mod sandbox;

use feedmill_vision::{ColorPolicy, Geometry, ImageError, ImageHeader, Scratch};

pub use child::{CHILD_WORD, child_main};
pub(crate) use job::bad_class;
pub use ledger::{Evidence, Suspects};
pub use sandbox::Sandbox;
pub(crate) use sandbox::{CHILD_SLACK_BYTES, Ending, Order, PictureOrder};

/// A picture that may take more than this beyond what its header announces is made in a child process, which may
/// take this much. Lossless WebP only, of files above 400 kB: the tables that libwebp's own encoder writes take
/// 50 MB at most (it makes no more than 2,600 groups of five).
pub(crate) const MOST_HIDDEN_BYTES: u64 = 256 << 20;

/// What makes a picture's patches; [`feedmill_vision::fill_patches()`] in every program but those of tests.
pub type FillPatches = fn(
    &[u8],
    &ImageHeader,
    (u32, u32),
    &Geometry,
    &ColorPolicy,
    &mut Scratch,
    &mut [u8],
) -> Result<(), ImageError>;
