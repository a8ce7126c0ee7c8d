//! What is read here against the way through all of JSON.

use proptest::prelude::*;

use super::*;
use crate::record::{Columns, parse_line, read_row};

/// What the way through all of JSON gives.
fn whole(line: &[u8], rules: &RecordRules) -> Option<Conversation> {
    read_row(parse_line(line).ok()?, rules).ok()
}

const SHAPES: [RecordShape; 2] = [RecordShape::Conversations, RecordShape::Messages];

#[test]
fn usual_records_are_read_here_and_as_ever() {
    for (shape, line) in [
        (
            SHAPES[0],
            r#"{"id": "a", "image": "x.jpg", "conversations": [{"from": "human", "value": "<image>\n?"}, {"from": "gpt", "value": "é\u00e9"}]}"#,
        ),
        (
            SHAPES[0],
            r#"{"id": 7, "source": "y", "score": 1.5, "conversations": [{"value": "?", "from": "human"}, {"from": "gpt", "value": ""}]}"#,
        ),
        (
            SHAPES[0],
            r#"{"images": [], "system": "be kind", "conversations": [{"from": "human", "value": "a <image b"}, {"from": "gpt", "value": "<image>"}]}"#,
        ),
        (
            SHAPES[1],
            r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "<image>"}, {"role": "assistant", "content": "b"}]}"#,
        ),
        (
            SHAPES[1],
            r#"{"images": ["a.jpg", "b.jpg"], "messages": [{"role": "user", "content": "<image>x<image>"}, {"role": "assistant", "content": "b"}], "id": null}"#,
        ),
        (
            SHAPES[1],
            r#" {"image": null, "messages": [{"role": "user", "content": "<video>"}, {"role": "user", "content": "x"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]} "#,
        ),
    ] {
        let rules = RecordRules::from(shape);
        let expected = whole(line.as_bytes(), &rules);
        assert_eq!(read(line.as_bytes(), &rules), expected, "{line}");
        assert_eq!(expected.is_some(), !line.contains("<video>"), "{line}");
        // Names of columns of one's own.
        let columns = [(Column::Id, "key".to_owned())].into_iter().collect::<Columns>();
        assert_eq!(read(line.as_bytes(), &RecordRules { columns, ..rules }), None);
    }
}

/// Values that stand in records, and some that should not.
fn any_value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            r#""a""#, r#""""#, r#""<image>""#, r#""x <image>\n<image>""#, r#""\ud83d\ude00""#, r#""\ud83d""#, "null",
            "true", "1", "-1", "1.5", "1e999", "18446744073709551616", "[]", "{}", "[null]", r#"["a.jpg"]"#,
            r#"["a.jpg", ""]"#, r#"["a", "b"]"#, r#"{"a": 1, "a": 2}"#, r#"[{"path": "a"}]"#, r#"{"bytes": [255]}"#,
            r#""data:image/png;base64,AAAA""#, r#""<video>""#, r#""a\u0000b""#, "\"\u{1}\"",
        ])
        .prop_map(str::to_owned),
        1 => any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ]
}

fn any_turn() -> impl Strategy<Value = String> {
    let role = prop::sample::select(vec![
        "human",
        "gpt",
        "user",
        "assistant",
        "system",
        "tool",
        "function_call",
        "x",
    ]);
    let keys = prop::sample::select(vec![
        ("from", "value"),
        ("from", "value"),
        ("role", "content"),
        ("role", "content"),
        ("role", "value"),
        ("role", "loss"),
    ]);
    let extra = prop::option::weighted(
        0.1,
        (prop::sample::select(vec!["weight", "content", "name", "image"]), any_value()),
    );
    (keys, role, any_value(), extra, any::<bool>()).prop_map(|((from, value), role, text, extra, swapped)| {
        let (one, other) = (format!("\"{from}\": \"{role}\""), format!("\"{value}\": {text}"));
        let (one, other) = if swapped { (other, one) } else { (one, other) };
        let extra = extra.map_or(String::new(), |(key, value)| format!(", \"{key}\": {value}"));
        format!("{{{one}, {other}{extra}}}")
    })
}

fn any_line() -> impl Strategy<Value = String> {
    let names = vec![
        "id",
        "image",
        "images",
        "system",
        "tools",
        "source",
        "score",
        "video",
        "loss",
        "weight",
        "max_pixels",
        "texts",
        "messages",
        "conversations",
        "question",
        "prompt",
        "input",
    ];
    let fields = prop::collection::vec((prop::sample::select(names), any_value()), 0..4);
    let list = prop::sample::select(vec!["conversations", "messages"]);
    let turns = prop::collection::vec(any_turn(), 0..5);
    let end = prop::sample::select(vec!["", "", "", "", " ", "x", "}"]);
    (fields, list, turns, any::<prop::sample::Index>(), end).prop_map(|(fields, list, turns, at, end)| {
        let mut fields: Vec<String> =
            fields.into_iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        fields.insert(at.index(fields.len() + 1), format!("\"{list}\": [{}]", turns.join(", ")));
        format!("{{{}}}{end}", fields.join(", "))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_here_is_what_the_whole_way_gives(line in any_line()) {
        for shape in SHAPES {
            let rules = RecordRules::from(shape);
            if let Some(conversation) = read(line.as_bytes(), &rules) {
                prop_assert_eq!(Some(conversation), whole(line.as_bytes(), &rules), "{}", line);
            }
        }
    }
}
