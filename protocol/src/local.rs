//! What an agent and the readers on its node say to each other over a Unix socket.
//!
//! A message is its length as u32, little-endian, and so many bytes of JSON. The bytes of batches are not in
//! messages: they lie in slabs, files whose descriptors come with [`Say::Slab`], in the order of those messages.
//!
//! ```text
//!  reader  hello ──► welcome           batch ──► slab (once each), batch ──► release
//!                                      cancel, report, plan
//! ```

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::http::Problem;
use crate::report::RankReport;

/// The environment variable that names an agent's socket.
pub const AGENT_VARIABLE: &str = "FEEDMILL_AGENT";

/// Version of these messages. Both sides must have the same.
pub const LOCAL_VERSION: u32 = 1;

/// The most bytes of a message from a reader; a report is the largest.
pub const MAX_ASK_BYTES: usize = 16 << 10;

/// The most bytes of a message to a reader: the plan of hundreds of data sets.
pub const MAX_SAY_BYTES: usize = 16 << 20;

/// What a reader says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// The first message.
    Hello {
        /// [`LOCAL_VERSION`].
        version: u32,
        /// One name per start of a training, shared by its ranks.
        run: String,
    },
    /// A batch.
    Batch {
        /// Names the answer; the reader chooses it, and uses none twice.
        id: u64,
        /// What is asked for.
        #[serde(flatten)]
        batch: AskedBatch,
    },
    /// The answer of this id is not wanted any more.
    Cancel {
        /// Which.
        id: u64,
    },
    /// The bytes of a batch are not read any more.
    Release {
        /// The lease that came with it.
        lease: u64,
    },
    /// The document of `/v1/plan`.
    Plan {
        /// Names the answer.
        id: u64,
    },
    /// The document of `/v1/status`.
    Status {
        /// Names the answer.
        id: u64,
    },
    /// A rank's report, to be passed on.
    Report {
        /// Names the answer.
        id: u64,
        /// The report.
        report: RankReport,
    },
}

/// A batch as a reader asks for it; the fields mean what they mean in the HTTP interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedBatch {
    /// The stream.
    pub stream: String,
    /// `START-END`.
    pub range: String,
    /// The trainer's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<u64>,
    /// Milliseconds until it is needed.
    pub need_ms: u64,
    /// The asker's rank.
    pub rank: u64,
    /// The plan it must be made by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Workers known to have died under it.
    #[serde(default)]
    pub deaths: u32,
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Say {
    /// The answer to a hello.
    Welcome {
        /// [`LOCAL_VERSION`].
        version: u32,
        /// The agent's name.
        agent: String,
        /// Where it serves HTTP, `http://host:port`.
        url: String,
        /// Bytes of batches that the reader may hold, and one batch beyond them.
        share: u64,
    },
    /// A slab; its descriptor comes with this message.
    Slab {
        /// Its number, which batches refer to.
        slab: u32,
        /// Its bytes.
        bytes: u64,
    },
    /// A batch; its bytes stay as they are until its lease is released.
    Batch {
        /// Which ask this answers.
        id: u64,
        /// Where it lies.
        #[serde(flatten)]
        place: BatchPlace,
        /// The plan it was made by.
        plan: String,
        /// The worker that made it.
        worker: String,
    },
    /// A document, or, for a report, the word that it was passed on.
    Document {
        /// Which ask this answers.
        id: u64,
        /// JSON.
        body: String,
    },
    /// There is no answer, and why.
    Refusal {
        /// Which ask this answers; 0 when the connection is refused.
        id: u64,
        /// What is wrong.
        problem: Problem,
        /// The plan that the workers have, when it is another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<String>,
        /// The worker that said so, when one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<String>,
    },
}

/// Where a batch lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPlace {
    /// To be released.
    pub lease: u64,
    /// The slab's number.
    pub slab: u32,
    /// Where in the slab it begins; a multiple of the page size.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// Bytes that are no messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalError {
    /// Longer than may be.
    #[error("a message of {bytes} bytes came, over the bound of {limit}")]
    TooLong {
        /// Bytes of the message.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// Not a message of this version.
    #[error("a message came that is none: {0}")]
    Malformed(String),
}

/// A message as it is sent.
#[must_use]
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    // Structs of strings and numbers always become JSON, of less than 4 GiB.
    drop(serde_json::to_writer(&mut bytes, message));
    let length = u32::try_from(bytes.len() - 4).unwrap_or(u32::MAX);
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Puts messages together from bytes as they come.
#[derive(Debug)]
pub struct Assembler {
    bytes: Vec<u8>,
    limit: usize,
}

impl Assembler {
    /// For messages of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit }
    }

    /// Takes bytes that came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message. Take all of them before more bytes are pushed: then no more than one message and one
    /// push are ever kept.
    ///
    /// # Errors
    /// A message that is too long, or none.
    pub fn message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LocalError> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.limit {
            return Err(LocalError::TooLong { bytes: length, limit: self.limit });
        }
        let Some(message) = rest.get(..length) else {
            return Ok(None);
        };
        let message =
            serde_json::from_slice(message).map_err(|error| LocalError::Malformed(error.to_string()))?;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks() -> Vec<Ask> {
        let batch = AskedBatch {
            stream: "train".into(),
            range: "8-12".into(),
            stop: Some(10),
            need_ms: 250,
            rank: 3,
            plan: None,
            deaths: 2,
        };
        let report = RankReport {
            run: "job".into(),
            stream: "train".into(),
            plan: "sha256:0".into(),
            rank: 0,
            size: 1,
            process: String::new(),
            ready: 2,
            target: 3,
            waiting_ms: 4,
            wait_ms: 5,
            step_ms: 6,
            waited_ms: 0,
            computed_ms: 0,
            trained: 0,
            consumed: 7,
            sequence: 8,
            farewell: false,
            quickest_us: 0,
            quickest_samples: 0,
            begin: None,
        };
        vec![
            Ask::Hello { version: LOCAL_VERSION, run: "job".into() },
            Ask::Batch { id: 7, batch: batch.clone() },
            Ask::Batch { id: 8, batch: AskedBatch { stop: None, plan: Some("sha256:0".into()), ..batch } },
            Ask::Cancel { id: 7 },
            Ask::Release { lease: u64::MAX },
            Ask::Plan { id: 1 },
            Ask::Status { id: 2 },
            Ask::Report { id: 3, report },
        ]
    }

    #[test]
    fn messages_come_back_however_they_are_cut() {
        let says = [
            Say::Welcome { version: 1, agent: "a".into(), url: "http://h:1".into(), share: 1 << 40 },
            Say::Slab { slab: 0, bytes: 1 << 26 },
            Say::Batch {
                id: 7,
                place: BatchPlace { lease: 1, slab: 0, offset: 4096, bytes: 99 },
                plan: "sha256:0".into(),
                worker: "http://w:1".into(),
            },
            Say::Document { id: 1, body: "{}".into() },
            Say::Refusal {
                id: 0,
                problem: Problem::new("kind", 503, "title", "detail"),
                plan: None,
                worker: None,
            },
        ];
        let ask_bytes: Vec<u8> = asks().iter().flat_map(encode).collect();
        let say_bytes: Vec<u8> = says.iter().flat_map(encode).collect();
        for cut in [1, 3, 7, 100_000] {
            let (mut assembler, mut got) = (Assembler::new(MAX_ASK_BYTES), Vec::<Ask>::new());
            for piece in ask_bytes.chunks(cut) {
                assembler.push(piece);
                while let Some(ask) = assembler.message().unwrap() {
                    got.push(ask);
                }
            }
            assert_eq!(got, asks());
            let (mut assembler, mut got) = (Assembler::new(MAX_SAY_BYTES), Vec::<Say>::new());
            for piece in say_bytes.chunks(cut) {
                assembler.push(piece);
                while let Some(say) = assembler.message().unwrap() {
                    got.push(say);
                }
            }
            assert_eq!(got, says);
        }
    }

    #[test]
    fn what_is_no_message_is_named() {
        let mut assembler = Assembler::new(10);
        assembler.push(&11u32.to_le_bytes());
        assert_eq!(assembler.message::<Ask>(), Err(LocalError::TooLong { bytes: 11, limit: 10 }));
        for text in ["{}", "[]", "", "{\"ask\":\"dance\"}", "\u{1}\u{2}"] {
            let mut assembler = Assembler::new(1000);
            assembler.push(&(text.len() as u32).to_le_bytes());
            assembler.push(text.as_bytes());
            assert!(matches!(assembler.message::<Ask>(), Err(LocalError::Malformed(_))), "{text}");
        }
        let mut assembler = Assembler::new(10);
        assembler.push(&[0, 0, 0]);
        assert_eq!(assembler.message::<Ask>(), Ok(None));
    }
}
