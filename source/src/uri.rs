//! Takes the text of a reference or setting, gives the object it names, or refuses it.
//!
//! Names are taken byte for byte: no percent decoding, no Unicode normalisation, no folding of `//` or `./`. What stands after
//! `s3://bucket/` is the key, what stands after `file://` is the path. The S3 client encodes a key exactly once, on the wire.

use std::fmt;
use std::path::{Path, PathBuf};

/// The longest key S3 takes, in bytes of UTF-8 (Amazon S3 user guide, "Naming objects"); a longer one is refused before any request.
pub const MAX_KEY_BYTES: usize = 1024;

/// Errors repeat at most this many characters of a reference, so that a megabyte of base64 in the wrong column does not become a message.
const QUOTED_CHARACTERS: usize = 200;

/// One object: a key in a bucket, or a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectUri {
    /// `s3://bucket/key`.
    S3 {
        /// Bucket name.
        bucket: String,
        /// Key, byte for byte; never empty.
        key: String,
    },
    /// `file:///path`, always absolute.
    File(PathBuf),
}

/// A place below which objects lie: `s3://bucket/some/prefix/` or `file:///folder/`.
///
/// A prefix always ends at a `/`: `s3://b/images` means `s3://b/images/` and does not cover `s3://b/images-secret/x`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ObjectPrefix {
    /// Keys of `bucket` that begin with `prefix`.
    S3 {
        /// Bucket name.
        bucket: String,
        /// Empty (the whole bucket) or ending in `/`.
        prefix: String,
    },
    /// Files below this absolute folder.
    File(PathBuf),
}

/// Why an address in the settings is refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum UriError {
    /// Neither `s3://` nor `file://`.
    #[error("'{uri}' is not an s3:// or file:// address")]
    Scheme {
        /// What was given, shortened.
        uri: String,
    },
    /// `s3://` without a usable bucket name.
    #[error("'{uri}' names no bucket: write s3://bucket/key")]
    NoBucket {
        /// What was given, shortened.
        uri: String,
    },
    /// An object was expected and the address ends before a key or file name.
    #[error("'{uri}' names no object: write s3://bucket/key or file:///path")]
    NoObject {
        /// What was given, shortened.
        uri: String,
    },
    /// `file://` must be followed by an absolute path without a host.
    #[error("'{uri}' has no absolute path: write file:///path with three slashes")]
    RelativeFile {
        /// What was given, shortened.
        uri: String,
    },
    /// `.` or `..` as a segment of a prefix or path in the settings.
    #[error("'{uri}' contains '..': write the path it stands for")]
    ParentSegment {
        /// What was given, shortened.
        uri: String,
    },
    /// A NUL byte.
    #[error("'{uri}' contains a NUL byte")]
    Nul {
        /// What was given, shortened.
        uri: String,
    },
    /// Longer than [`MAX_KEY_BYTES`].
    #[error("the key of '{uri}' has {bytes} bytes, more than S3's 1024")]
    KeyTooLong {
        /// What was given, shortened.
        uri: String,
        /// Length of the key.
        bytes: usize,
    },
}

/// Why an image reference of a record is refused. Always a bad record, never a fault of the store.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReferenceError {
    /// Nothing, or only a prefix.
    #[error("the reference is empty")]
    Empty,
    /// Begins with `/`.
    #[error(
        "'{reference}' is an absolute path: references are relative to the image base, or s3:// or file:// below an allowed root"
    )]
    Absolute {
        /// The reference, shortened.
        reference: String,
    },
    /// Has `..` as a segment.
    #[error("'{reference}' contains '..' and could leave the image base")]
    ParentSegment {
        /// The reference, shortened.
        reference: String,
    },
    /// Has `//` inside or `/` at the end.
    #[error("'{reference}' has an empty path segment")]
    EmptySegment {
        /// The reference, shortened.
        reference: String,
    },
    /// Has a NUL byte.
    #[error("'{reference}' contains a NUL byte")]
    Nul {
        /// The reference, shortened.
        reference: String,
    },
    /// `http://` or `https://`.
    #[error(
        "'{reference}' is on the web, where nothing is fetched from: copy the pictures to a bucket and rewrite the prefix by imagePrefixes"
    )]
    Web {
        /// The reference, shortened.
        reference: String,
    },
    /// `gs://` and friends.
    #[error("'{reference}' is neither a path nor an s3:// or file:// address")]
    Scheme {
        /// The reference, shortened.
        reference: String,
    },
    /// Below none of the allowed roots.
    #[error("'{reference}' lies outside the image base and every allowed root")]
    Outside {
        /// The reference, shortened.
        reference: String,
    },
    /// The joined key is longer than [`MAX_KEY_BYTES`].
    #[error("'{reference}' gives a key of {bytes} bytes, more than S3's 1024")]
    KeyTooLong {
        /// The reference, shortened.
        reference: String,
        /// Length of the joined key.
        bytes: usize,
    },
}

impl ObjectUri {
    /// Reads `s3://bucket/key` or `file:///path`.
    ///
    /// # Errors
    /// Another scheme, no bucket, no key, a path that is not absolute, `..` or NUL in a path, a key over 1024 bytes.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        match split(text)? {
            Split::S3 { bucket, rest } => {
                if rest.is_empty() {
                    return Err(UriError::NoObject { uri: shorten(text) });
                }
                if rest.len() > MAX_KEY_BYTES {
                    return Err(UriError::KeyTooLong { uri: shorten(text), bytes: rest.len() });
                }
                Ok(Self::S3 { bucket: bucket.to_owned(), key: rest.to_owned() })
            }
            Split::File { path } if path.ends_with('/') => Err(UriError::NoObject { uri: shorten(text) }),
            Split::File { path } => Ok(Self::File(PathBuf::from(path))),
        }
    }

    /// The folder the object lies in: what stands before the last `/`.
    #[must_use]
    pub fn parent(&self) -> ObjectPrefix {
        match self {
            Self::S3 { bucket, key } => {
                let end = key.rfind('/').map_or(0, |at| at + 1);
                ObjectPrefix::S3 { bucket: bucket.clone(), prefix: key[..end].to_owned() }
            }
            Self::File(path) => ObjectPrefix::File(path.parent().unwrap_or(Path::new("/")).to_owned()),
        }
    }
}

impl ObjectPrefix {
    /// Reads `s3://bucket`, `s3://bucket/prefix` (with or without the last `/`) or `file:///folder`.
    ///
    /// # Errors
    /// As [`ObjectUri::parse`], except that the part after the bucket may be empty.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        match split(text)? {
            Split::S3 { bucket, rest } => {
                if rest.len() > MAX_KEY_BYTES {
                    return Err(UriError::KeyTooLong { uri: shorten(text), bytes: rest.len() });
                }
                let mut prefix = rest.to_owned();
                if !prefix.is_empty() && !prefix.ends_with('/') {
                    prefix.push('/');
                }
                Ok(Self::S3 { bucket: bucket.to_owned(), prefix })
            }
            Split::File { path } => Ok(Self::File(PathBuf::from(path))),
        }
    }

    /// The object that the relative `reference` names below this prefix, byte for byte.
    ///
    /// A symbolic link below a file prefix is followed: what links point at is the choice of whoever made the folder, not of a record.
    ///
    /// # Errors
    /// Anything that is not plainly below: a leading `/`, `..`, an empty segment, NUL; and a key over 1024 bytes.
    pub fn join(&self, reference: &str) -> Result<ObjectUri, ReferenceError> {
        if reference.is_empty() {
            return Err(ReferenceError::Empty);
        }
        if reference.starts_with('/') {
            return Err(ReferenceError::Absolute { reference: shorten(reference) });
        }
        check_segments(reference)?;
        if reference.split('/').any(str::is_empty) {
            return Err(ReferenceError::EmptySegment { reference: shorten(reference) });
        }
        match self {
            Self::S3 { bucket, prefix } => {
                let key = format!("{prefix}{reference}");
                check_key_length(&key, reference)?;
                Ok(ObjectUri::S3 { bucket: bucket.clone(), key })
            }
            Self::File(folder) => Ok(ObjectUri::File(folder.join(reference))),
        }
    }

    /// The folder below this prefix that a relative name gives; "" is the prefix itself.
    ///
    /// # Errors
    /// As [`ObjectPrefix::join`].
    pub fn folder(&self, name: &str) -> Result<Self, ReferenceError> {
        let name = name.strip_suffix('/').unwrap_or(name);
        if name.is_empty() {
            return Ok(self.clone());
        }
        Ok(match self.join(name)? {
            ObjectUri::S3 { bucket, key } => Self::S3 { bucket, prefix: key + "/" },
            ObjectUri::File(path) => Self::File(path),
        })
    }

    /// Whether `uri` lies below this prefix. Compares names only; `..` must have been refused before.
    #[must_use]
    pub fn contains(&self, uri: &ObjectUri) -> bool {
        match (self, uri) {
            (Self::S3 { bucket, prefix }, ObjectUri::S3 { bucket: other, key }) => {
                bucket == other && key.len() > prefix.len() && key.starts_with(prefix.as_str())
            }
            (Self::File(folder), ObjectUri::File(path)) => path != folder && path.starts_with(folder),
            _ => false,
        }
    }
}

/// The object that `reference`, found in a record, names: a path below `base`, or an `s3://` or `file://` address below `base` or one
/// of the `allowed` roots.
///
/// # Errors
/// Every way of leaving those places, each as its own variant; see [`ReferenceError`].
pub fn resolve_reference(
    base: &ObjectPrefix,
    allowed: &[ObjectPrefix],
    reference: &str,
) -> Result<ObjectUri, ReferenceError> {
    let Some(scheme_end) = scheme_length(reference) else {
        return base.join(reference);
    };
    let rest = &reference[scheme_end..];
    if ["http://", "https://"].contains(&reference[..scheme_end].to_ascii_lowercase().as_str()) {
        return Err(ReferenceError::Web { reference: shorten(reference) });
    }
    check_segments(rest)?;
    if rest.is_empty() {
        return Err(ReferenceError::Empty);
    }
    let uri = ObjectUri::parse(reference).map_err(|error| match error {
        UriError::KeyTooLong { bytes, .. } => {
            ReferenceError::KeyTooLong { reference: shorten(reference), bytes }
        }
        UriError::NoObject { .. } => ReferenceError::EmptySegment { reference: shorten(reference) },
        _ => ReferenceError::Scheme { reference: shorten(reference) },
    })?;
    if std::iter::once(base).chain(allowed).any(|root| root.contains(&uri)) {
        Ok(uri)
    } else {
        Err(ReferenceError::Outside { reference: shorten(reference) })
    }
}

impl fmt::Display for ObjectUri {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, key } => write!(out, "s3://{bucket}/{key}"),
            Self::File(path) => write!(out, "file://{}", path.display()),
        }
    }
}

impl fmt::Display for ObjectPrefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, prefix } => write!(out, "s3://{bucket}/{prefix}"),
            Self::File(path) => {
                let path = path.display().to_string();
                write!(out, "file://{}/", path.trim_end_matches('/'))
            }
        }
    }
}

impl std::str::FromStr for ObjectUri {
    type Err = UriError;
    fn from_str(text: &str) -> Result<Self, UriError> {
        Self::parse(text)
    }
}

impl std::str::FromStr for ObjectPrefix {
    type Err = UriError;
    fn from_str(text: &str) -> Result<Self, UriError> {
        Self::parse(text)
    }
}

enum Split<'a> {
    S3 { bucket: &'a str, rest: &'a str },
    File { path: &'a str },
}

fn split(text: &str) -> Result<Split<'_>, UriError> {
    if text.contains('\0') {
        return Err(UriError::Nul { uri: shorten(text) });
    }
    if let Some(rest) = text.strip_prefix("s3://") {
        let (bucket, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if bucket.is_empty() || !bucket.bytes().all(plain) || bucket.starts_with('.') {
            return Err(UriError::NoBucket { uri: shorten(text) });
        }
        return Ok(Split::S3 { bucket, rest });
    }
    if let Some(path) = text.strip_prefix("file://") {
        if !path.starts_with('/') {
            return Err(UriError::RelativeFile { uri: shorten(text) });
        }
        if path.split('/').any(|segment| segment == "..") {
            return Err(UriError::ParentSegment { uri: shorten(text) });
        }
        return Ok(Split::File { path });
    }
    Err(UriError::Scheme { uri: shorten(text) })
}

fn check_segments(path: &str) -> Result<(), ReferenceError> {
    if path.contains('\0') {
        return Err(ReferenceError::Nul { reference: shorten(path) });
    }
    if path.split('/').any(|segment| segment == "..") {
        return Err(ReferenceError::ParentSegment { reference: shorten(path) });
    }
    Ok(())
}

fn check_key_length(key: &str, reference: &str) -> Result<(), ReferenceError> {
    if key.len() > MAX_KEY_BYTES {
        return Err(ReferenceError::KeyTooLong { reference: shorten(reference), bytes: key.len() });
    }
    Ok(())
}

/// Length of `scheme://` at the beginning of `text`, if there is one (RFC 3986: a letter, then letters, digits, `+`, `-`, `.`).
fn scheme_length(text: &str) -> Option<usize> {
    let end = text.find("://")?;
    let scheme = text.get(..end)?;
    let first = scheme.bytes().next()?;
    let rest = scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    (first.is_ascii_alphabetic() && rest).then_some(end + 3)
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
