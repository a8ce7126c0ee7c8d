//! Turns the text of a record into token ids with a loss mask. Pure: bytes in, values out; no files, no clock, no network.
//!
//! ```text
//!  one line of JSONL ──► record ──► Conversation ──┐
//!                                                  ├──► processor ──► Prepared ──► expand ──► Encoded (tokens, loss_mask)
//!  tokenizer.json, template, … ──► TextProcessor ──┘   (template, tokenizer, spans)  (image placeholders)
//! ```

pub mod fault;
pub mod record;

mod control;
mod template;
mod tokenizer;

pub mod processor;
