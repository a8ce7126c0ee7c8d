//! Takes an image reference found in a record, gives the object it names, or refuses it: places where a data set's images may
//! lie, and prefixes that are written otherwise than they are stored.

use crate::uri::{ObjectPrefix, ObjectUri, ReferenceError, resolve_reference};

/// Where a data set's images lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRoots {
    base: ObjectPrefix,
    /// (what references begin with, where that lies); the first that fits counts.
    prefixes: Vec<(String, ObjectPrefix)>,
    allowed: Vec<ObjectPrefix>,
}

impl ImageRoots {
    /// Relative references are joined to `base`. A reference that begins with the first part of one of `prefixes`, byte for byte, names
    /// what the rest of it names below the second part. Other `s3://` and `file://` references must lie below `base` or one of
    /// `allowed`.
    #[must_use]
    pub fn new(
        base: ObjectPrefix,
        prefixes: Vec<(String, ObjectPrefix)>,
        allowed: Vec<ObjectPrefix>,
    ) -> Self {
        Self { base, prefixes, allowed }
    }

    /// What relative references are joined to.
    #[must_use]
    pub fn base(&self) -> &ObjectPrefix {
        &self.base
    }

    /// Every place that references can lead to, the base first; one may stand twice.
    pub fn places(&self) -> impl Iterator<Item = &ObjectPrefix> {
        let mapped = self.prefixes.iter().map(|(_, place)| place);
        std::iter::once(&self.base).chain(mapped).chain(&self.allowed)
    }

    /// The place below which an object lies that [`ImageRoots::resolve`] gave.
    #[must_use]
    pub fn place_of(&self, uri: &ObjectUri) -> &ObjectPrefix {
        self.places().find(|place| place.contains(uri)).unwrap_or(&self.base)
    }

    /// The object that a reference names.
    ///
    /// # Errors
    /// Every way of leaving the places; see [`ReferenceError`].
    pub fn resolve(&self, reference: &str) -> Result<ObjectUri, ReferenceError> {
        for (from, place) in &self.prefixes {
            if let Some(rest) = reference.strip_prefix(from.as_str()) {
                return place.join(rest);
            }
        }
        resolve_reference(&self.base, &self.allowed, reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(uri: &str) -> ObjectPrefix {
        ObjectPrefix::parse(uri).unwrap()
    }

    fn roots() -> ImageRoots {
        let base = prefix("s3://b/images");
        let prefixes = vec![
            ("/mnt/data/".to_owned(), base.clone()),
            ("https://example.org/coco/".to_owned(), prefix("s3://coco/train")),
            ("coco/".to_owned(), base.folder("train 2017/").unwrap()),
        ];
        ImageRoots::new(base, prefixes, vec![prefix("s3://other/x"), prefix("file:///shared")])
    }

    #[test]
    fn prefixes_are_rewritten_byte_for_byte_and_nothing_leaves_its_place() {
        let cases = [
            ("a/b.jpg", "s3://b/images/a/b.jpg"),
            ("/mnt/data/a%20b+c#.jpg", "s3://b/images/a%20b+c#.jpg"),
            ("https://example.org/coco/é.jpg", "s3://coco/train/é.jpg"),
            ("coco/1.jpg", "s3://b/images/train 2017/1.jpg"),
            ("s3://other/x/1.jpg", "s3://other/x/1.jpg"),
            ("file:///shared/1.jpg", "file:///shared/1.jpg"),
        ];
        for (reference, expected) in cases {
            let uri = roots().resolve(reference).unwrap();
            assert_eq!(uri.to_string(), expected);
            assert!(roots().place_of(&uri).contains(&uri));
        }
        for reference in [
            "/mnt/data/../secret.jpg",
            "/mnt/data/",
            "/mnt/data//etc/passwd",
            "/mnt/data2/a.jpg",
            "coco/../../a.jpg",
            "https://example.org/other/a.jpg",
            "s3://other/xy/1.jpg",
            "file:///shared/../etc/passwd",
            "file:///etc/passwd",
        ] {
            assert!(roots().resolve(reference).is_err(), "{reference}");
        }
    }

    #[test]
    fn the_web_is_refused_with_a_remedy() {
        for reference in ["http://example.org/a.jpg", "https://example.org/a.jpg"] {
            let error = roots().resolve(reference).unwrap_err();
            assert!(matches!(error, ReferenceError::Web { .. }), "{error}");
            assert!(error.to_string().contains("imagePrefixes"), "{error}");
        }
    }

    #[test]
    fn a_folder_below_a_prefix_stays_below_it() {
        let base = prefix("s3://b/images");
        assert_eq!(base.folder("").unwrap(), base);
        assert_eq!(base.folder("a/b/").unwrap(), prefix("s3://b/images/a/b"));
        assert_eq!(prefix("file:///x").folder("a").unwrap(), prefix("file:///x/a"));
        for folder in ["/a", "../a", "a//b", "a\0"] {
            assert!(base.folder(folder).is_err(), "{folder}");
        }
    }
}
