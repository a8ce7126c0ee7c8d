use super::*;

fn prefix(text: &str) -> ObjectPrefix {
    ObjectPrefix::parse(text).unwrap()
}

#[test]
fn keys_are_taken_byte_for_byte() {
    for key in [
        "a b",
        "a+b",
        "a%20b",
        "a#b",
        "a?b=c",
        "a&b",
        "ü/日本/😀.jpg",
        "a\\b",
        "./a",
        "a//b",
        " a ",
        "a/",
        "~",
    ] {
        let text = format!("s3://bucket/{key}");
        let uri = ObjectUri::parse(&text).unwrap();
        assert_eq!(uri, ObjectUri::S3 { bucket: "bucket".into(), key: key.into() });
        assert_eq!(uri.to_string(), text);
    }
    let uri = ObjectUri::parse("file:///a b/%20#?.jsonl").unwrap();
    assert_eq!(uri, ObjectUri::File("/a b/%20#?.jsonl".into()));
    assert_eq!(uri.to_string(), "file:///a b/%20#?.jsonl");
}

#[test]
fn addresses_without_an_object_are_refused() {
    let cases = [
        ("http://b/k", "is not an s3:// or file:// address"),
        ("/tmp/x", "is not an s3:// or file:// address"),
        ("s3:///k", "names no bucket"),
        ("s3://b?x/k", "names no bucket"),
        ("s3://b", "names no object"),
        ("s3://b/", "names no object"),
        ("file://host/p", "no absolute path"),
        ("file:///a/", "names no object"),
        ("file:///a/../b", "contains '..'"),
        ("file:///a\0", "NUL"),
    ];
    for (text, says) in cases {
        let error = ObjectUri::parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text:?}: {error}");
    }
    assert!(matches!(
        ObjectUri::parse(&format!("s3://b/{}", "k".repeat(1025))),
        Err(UriError::KeyTooLong { bytes: 1025, .. })
    ));
    assert!(ObjectUri::parse(&format!("s3://b/{}", "k".repeat(1024))).is_ok());
}

#[test]
fn prefixes_end_at_a_slash() {
    assert_eq!(prefix("s3://b/images"), prefix("s3://b/images/"));
    assert_eq!(prefix("s3://b"), prefix("s3://b/"));
    assert_eq!(prefix("s3://b/images").to_string(), "s3://b/images/");
    assert_eq!(prefix("file:///").to_string(), "file:///");
    assert!(!prefix("s3://b/images").contains(&ObjectUri::parse("s3://b/images-secret/x").unwrap()));
    assert!(!prefix("file:///images").contains(&ObjectUri::parse("file:///images-secret/x").unwrap()));
    assert_eq!(ObjectUri::parse("s3://b/x/y.jsonl").unwrap().parent(), prefix("s3://b/x"));
    assert_eq!(ObjectUri::parse("s3://b/y.jsonl").unwrap().parent(), prefix("s3://b"));
    assert_eq!(ObjectUri::parse("file:///y.jsonl").unwrap().parent(), prefix("file:///"));
}

#[test]
fn relative_references_are_joined_byte_for_byte() {
    let s3 = prefix("s3://b/images");
    for reference in
        ["a.jpg", "x/a b+%20#.jpg", "./a.jpg", "..a", "a..", "a/...", "ü.png", "a\\..\\b", "C:\\x"]
    {
        let uri = resolve_reference(&s3, &[], reference).unwrap();
        assert_eq!(uri.to_string(), format!("s3://b/images/{reference}"));
    }
    let file = prefix("file:///data/images");
    assert_eq!(
        resolve_reference(&file, &[], "x/a.jpg").unwrap(),
        ObjectUri::File("/data/images/x/a.jpg".into())
    );
}

#[test]
fn references_never_leave_the_allowed_places() {
    let base = prefix("s3://b/images/");
    let allowed = [prefix("s3://other/pictures"), prefix("file:///data/images")];
    let quoted = |reference: &str| reference.to_owned();
    let cases = [
        ("", ReferenceError::Empty),
        ("/etc/passwd", ReferenceError::Absolute { reference: quoted("/etc/passwd") }),
        ("../x", ReferenceError::ParentSegment { reference: quoted("../x") }),
        ("a/../../x", ReferenceError::ParentSegment { reference: quoted("a/../../x") }),
        ("a/..", ReferenceError::ParentSegment { reference: quoted("a/..") }),
        ("a//b", ReferenceError::EmptySegment { reference: quoted("a//b") }),
        ("a/", ReferenceError::EmptySegment { reference: quoted("a/") }),
        ("a\0b", ReferenceError::Nul { reference: quoted("a\0b") }),
        ("gs://host/x", ReferenceError::Scheme { reference: quoted("gs://host/x") }),
        ("http://host/x", ReferenceError::Web { reference: quoted("http://host/x") }),
        ("S3://b/images/x", ReferenceError::Scheme { reference: quoted("S3://b/images/x") }),
        ("s3://b/x", ReferenceError::Outside { reference: quoted("s3://b/x") }),
        ("s3://b/images-secret/x", ReferenceError::Outside { reference: quoted("s3://b/images-secret/x") }),
        ("s3://b/images/", ReferenceError::Outside { reference: quoted("s3://b/images/") }),
        ("s3://b/images/../x", ReferenceError::ParentSegment { reference: quoted("b/images/../x") }),
        ("s3://c/images/x", ReferenceError::Outside { reference: quoted("s3://c/images/x") }),
        ("file:///etc/passwd", ReferenceError::Outside { reference: quoted("file:///etc/passwd") }),
        (
            "file:///data/images/../x",
            ReferenceError::ParentSegment { reference: quoted("/data/images/../x") },
        ),
        ("file://data/images/x", ReferenceError::Scheme { reference: quoted("file://data/images/x") }),
    ];
    for (reference, expected) in cases {
        assert_eq!(resolve_reference(&base, &allowed, reference), Err(expected), "{reference:?}");
    }
    for reference in ["s3://b/images/x", "s3://b/images//x", "s3://other/pictures/x", "file:///data/images/x"]
    {
        assert_eq!(resolve_reference(&base, &allowed, reference).unwrap().to_string(), reference);
    }
}

#[test]
fn long_references_are_refused_and_shortened_in_the_message() {
    let error = prefix("s3://b/images").join(&"x".repeat(1_000_000)).unwrap_err();
    assert!(matches!(error, ReferenceError::KeyTooLong { bytes: 1_000_007, .. }));
    assert!(error.to_string().len() < 300);
}
