//! Templates of data sets: columns in, messages out.

use super::*;

fn rules(source: &str) -> RecordRules {
    RecordRules {
        template: Some(RowTemplate::compile(source).unwrap()),
        ..RecordRules::from(RecordShape::Messages)
    }
}

fn read(source: &str, record: Value) -> Result<Conversation, RecordError> {
    parse_record(&serde_json::to_vec(&record).unwrap(), &rules(source))
}

const CHOICES: &str = r#"
{%- set prompt -%}
{{ question }}{% for choice in choices %}

{{ "ABCD"[loop.index0] }}. {{ choice }}{% endfor %}
{%- endset -%}
[{"role": "user", "content": {{ prompt | tojson }}}, {"role": "assistant", "content": {{ "ABCD"[answer] | tojson }}}]
"#;

#[test]
fn a_template_writes_messages_of_columns_and_images_are_not_lost() {
    let record = json!({"id": 7, "question": "a \"q\"\n?", "choices": ["x", "y"], "answer": 1, "image": "a.png", "max_pixels": 900});
    let conversation = read(CHOICES, record).unwrap();
    assert_eq!(conversation.messages[0].parts, [Part::Image(0), text("a \"q\"\n?\nA. x\nB. y")]);
    assert_eq!(conversation.messages[1].text(), "B");
    assert_eq!(conversation.id.as_deref(), Some("7"));
    assert_eq!(conversation.images[0].reference, reference("a.png"));
    assert_eq!(conversation.images[0].size.max_pixels, Some(900));
}

#[test]
fn a_template_may_write_the_whole_record() {
    let source = r#"{"messages": [{"role": "user", "content": "{{ q }}"}, {"role": "assistant", "content": "a"}],
        "images": {{ shots[:1] | tojson }}, "tools": [{"name": "f"}], "id": "n{{ id }}"}"#;
    let conversation = read(source, json!({"q": "q", "shots": ["a", "b"], "image": "c", "id": 3})).unwrap();
    assert_eq!(conversation.images, [path("a")]);
    assert_eq!(conversation.tools, [json!({"name": "f"})]);
    assert_eq!(conversation.id.as_deref(), Some("n3"));
    let none = source.replace("{{ shots[:1] | tojson }}", "[]");
    assert!(read(&none, json!({"q": "q", "image": "c", "id": 3})).unwrap().images.is_empty());
}

#[test]
fn bytes_of_a_row_pass_through_a_template() {
    let source = r#"{"messages": [{"role": "user", "content": [{"type": "image", "image": {{ picture | tojson }}}]}, {"role": "assistant", "content": "a"}]}"#;
    let fields = json!({"picture": {"bytes": Row::blob_reference(0), "path": null}});
    let Value::Object(fields) = fields else { panic!("an object") };
    let row = Row { fields, blobs: vec![Bytes::from_static(b"png")] };
    let conversation = read_row(row, &rules(source)).unwrap();
    assert_eq!(conversation.images[0].reference, ImageReference::Inline(Bytes::from_static(b"png")));
}

#[test]
fn what_a_template_gets_wrong_makes_the_record_bad_with_its_own_message() {
    let cases = [
        (r#"{{ raise_exception("no answer") }}"#, FaultClass::Template, "no answer"),
        ("not json", FaultClass::Template, "no valid json"),
        ("[{\"role\": \"user\", \"content\": {{ missing | tojson }}}]", FaultClass::Template, "undefined"),
        ("{{ missing }}", FaultClass::Template, "undefined"),
        (
            "{% set x = 1 %}{{ missing }}{{ range(x) }}{{ missing_too }}",
            FaultClass::Template,
            r#"; the record has no column "missing", "missing_too", it has "secret""#,
        ),
        // The column is there, and what stands in it has no such part.
        ("{{ secret.part.part }}", FaultClass::Template, "undefined value"),
        ("\"text\"", FaultClass::WrongShape, "neither a list of messages"),
        ("[]", FaultClass::WrongShape, "empty"),
        (
            "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
            FaultClass::Template,
            "out of fuel",
        ),
        ("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", FaultClass::Template, "failed"),
        (
            r#"{% set x = "0123456789" * 100000 %}{% for i in range(40) %}{{ x }}{% endfor %}"#,
            FaultClass::Template,
            "more text",
        ),
    ];
    for (source, expected, message) in cases {
        let error = read(source, json!({"secret": "text of the record"})).unwrap_err();
        assert_eq!(error.class(), expected, "{source}: {error}");
        assert!(error.to_string().contains(message), "{source}: {error}");
        assert!(!error.to_string().contains("text of the record"), "{error}");
    }
    let video = read(CHOICES, json!({"question": "q", "choices": [], "answer": 0, "video": "v.mp4"}));
    assert_eq!(class(video), FaultClass::UnsupportedModality);
}

#[test]
fn a_template_that_does_not_compile_names_its_line() {
    let error = RowTemplate::compile("[\n{{ question | nothing }}\n{% if %}\n]").unwrap_err();
    assert_eq!(error.line, 3, "{error}");
    assert!(error.to_string().starts_with("the template does not compile: syntax error"), "{error}");
    assert!(RowTemplate::compile("{{ x | no_such_filter }}").is_err());
}

/// A misspelt key of a template's object lost what it was meant to say.
#[test]
fn a_template_may_not_write_keys_that_a_record_does_not_have() {
    let template = r#"{"messages": [{"role": "assistant", "content": "a"}], "imagess": ["a.png"]}"#;
    let error = read(template, json!({})).unwrap_err();
    assert!(error.to_string().contains("imagess") || format!("{error:?}").contains("imagess"), "{error:?}");
}
