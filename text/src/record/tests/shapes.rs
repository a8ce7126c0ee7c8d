//! The shapes that are columns rather than lists of turns, and how a data set's shape is told.

use super::*;

fn turns(conversation: &Conversation) -> Vec<(Role, String)> {
    conversation.messages.iter().map(|message| (message.role, message.text())).collect()
}

fn user(text: &str) -> (Role, String) {
    (Role::User, text.to_owned())
}

fn assistant(text: &str) -> (Role, String) {
    (Role::Assistant, text.to_owned())
}

#[test]
fn pairs_are_turns_with_the_images_before_the_first() {
    let conversation = parse(
        RecordShape::Texts,
        json!({
            "images": ["a.png", {"bytes": null, "path": "b.png"}],
            "texts": [{"user": "q", "assistant": "a", "source": "x"}, {"user": "r", "assistant": ""}],
            "relevance_ratings": [4, 5],
        }),
    )
    .unwrap();
    assert_eq!(turns(&conversation), [user("q"), assistant("a"), user("r"), assistant("")]);
    assert_eq!(conversation.messages[0].parts, [Part::Image(0), Part::Image(1), text("q")]);
    assert_eq!(conversation.images, [path("a.png"), path("b.png")]);
    for texts in [
        json!([{"user": "q"}]),
        json!(["q"]),
        json!([{"user": 1, "assistant": "a"}]),
        json!([]),
        json!("q"),
        json!(null),
    ] {
        assert_eq!(class(parse(RecordShape::Texts, json!({"texts": texts}))), FaultClass::WrongShape);
    }
    let video = json!({"texts": [{"user": "q", "assistant": "a", "video": "v"}]});
    assert_eq!(class(parse(RecordShape::Texts, video)), FaultClass::UnsupportedModality);
}

#[test]
fn a_fault_says_in_which_message_it_is() {
    let good = json!({"role": "user", "content": "q"});
    let second = |message: Value| messages(json!({"messages": [good, message]}));
    let cases = [
        (
            conversations(json!({"messages": [good]})),
            "record has another shape: there is no list under conversations",
        ),
        (second(json!("a")), "message 1: record has another shape: a message is not an object"),
        (second(json!({"role": "gpt", "content": 1})), "message 1: record has another shape: content is"),
        (second(json!({"role": "writer", "content": "a"})), "message 1: the role is unknown"),
        (second(json!({"role": "assistant", "content": "a", "audio": "b"})), "message 1: audio is neither"),
        (
            parse(RecordShape::Texts, json!({"texts": [{"user": "q", "assistant": "a"}, "q"]})),
            "entry of texts 1: record has another shape: it is not an object",
        ),
        (
            parse(
                RecordShape::PromptResponse,
                json!({"prompt": "q", "response": "a", "history": [["q", "a"], ["q"]]}),
            ),
            "entry of history 1: record has another shape: it is not a pair of texts",
        ),
    ];
    for (read, begins) in cases {
        let fault = read.unwrap_err().to_string();
        assert!(fault.starts_with(begins), "{fault}");
    }
}

#[test]
fn a_question_takes_the_first_answer() {
    let record = |fields: Value| {
        let mut record = json!({"image": "a.png"});
        record.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        parse(RecordShape::QuestionAnswer, record)
    };
    let answers = [
        (json!({"question": "q", "answer": "a"}), "a"),
        (json!({"query": "q", "label": ["a", "b"]}), "a"),
        (json!({"question": "q", "answers": ["a"], "answer": null}), "a"),
        (json!({"question": "q", "query": "", "answer": ""}), ""),
    ];
    for (fields, answer) in answers {
        let conversation = record(fields).unwrap();
        assert_eq!(turns(&conversation), [user("q"), assistant(answer)]);
        assert_eq!(conversation.messages[0].parts[0], Part::Image(0));
    }
    for fields in [
        json!({"question": "q"}),
        json!({"answer": "a"}),
        json!({"question": "q", "answer": []}),
        json!({"question": "q", "answer": 5}),
        json!({"question": "q", "answer": [{"answer": "a"}]}),
        json!({"question": {"en": "q"}, "answer": "a"}),
        json!({"question": "q", "query": "r", "answer": "a"}),
        json!({"question": "q", "answer": "a", "label": ["b"]}),
        json!({"question": "q", "answer": "a", "messages": [{"role": "user", "content": "x"}]}),
    ] {
        assert_eq!(class(record(fields)), FaultClass::WrongShape);
    }
}

#[test]
fn prompt_and_input_are_joined_by_one_newline() {
    let record = |fields: Value| parse(RecordShape::PromptResponse, fields);
    let cases = [
        (json!({"instruction": "i", "input": "x", "output": "o"}), vec![user("i\nx"), assistant("o")]),
        (json!({"instruction": "i", "input": "", "output": "o"}), vec![user("i"), assistant("o")]),
        (json!({"instruction": "", "input": "x", "output": "o"}), vec![user("x"), assistant("o")]),
        (json!({"prompt": "p", "completion": "c"}), vec![user("p"), assistant("c")]),
        (
            json!({"query": "q", "response": "r", "history": [["a", "b"], ["c", "d"]]}),
            vec![user("a"), assistant("b"), user("c"), assistant("d"), user("q"), assistant("r")],
        ),
        (json!({"query": "q", "response": "r", "history": null}), vec![user("q"), assistant("r")]),
        (
            json!({"system": "s", "prompt": "p", "response": "r"}),
            vec![(Role::System, "s".to_owned()), user("p"), assistant("r")],
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(turns(&record(fields).unwrap()), expected);
    }
    let placed = record(json!({"query": "see <image>!", "response": "r", "images": ["a.png"]})).unwrap();
    assert_eq!(placed.messages[0].parts, [text("see "), Part::Image(0), text("!")]);
    for fields in [
        json!({"output": "o"}),
        json!({"prompt": "p"}),
        json!({"prompt": "p", "output": null}),
        json!({"prompt": "p", "instruction": "i", "output": "o"}),
        json!({"prompt": "p", "response": [{"role": "assistant", "content": "a"}]}),
        json!({"prompt": "p", "response": "r", "history": [["a"]]}),
        json!({"prompt": "p", "response": "r", "history": "h"}),
    ] {
        assert_eq!(class(record(fields)), FaultClass::WrongShape);
    }
    let video = record(json!({"prompt": "p", "response": "r", "videos": ["v.mp4"]}));
    assert_eq!(class(video), FaultClass::UnsupportedModality);
}

#[test]
fn a_data_set_names_its_own_columns() {
    let named = |names: &[(Column, &str)], shape: RecordShape| RecordRules {
        columns: names.iter().map(|(column, name)| (*column, (*name).to_owned())).collect(),
        ..RecordRules::from(shape)
    };
    let read =
        |record: Value, rules: &RecordRules| parse_record(&serde_json::to_vec(&record).unwrap(), rules);
    let rules = named(
        &[(Column::Question, "frage"), (Column::Answer, "antwort"), (Column::Image, "bild")],
        RecordShape::QuestionAnswer,
    );
    // A part that is named is looked for under that name only.
    let record =
        json!({"frage": "q", "antwort": "a", "bild": "b.png", "image": "other.png", "question": "other"});
    let conversation = read(record, &rules).unwrap();
    assert_eq!(turns(&conversation), [user("q"), assistant("a")]);
    assert_eq!(conversation.images, [path("b.png")]);
    assert_eq!(class(read(json!({"question": "q", "answer": "a"}), &rules)), FaultClass::WrongShape);
    let rules = named(&[(Column::Messages, "conversations")], RecordShape::Messages);
    let record =
        json!({"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]});
    assert_eq!(turns(&read(record, &rules).unwrap()), [user("q"), assistant("a")]);
}

#[test]
fn the_shape_is_what_most_of_the_first_records_have() {
    let detect = |lines: &[&str]| detect_shape(lines.iter().map(|line| line.as_bytes()), &Columns::default());
    let (c, m) = (r#"{"conversations": []}"#, r#"{"messages": [], "question": "q", "answer": "a"}"#);
    let t = r#"{"images": [], "texts": [{"user": "q", "assistant": "a"}]}"#;
    let (vqa, chart) =
        (r#"{"question": "q", "answers": ["a"]}"#, r#"{"query": "q", "label": ["a"], "image": "x"}"#);
    let (alpaca, swift) =
        (r#"{"instruction": "i", "input": "", "output": "o"}"#, r#"{"query": "q", "response": "r"}"#);
    for (line, shape) in [
        (c, RecordShape::Conversations),
        (m, RecordShape::Messages),
        (t, RecordShape::Texts),
        (vqa, RecordShape::QuestionAnswer),
        (chart, RecordShape::QuestionAnswer),
        (alpaca, RecordShape::PromptResponse),
        (swift, RecordShape::PromptResponse),
    ] {
        assert_eq!(detect(&[line]), Ok(shape), "{line}");
    }
    assert_eq!(detect(&[c, "broken", m, c]), Ok(RecordShape::Conversations));
    let mixed =
        ShapeError::Mixed { records: 1, shape: RecordShape::Conversations, other: RecordShape::Messages };
    assert_eq!(detect(&[m, c]), Err(mixed));
    // Two shapes fit these, or none.
    for line in [
        "{}",
        r#"{"messages": 1}"#,
        r#"{"texts": ["a"]}"#,
        r#"{"query": "q", "response": "r", "answer": "a"}"#,
        r#"{"messages": [], "conversations": []}"#,
        r#"{"question": "q", "answer": 5}"#,
    ] {
        assert_eq!(detect(&[line]), Err(ShapeError::Unknown { records: 1 }), "{line}");
    }
    let columns: Columns = [(Column::Question, "frage".to_owned()), (Column::Answer, "antwort".to_owned())]
        .into_iter()
        .collect();
    let rows = [parse_line(br#"{"frage": "q", "antwort": "a"}"#).unwrap()];
    assert_eq!(detect_shape_of_rows(rows.iter(), &columns), Ok(RecordShape::QuestionAnswer));
}

#[test]
fn pixel_fields_stand_on_records_and_on_image_parts() {
    let size = |min: u64, max: u64, resized| ImageSize {
        min_pixels: (min > 0).then_some(min),
        max_pixels: (max > 0).then_some(max),
        resized,
    };
    let conversation = messages(json!({
        "min_pixels": 1000, "max_pixels": 9000,
        "messages": [
            {"role": "user", "content": [
                {"type": "image", "image": "a", "max_pixels": 5000},
                {"type": "image", "image": "b", "resized_height": 280, "resized_width": 420, "min_pixels": null},
                {"type": "image", "image": "c"},
            ]},
            {"role": "assistant", "content": "x"},
        ],
    }))
    .unwrap();
    let sizes: Vec<ImageSize> = conversation.images.iter().map(|image| image.size).collect();
    assert_eq!(sizes, [size(1000, 5000, None), size(1000, 9000, Some((280, 420))), size(1000, 9000, None)]);
    let column = conversations(json!({
        "image": "a", "max_pixels": 7,
        "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
    }));
    assert_eq!(column.unwrap().images[0].size, size(0, 7, None));
    let part = |part: Value| {
        messages(
            json!({"max_pixels": 100, "messages": [{"role": "user", "content": [part]}, {"role": "assistant", "content": "a"}]}),
        )
    };
    for bad in [
        json!({"type": "image", "image": "a", "min_pixels": 101}),
        json!({"type": "image", "image": "a", "max_pixels": 0}),
        json!({"type": "image", "image": "a", "max_pixels": -4}),
        json!({"type": "image", "image": "a", "max_pixels": "5000"}),
        json!({"type": "image", "image": "a", "max_pixels": 1.5}),
        json!({"type": "image", "image": "a", "resized_height": 280}),
        json!({"type": "image", "image": "a", "resized_height": 280, "resized_width": 65536}),
        json!({"type": "image_url", "image_url": {"url": "a", "max_pixels": 5}}),
        json!({"type": "image", "image": {"path": "a", "max_pixels": 5}}),
        json!({"type": "image", "image": "a", "nframes": 4}),
    ] {
        assert_eq!(class(part(bad.clone())), FaultClass::UnsupportedField, "{bad}");
    }
    assert_eq!(class(part(json!({"type": "text", "text": "a", "max_pixels": 5}))), FaultClass::WrongShape);
    let message = json!({"messages": [{"role": "user", "content": "q", "max_pixels": 5}, {"role": "assistant", "content": "a"}]});
    assert_eq!(class(messages(message)), FaultClass::UnsupportedField);
}

#[test]
fn reasoning_stands_on_answers_only() {
    let record = |role: &str, reasoning: Value| {
        messages(json!({"messages": [
            {"role": "user", "content": "q"},
            {"role": role, "content": "a", "reasoning_content": reasoning},
            {"role": "assistant", "content": "b"},
        ]}))
    };
    assert_eq!(
        record("assistant", json!("because")).unwrap().messages[1].reasoning.as_deref(),
        Some("because")
    );
    for nothing in [json!(null), json!("")] {
        assert_eq!(record("user", nothing).unwrap().messages[1].reasoning, None);
    }
    assert_eq!(class(record("user", json!("because"))), FaultClass::UnsupportedField);
    assert_eq!(class(record("assistant", json!(["because"]))), FaultClass::UnsupportedField);
}

#[test]
fn nesting_and_size_of_a_line_bound_what_reading_it_takes() {
    let nested = |levels: usize| format!("{{\"x\": {}1{}}}", "[".repeat(levels), "]".repeat(levels));
    assert!(parse_line(nested(126).as_bytes()).is_ok());
    assert!(matches!(parse_line(nested(128).as_bytes()), Err(RecordError::MalformedJson(_))));
    // What parse_line promises of values.
    assert!(size_of::<Value>() <= 72);
    let many = |values: usize| format!("{{\"x\": [{}1]}}", "1,".repeat(values - 3));
    assert!(parse_line(many(json::MOST_VALUES).as_bytes()).is_ok());
    let error = parse_line(many(json::MOST_VALUES + 1).as_bytes()).unwrap_err();
    assert!(
        matches!(&error, RecordError::MalformedJson(source) if source.to_string().contains("1048576 values"))
    );
}
