//! Takes the address of Parquet files, gives each file's own address, in the order of their names.

use super::error::TableError;
use crate::error::FetchError;
use crate::stores::Stores;
use crate::uri::{ObjectPrefix, ObjectUri};

const SUFFIX: &str = ".parquet";

/// The files that `uri` names: itself, those of a folder, or those that match `*` in its last part.
pub(super) async fn files(stores: &Stores, uri: &str) -> Result<Vec<ObjectUri>, TableError> {
    let wrong = |source| TableError::Uri { uri: uri.to_owned(), source };
    let (folder, pattern) = match uri.rfind('/') {
        Some(slash) => uri.split_at(slash + 1),
        None => ("", uri),
    };
    let pattern = if pattern.is_empty() { "*.parquet" } else { pattern };
    if !pattern.contains('*') {
        return Ok(vec![ObjectUri::parse(uri).map_err(wrong)?]);
    }
    let folder = ObjectPrefix::parse(folder).map_err(wrong)?;
    let begins = pattern.split('*').next().unwrap_or_default();
    let failed = |source: FetchError| TableError::Fetch { uri: uri.to_owned(), source: Box::new(source) };
    let mut names = stores.list(&folder, begins).await.map_err(failed)?;
    names.retain(|name| name.ends_with(SUFFIX) && matches(pattern, name));
    names.sort_unstable();
    let joined = names.iter().map(|name| match &folder {
        ObjectPrefix::S3 { bucket, prefix } => {
            ObjectUri::S3 { bucket: bucket.clone(), key: format!("{prefix}{name}") }
        }
        ObjectPrefix::File(path) => ObjectUri::File(path.join(name)),
    });
    Ok(joined.collect())
}

/// Whether `name` is `pattern` with any text for each `*`.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        let yes = [
            ("*.parquet", "a.parquet"),
            ("train-*.parquet", "train-0-of-2.parquet"),
            ("a*b*c", "abbc"),
            ("a", "a"),
        ];
        let no = [("train-*.parquet", "test-0.parquet"), ("a*b*c", "acb"), ("ab*ba", "aba"), ("a", "ab")];
        assert!(yes.iter().all(|(pattern, name)| matches(pattern, name)));
        assert!(no.iter().all(|(pattern, name)| !matches(pattern, name)));
    }
}
