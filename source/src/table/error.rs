//! What can be wrong with a Parquet data set as a whole, and with one row of it.

use crate::error::FetchError;
use crate::uri::{ObjectUri, UriError};

/// Why a Parquet data set cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The store gave no bytes; [`FetchError`] says whether asking again later makes sense.
    #[error("cannot read {uri}")]
    Fetch {
        /// Which file, or the folder.
        uri: String,
        /// Why.
        #[source]
        source: Box<FetchError>,
    },
    /// The address.
    #[error("address {uri} cannot be used")]
    Uri {
        /// What was given.
        uri: String,
        /// What is wrong with it.
        #[source]
        source: UriError,
    },
    /// Nothing there.
    #[error("{uri} names no file: there must be at least one that ends in .parquet")]
    NoFiles {
        /// What was given.
        uri: String,
    },
    /// A file that cannot be read.
    #[error("the Parquet file {uri} cannot be read")]
    File {
        /// Which file.
        uri: ObjectUri,
        /// Why.
        #[source]
        source: Refusal,
    },
}

impl TableError {
    /// What the store said, when it gave no bytes. A transient error means to open again later.
    #[must_use]
    pub fn fetch_error(&self) -> Option<&FetchError> {
        match self {
            Self::Fetch { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// What is wrong with a Parquet file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No `PAR1` at its end.
    #[error("it does not end as a Parquet file: it is cut, or of another format")]
    NotParquet,
    /// An encrypted footer.
    #[error("its footer is encrypted: write it without encryption")]
    Encrypted,
    /// A footer beyond the limit.
    #[error(
        "its footer has {bytes} bytes, the limit is {limit}: write it with fewer columns or larger row groups"
    )]
    LongFooter {
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A footer that is broken or lies.
    #[error("its footer is damaged: {what}")]
    Footer {
        /// In which way.
        what: String,
    },
    /// A column that is needed and cannot be read.
    #[error("column {column}: {what}")]
    Column {
        /// The column's path.
        column: String,
        /// What is wrong with it.
        what: String,
    },
    /// None of the columns that a record could be made of.
    #[error("it has none of the columns that records are made of")]
    NoColumns,
}

/// Why a row cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// A bad record: its pages are damaged, or it is longer than the limit. `too_large` tells these apart.
    #[error("{what}")]
    Bad {
        /// Whether it is a matter of size.
        too_large: bool,
        /// What is wrong, with the column.
        what: String,
    },
    /// The caller asked for a row that the data set does not have.
    #[error("there is no row {index}: the data set has {rows}")]
    OutOfRange {
        /// 0-based number asked for.
        index: u64,
        /// Rows there are.
        rows: u64,
    },
    /// The store gave no bytes, or other bytes than those that were opened. Only a transient error is worth asking again.
    #[error("cannot read the Parquet file {uri}")]
    Fetch {
        /// Which file.
        uri: ObjectUri,
        /// Why.
        #[source]
        source: Box<FetchError>,
    },
    /// A fault of ours: decoding did not run.
    #[error("decoding a row did not end: {0}")]
    Lost(String),
}
