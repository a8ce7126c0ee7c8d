use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fault::FaultClass;

mod shapes;
mod tables;

fn parse(shape: RecordShape, record: Value) -> Result<Conversation, RecordError> {
    parse_record(&serde_json::to_vec(&record).unwrap(), &shape.into())
}

fn conversations(record: Value) -> Result<Conversation, RecordError> {
    parse(RecordShape::Conversations, record)
}

fn messages(record: Value) -> Result<Conversation, RecordError> {
    parse(RecordShape::Messages, record)
}

fn class(result: Result<Conversation, RecordError>) -> FaultClass {
    result.expect_err("a fault").class()
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn reference(path: &str) -> ImageReference {
    ImageReference::Path(path.to_owned())
}

fn path(path: &str) -> RecordImage {
    reference(path).into()
}

#[test]
fn placeholders_take_images_in_order_and_text_is_kept_verbatim() {
    let conversation = conversations(json!({
        "id": 7,
        "image": ["a b+%23.jpg", "s3://bucket/é.png"],
        "conversations": [
            {"from": "human", "value": " <image>\nfirst <image> "},
            {"from": "gpt", "value": "  answer\n"},
        ],
    }))
    .unwrap();
    assert_eq!(conversation.id.as_deref(), Some("7"));
    assert_eq!(conversation.images, [path("a b+%23.jpg"), path("s3://bucket/é.png")]);
    assert_eq!(
        conversation.messages[0].parts,
        [text(" "), Part::Image(0), text("\nfirst "), Part::Image(1), text(" ")]
    );
    assert_eq!(conversation.messages[1].parts, [text("  answer\n")]);
}

#[test]
fn images_without_placeholders_stand_before_the_first_user_text() {
    let conversation = conversations(json!({
        "images": ["a", "b"],
        "system": "s",
        "conversations": [{"from": "gpt", "value": "hello"}, {"from": "user", "value": "q"}, {"from": "model", "value": "a"}],
    }))
    .unwrap();
    let roles: Vec<Role> = conversation.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::Assistant, Role::User, Role::Assistant]);
    assert_eq!(conversation.messages[2].parts, [Part::Image(0), Part::Image(1), text("q")]);
}

#[test]
fn a_placeholder_in_an_answer_is_text_only_when_questions_account_for_all_images() {
    let record = |images: Value, question: &str| {
        conversations(json!({
            "image": images,
            "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": "write <image>"}],
        }))
    };
    let literal = record(json!("a"), "<image>q").unwrap();
    assert_eq!(literal.messages[1].parts, [text("write <image>")]);
    assert!(record(Value::Null, "q").is_ok());
    assert_eq!(class(record(json!("a"), "q")), FaultClass::PlaceholderMismatch);
    assert_eq!(class(record(json!(["a", "b"]), "<image>q")), FaultClass::PlaceholderMismatch);
}

#[test]
fn a_placeholder_is_text_where_images_are_parts() {
    let conversation = messages(json!({
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<image> or <video>?"}, {"image": "a"}]},
            {"role": "assistant", "content": "x"},
        ],
    }))
    .unwrap();
    assert_eq!(conversation.messages[0].parts, [text("<image> or <video>?"), Part::Image(0)]);
    assert!(messages(json!({"messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "x"}]})).is_ok());
}

#[test]
fn image_parts_without_a_reference_take_the_column_in_order() {
    let record = |images: Value| {
        messages(json!({
            "images": images,
            "messages": [
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q <image>"}, {"type": "image"}]},
                {"role": "assistant", "content": "x"},
            ],
        }))
    };
    assert_eq!(record(json!(["a", "b"])).unwrap().images, [path("a"), path("b")]);
    assert_eq!(class(record(json!(["a"]))), FaultClass::PlaceholderMismatch);
    assert_eq!(class(record(json!([]))), FaultClass::BadReference);
}

#[test]
fn a_trailing_user_turn_is_dropped_with_its_images_and_counted() {
    let conversation = conversations(json!({
        "image": ["a", "b"],
        "conversations": [
            {"from": "human", "value": "<image>q"}, {"from": "gpt", "value": ""},
            {"from": "human", "value": "<image>r"}, {"from": "human", "value": "?"},
        ],
    }))
    .unwrap();
    assert_eq!(conversation.images, [path("a")]);
    assert_eq!(conversation.messages.len(), 2);
    assert_eq!((conversation.dropped_trailing_user, conversation.empty_assistant), (2, 1));
}

#[test]
fn loss_and_weight_are_honoured_on_answers_and_refused_elsewhere() {
    let record = |answer: Value, question: Value| {
        let mut user = json!({"role": "user", "content": "q"});
        let mut assistant = json!({"role": "assistant", "content": "a"});
        user.as_object_mut().unwrap().extend(question.as_object().unwrap().clone());
        assistant.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
        messages(json!({"messages": [user, assistant]}))
    };
    let loss = |answer: Value| record(answer, json!({})).unwrap().messages[1].loss;
    assert_eq!(loss(json!({})), None);
    assert_eq!(loss(json!({"loss": false})), Some(false));
    assert_eq!(loss(json!({"weight": 1})), Some(true));
    assert_eq!(loss(json!({"weight": 0.0, "loss": null})), Some(false));
    for answer in [json!({"weight": 0.5}), json!({"loss": "no"}), json!({"loss": true, "weight": 0})] {
        assert_eq!(class(record(answer, json!({}))), FaultClass::UnsupportedField);
    }
    assert_eq!(class(record(json!({}), json!({"loss": true}))), FaultClass::UnsupportedField);
    assert!(record(json!({}), json!({"loss": false})).is_ok());
}

#[test]
fn function_calls_and_observations_become_calls_and_answers() {
    let conversation = conversations(json!({
        "tools": "[{\"name\": \"f\"}]",
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": 2.5}}"},
            {"from": "observation", "value": "r"},
            {"from": "gpt", "value": "a"},
        ],
    }))
    .unwrap();
    assert_eq!(conversation.tools, [json!({"name": "f"})]);
    assert_eq!(conversation.messages[1].tool_calls, [json!({"name": "f", "arguments": {"b": 1, "a": 2.5}})]);
    assert_eq!(conversation.messages[2].role, Role::Tool);
    assert_eq!(conversation.empty_assistant, 0);
}

#[test]
fn what_would_change_a_sample_and_is_not_supported_makes_the_record_bad() {
    let with = |field: &str, value: Value| {
        let mut record =
            json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]});
        record[field] = value;
        messages(record)
    };
    for field in ["video", "videos", "audio", "audios"] {
        assert_eq!(class(with(field, json!(["x"]))), FaultClass::UnsupportedModality);
        for empty in [json!(null), json!(""), json!([])] {
            assert!(with(field, empty).is_ok());
        }
    }
    for field in ["total_pixels", "nframes", "functions", "loss"] {
        assert_eq!(class(with(field, json!(1))), FaultClass::UnsupportedField);
    }
    assert!(with("source", json!({"video": "elsewhere"})).is_ok());
    let part = |part: Value| {
        messages(
            json!({"messages": [{"role": "user", "content": [part]}, {"role": "assistant", "content": "a"}]}),
        )
    };
    assert_eq!(class(part(json!({"type": "video", "video": "a"}))), FaultClass::UnsupportedModality);
    assert_eq!(class(part(json!({"depth_map": "a"}))), FaultClass::UnsupportedModality);
    assert_eq!(class(part(json!({"type": "text", "text": "a", "image": "b"}))), FaultClass::WrongShape);
    assert_eq!(
        class(messages(
            json!({"messages": [{"role": "user", "content": "<video>q"}, {"role": "assistant", "content": "a"}]})
        )),
        FaultClass::UnsupportedModality
    );
}

#[test]
fn images_in_answers_and_instructions_are_refused() {
    for role in ["assistant", "system"] {
        let record = json!({"messages": [
            {"role": role, "content": [{"type": "image", "image": "a"}]},
            {"role": "assistant", "content": "a"},
        ]});
        assert_eq!(class(messages(record)), FaultClass::PlaceholderMismatch);
    }
    let record = json!({"image": "a", "conversations": [
        {"from": "system", "value": "<image>"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"},
    ]});
    assert_eq!(class(conversations(record)), FaultClass::PlaceholderMismatch);
}

#[test]
fn references_are_paths_or_bytes() {
    let read = |value: Value| ReferenceReader::new(&[], ImageSize::default()).read(&value);
    let png: &[u8] = b"\x89PNG\r\n\x1a\n and sixty bytes more, so that it is taken for a picture of its own";
    let png = Bytes::from_static(png);
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &png);
    assert_eq!(read(json!(encoded)).unwrap(), ImageReference::Inline(png.clone()));
    assert_eq!(
        read(json!(format!("data:image/png;base64,{encoded}"))).unwrap(),
        ImageReference::Inline(png.clone())
    );
    assert_eq!(read(json!({"bytes": encoded, "path": "a"})).unwrap(), ImageReference::Inline(png));
    assert_eq!(read(json!({"bytes": [1, 2]})).unwrap(), ImageReference::Inline(vec![1, 2].into()));
    assert_eq!(read(json!({"bytes": null, "path": "a/../b"})).unwrap(), reference("a/../b"));
    assert_eq!(
        read(json!({"path": "shard.tar", "offset": 512, "length": 10})).unwrap(),
        ImageReference::Range { path: "shard.tar".into(), offset: 512, length: 10 }
    );
    // Long names that are valid base64 and no picture stay names.
    let name = "a".repeat(80);
    assert_eq!(read(json!(name)).unwrap(), reference(&name));
    for bad in [
        json!(""),
        json!("a\0b"),
        json!(5),
        json!(null),
        json!({}),
        json!({"bytes": [256]}),
        json!({"bytes": []}),
        json!("data:image/png,abc"),
        json!("data:image/png;base64,***"),
        json!("data:nothing"),
        json!({"path": "shard.tar", "offset": 0}),
        json!({"path": "shard.tar", "length": 10}),
        json!({"path": "shard.tar", "offset": 0, "length": 0}),
        json!({"path": "shard.tar", "offset": -1, "length": 10}),
        json!({"path": "shard.tar", "offset": u64::MAX, "length": 1}),
        json!({"path": "data:image/png;base64,AAAA", "offset": 0, "length": 1}),
        json!({"bytes": "AAAA", "path": "shard.tar", "offset": 0, "length": 1}),
        json!({"offset": 0, "length": 1}),
    ] {
        assert_eq!(read(bad).unwrap_err().class(), FaultClass::BadReference);
    }
}

#[test]
fn bytes_of_a_row_stand_wherever_a_reference_may() {
    let blobs = vec![Bytes::from_static(b"one"), Bytes::from_static(b"two"), Bytes::new()];
    let row = |fields: Value| {
        let Value::Object(fields) = fields else { panic!("an object") };
        Row { fields, blobs: blobs.clone() }
    };
    let read = |image: Value| {
        let row = row(
            json!({"images": [image], "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}),
        );
        read_row(row, &RecordShape::Conversations.into())
            .map(|conversation| conversation.images[0].reference.clone())
    };
    let inline = |bytes: &'static [u8]| ImageReference::Inline(Bytes::from_static(bytes));
    assert_eq!(read(Row::blob_reference(1)).unwrap(), inline(b"two"));
    assert_eq!(read(json!({"bytes": Row::blob_reference(0), "path": "x.jpg"})).unwrap(), inline(b"one"));
    assert_eq!(read(json!({"bytes": null, "path": "x.jpg"})).unwrap(), reference("x.jpg"));
    for bad in [
        Row::blob_reference(2),
        Row::blob_reference(3),
        json!({"bytes": Row::blob_reference(3), "path": "x.jpg"}),
    ] {
        assert_eq!(read(bad).unwrap_err().class(), FaultClass::BadReference);
    }
    let part = json!({"messages": [
        {"role": "user", "content": [{"type": "image", "image": Row::blob_reference(1)}]},
        {"role": "assistant", "content": "a"},
    ]});
    let conversation = read_row(row(part), &RecordShape::Messages.into()).unwrap();
    assert_eq!(conversation.images[0].reference, inline(b"two"));
    // A line that forges one has no blobs to reach.
    let forged = json!({"image": Row::blob_reference(0), "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]});
    assert_eq!(class(conversations(forged)), FaultClass::BadReference);
}

#[test]
fn bytes_that_are_not_one_record_are_refused_as_such() {
    let deep = "[".repeat(100_000);
    let nested = format!("{{\"conversations\": {}1{}}}", "[".repeat(200), "]".repeat(200));
    let lines: [(&[u8], FaultClass); 12] = [
        (b"", FaultClass::MalformedJson),
        (b"{\"conversations\": [", FaultClass::MalformedJson),
        (b"{\"a\": 1} {\"a\": 1}", FaultClass::MalformedJson),
        (b"{\"a\": \"\xff\xfe\"}", FaultClass::MalformedJson),
        (b"{\"a\": \"\x00\"}", FaultClass::MalformedJson),
        (b"{\"a\": \"\\ud800\"}", FaultClass::MalformedJson),
        (b"{\"a\": 1e999}", FaultClass::MalformedJson),
        (b"{\"messages\": [], \"messages\": []}", FaultClass::MalformedJson),
        (deep.as_bytes(), FaultClass::MalformedJson),
        (nested.as_bytes(), FaultClass::MalformedJson),
        (b"[]", FaultClass::WrongShape),
        (b"null", FaultClass::WrongShape),
    ];
    for (line, expected) in lines {
        assert_eq!(class(parse_record(line, &RecordShape::Messages.into())), expected);
    }
    // A NUL that JSON writes as an escape is text like any other.
    let escaped = b"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\\u0000b\"}]}";
    assert_eq!(parse_record(escaped, &RecordShape::Messages.into()).unwrap().messages[0].text(), "a\0b");
}

#[test]
fn numbers_that_lost_digits_are_refused_where_templates_print_them() {
    let record = |number: &str| {
        let line = format!(
            r#"{{"score": {number}, "messages": [{{"role": "assistant", "content": null, "tool_calls": [{{"name": "f", "arguments": {{"n": {number}}}}}]}}]}}"#
        );
        parse_record(line.as_bytes(), &RecordShape::Messages.into())
    };
    assert!(record("18446744073709551615").is_ok());
    assert!(record("-9223372036854775808").is_ok());
    assert_eq!(class(record("18446744073709551616")), FaultClass::UnsupportedField);
    assert_eq!(class(record("1e300")), FaultClass::UnsupportedField);
}

#[test]
fn a_record_with_both_lists_or_two_systems_is_refused() {
    let list = json!([{"from": "gpt", "value": "a"}]);
    assert_eq!(
        class(conversations(json!({"conversations": list, "messages": list}))),
        FaultClass::WrongShape
    );
    assert!(conversations(json!({"conversations": list, "messages": null})).is_ok());
    let two = json!({"system": "a", "conversations": [{"from": "system", "value": "b"}, {"from": "gpt", "value": "a"}]});
    assert_eq!(class(conversations(two)), FaultClass::WrongShape);
}

/// JSON made of the words that records are made of, so that parsing goes deep.
fn any_json() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "messages",
        "conversations",
        "role",
        "content",
        "from",
        "value",
        "user",
        "human",
        "gpt",
        "assistant",
        "system",
        "tool",
        "observation",
        "function_call",
        "type",
        "text",
        "image",
        "images",
        "image_url",
        "url",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "tools",
        "loss",
        "weight",
        "id",
        "video",
        "<image>",
        "<image><image>",
        "a.jpg",
        "data:image/png;base64,AAAA",
        "{\"name\": \"f\"}",
        "",
        "bytes",
        "path",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..6).prop_map(|fields| {
                Value::Object(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_json_is_read_or_refused_and_images_stand_in_order(record in any_json(), list in prop::collection::vec(any_json(), 0..4)) {
        let mut records = vec![record.clone(), json!({"messages": list, "images": record})];
        records.push(json!({"conversations": list, "image": record}));
        records.push(json!({"texts": list, "images": record}));
        records.push(json!({"question": "q", "answer": record, "images": list}));
        records.push(json!({"prompt": "p", "history": list, "response": record}));
        for record in records {
            for shape in RecordShape::ALL {
                let Ok(conversation) = parse(shape, record.clone()) else { continue };
                let order: Vec<usize> = conversation.messages.iter().flat_map(|message| &message.parts)
                    .filter_map(|part| match part { Part::Image(index) => Some(*index), Part::Text(_) => None }).collect();
                prop_assert_eq!(order, (0..conversation.images.len()).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_record(&bytes, &RecordShape::Messages.into());
        let _ = detect_shape([bytes.as_slice()].into_iter(), &Columns::default());
    }
}

/// A struct that lost its picture on the way was taken for no picture.
#[test]
fn an_empty_struct_is_no_missing_picture() {
    let record = json!({"image": {}, "conversations": [
        {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}
    ]});
    let line = serde_json::to_vec(&record).unwrap();
    assert_eq!(class(parse_record(&line, &RecordShape::Conversations.into())), FaultClass::BadReference);
}
