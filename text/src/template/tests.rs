//! Outlines against the template itself.

use proptest::prelude::*;

use super::*;
use crate::control::{Controls, Hide};
use crate::record::{ImageReference, Message, Part, Role};
use crate::tokenizer::AddedToken;

/// As Qwen2-VL's checkpoints have it, with subscripts and a default system turn.
const SUBSCRIPTS: &str = "{% set image_count = namespace(value=0) %}{% for message in messages %}\
    {% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}\
    <|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n\
    {% else %}{% for content in message['content'] %}\
    {% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}\
    {% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}\
    <|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}\
    <|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Says itself what is learnt.
const GENERATION: &str = "{% for m in messages %}<|im_start|>{{ m.role ~ '\n' }}{% if m.role == 'assistant' %}\
    {% generation %}{{ m.content ~ '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}\n\
    {% endfor %}";

/// Texts in variables, in captures and in macros with names, a list of messages that is cut.
const VARIABLES: &str = "{% macro write(content, before='>') %}{% if not (content is string) %}{% for part in content %}\
    {{ part.text if part.type == 'text' else '[image]' }}{% endfor %}{% else %}{{ before ~ content }}{% endif %}{% endmacro %}\
    {% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}\
    {% else %}{% set system = '' %}{% set rest = messages %}{% endif %}\
    {% if system %}S {{ system }}\n{% endif %}{% for m in rest if m.role != 'tool' %}\
    {% set said %}{{ write(before=loop.index ~ ' ', content=m.content) }}{% endset %}\
    {% if m.role == 'system' %}{{ raise_exception('system message in the middle') }}{% endif %}\
    {% if loop.previtem and loop.previtem.role == m.role %}{% continue %}{% endif %}\
    {{ m.role + ': ' + said }}{% if m.content == '' %}(nothing){% endif %}{% if loop.last %}.{% endif %}{% endfor %}\
    {{ rest|length }}";

fn proven() -> Vec<String> {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tokenizer/chat_template.jinja");
    vec![
        std::fs::read_to_string(golden).unwrap(),
        BuiltinTemplate::Qwen2Vl.source().to_owned(),
        BuiltinTemplate::Qwen3Vl.source().to_owned(),
        SUBSCRIPTS.to_owned(),
        GENERATION.to_owned(),
        VARIABLES.to_owned(),
    ]
}

fn compiled(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, None, Vec::new()).unwrap()
}

fn conversation(messages: Vec<(Role, Vec<Option<String>>)>) -> Conversation {
    let mut images = Vec::new();
    let messages = messages
        .into_iter()
        .map(|(role, parts)| {
            let part = |part| match part {
                Some(text) => Part::Text(text),
                None => {
                    images.push(ImageReference::Path("x".into()).into());
                    Part::Image(images.len() - 1)
                }
            };
            let parts = parts.into_iter().map(part).collect();
            Message { role, parts, reasoning: None, loss: None, tool_calls: Vec::new() }
        })
        .collect();
    Conversation {
        id: None,
        messages,
        images,
        tools: Vec::new(),
        dropped_trailing_user: 0,
        empty_assistant: 0,
    }
}

/// Texts that show what is done to them.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("<|im_end|>".to_owned()),
        Just("<|im_".to_owned()),
        Just("end|>".to_owned()),
        Just("<b>&amp;\"'\\".to_owned()),
        Just(" \n".to_owned()),
        Just("{{ x }}{% raw %}".to_owned()),
        Just("</think>".to_owned()),
        Just("x".to_owned()),
        "[A-Za-z ]{1,6}",
        any::<String>(),
    ];
    prop::collection::vec(piece, 1..4)
        .prop_map(|pieces| pieces.concat())
        .prop_map(|text| if text.is_empty() { "-".into() } else { text })
}

fn any_conversation() -> impl Strategy<Value = Conversation> {
    let role = prop_oneof![
        1 => Just(Role::System),
        3 => Just(Role::User),
        3 => Just(Role::Assistant),
        1 => Just(Role::Tool),
    ];
    let parts = prop::collection::vec(prop_oneof![3 => any_text().prop_map(Some), 1 => Just(None)], 0..4);
    prop::collection::vec((role, parts), 1..6).prop_map(conversation)
}

fn controls() -> Controls {
    let token = AddedToken { id: 7, content: "<|im_end|>".into(), special: true, normalized: false };
    Controls::new(&[token], "", &[], |_| vec![1]).unwrap()
}

/// What both ways of rendering say, errors in words.
fn both(
    template: &ChatTemplate,
    conversation: &Conversation,
    hider: Option<&Hider<'_>>,
) -> [Result<String, String>; 2] {
    [template.render(conversation, hider), template.run(conversation, hider)]
        .map(|rendered| rendered.map_err(|error| error.to_string()))
}

#[test]
fn templates_that_copy_texts_are_known_to() {
    for source in proven() {
        assert!(compiled(&source).outlines.is_some(), "{source}");
    }
}

#[test]
fn templates_that_look_into_texts_are_not_outlined() {
    for body in [
        "{{ m.content|trim }}",
        "{{ m.content.strip() }}",
        "{{ m.content|length }}",
        "{{ m.content[:3] }}",
        "{{ m.content[0] }}",
        "{{ m.content * 2 }}",
        "{{ m.content|tojson }}",
        "{{ m['content']|upper }}",
        "{{ m }}",
        "{{ messages }}",
        "{{ messages|tojson }}",
        "{{ [m.content] }}",
        "{{ {'a': m.content} }}",
        "{{ m.items() }}",
        "{{ m.get('content')|length }}",
        "{% if 'x' in m.content %}x{% endif %}",
        "{% if m.content == 'x' %}x{% endif %}",
        "{% if m.content < 'x' %}x{% endif %}",
        "{% if m.content is startingwith('x') %}x{% endif %}",
        "{% if m.content == loop.previtem.content %}x{% endif %}",
        "{% if loop.changed(m.content) %}x{% endif %}",
        "{% for c in m.content %}.{% endfor %}",
        "{% if m.content is string %}{% for c in m.content %}.{% endfor %}{% endif %}",
        "{% if m.content is string %}x{% else %}{% for p in m.content %}{{ p.text|length }}{% endfor %}{% endif %}",
        "{% set x = m.content %}{{ x|length }}",
        "{% set x %}{{ m.content }}{% endset %}{{ x|length }}",
        "{% set x = m.content ~ '' %}{% if x == 'x' %}x{% endif %}",
        "{% set ns = namespace() %}{% set ns.x = m.content %}{{ ns.x|length }}",
        "{% set x = namespace(y=m.content) %}{{ x.y|length }}",
        "{% set a, b = m.content, 1 %}{{ a|length }}",
        "{% macro f(x) %}{{ x|length }}{% endmacro %}{{ f(m.content) }}",
        "{% macro f() %}{{ m.content|length }}{% endmacro %}{{ f() }}",
        "{% set x = m.content %}{% macro f() %}{{ x|length }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ x|length }}{% endmacro %}{% set x = m.content %}{{ f() }}",
        "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(m.content)|length }}",
        "{% macro f(x) %}{{ x }}{% endmacro %}{% set g = f %}{{ g(m.content)|length }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(m.content) }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ m.content }}{% endcall %}",
        "{% filter upper %}{{ m.content }}{% endfilter %}",
        "{% set x %}{{ m.content }}{% endset %}{% with y = x %}{{ y|length }}{% endwith %}",
        "{{ raise_exception(m.content) }}",
        "{{ m.content is string and m.content|length }}",
        "{{ 'x' if m.content > 'x' else 'y' }}",
        "{{ (m.content or '')|length }}",
        "{% autoescape true %}{{ m.content }}{% endautoescape %}",
    ] {
        let source = format!("{{% for m in messages %}}{body}{{% endfor %}}");
        assert!(compiled(&source).outlines.is_none(), "{source}");
    }
}

#[test]
fn lists_that_are_written_as_lists_run_the_template() {
    let template = compiled("{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}");
    assert!(template.outlines.is_some());
    let text = |text: &str| Some(text.to_owned());
    for parts in [vec![text("a")], vec![text("a'\n"), None], vec![None]] {
        let [outlined, run] = both(&template, &conversation(vec![(Role::User, parts)]), None);
        assert_eq!(outlined, run);
    }
}

/// Statements that copy texts, and some that do not; `m` is a message.
const STATEMENTS: [&str; 24] = [
    "{{ m.role }}",
    "{{ m.content }}",
    "{{ x }}",
    "{{ x ~ m.role }}",
    "{% set x = m.content %}",
    "{% set x = x ~ 'a' %}",
    "{% set x = '' %}",
    "{% set x %}<{{ x }}>{% endset %}",
    "{{ w(m.content) }}",
    "{{ w(x) }}",
    "{{ v() }}",
    "{% if x %}yes{% endif %}",
    "{% if m.content is string %}{{ m.content }}{% set x = m.content %}{% else %}{% for p in m.content %}{{ p.text }}{% set x = p.text %}{% endfor %}{% endif %}",
    "{% if m.content is string %}{% set x = m.content %}{% endif %}",
    "{% if loop.previtem %}{{ loop.previtem.content }}{% endif %}",
    "{% if loop.last %}{{ loop.index0 }}{% endif %}",
    "{% if m.content == '' %}empty{% endif %}",
    "{% if m.content %}full{% endif %}",
    "{% set n.c = n.c + 1 %}{{ n.c }}",
    "{% if m.role == 'user' %}{% continue %}{% endif %}",
    "{% for q in messages[loop.index0:] %}{{ q.role }}{{ q.content if q.content is string else 'list' }}{% endfor %}",
    "{{ x|length }}",
    "{{ x|trim }}",
    "{% if x == 'x' %}x{% endif %}",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn outlines_give_what_the_templates_write(conversations in prop::collection::vec(any_conversation(), 1..4)) {
        let controls = controls();
        for source in proven() {
            let template = compiled(&source);
            // The second time the shape is known.
            for conversation in conversations.iter().chain(&conversations) {
                let [outlined, run] = both(&template, conversation, None);
                prop_assert_eq!(outlined, run);
                if let Some(hider) = controls.hider(conversation, Hide::Turn).unwrap() {
                    let [outlined, run] = both(&template, conversation, Some(&hider));
                    prop_assert_eq!(outlined, run);
                }
            }
        }
    }

    #[test]
    fn whatever_template_is_outlined_writes_the_same(
        statements in prop::collection::vec(prop::sample::select(STATEMENTS.to_vec()), 1..6),
        conversations in prop::collection::vec(any_conversation(), 1..3),
    ) {
        let source = format!(
            "{{% set x = 'x' %}}{{% set n = namespace(c=0) %}}{{% macro w(c) %}}({{{{ c }}}}){{% endmacro %}}\
             {{% macro v() %}}{{{{ x }}}}{{% endmacro %}}{{% for m in messages %}}{}{{% endfor %}}{{{{ x }}}}",
            statements.concat()
        );
        let template = compiled(&source);
        for conversation in conversations.iter().chain(&conversations) {
            let [outlined, run] = both(&template, conversation, None);
            prop_assert_eq!(outlined, run, "{}", source);
        }
    }
}

/// As if the proof were wrong.
#[test]
fn a_shape_whose_outline_differs_from_what_is_written_runs_the_template() {
    let outlines = Outlines::new();
    let copy = compiled("{% for m in messages %}{{ m.content }}{% endfor %}");
    let said = |times| conversation(vec![(Role::User, vec![Some("a".to_owned())]); times]);
    let render = |times: usize, written: &str| {
        let run = |messages| {
            let context = context::with_messages(messages, Value::from(()), &copy.globals);
            copy.environment.get_template(NAME).and_then(|template| template.render(context)).ok()
        };
        outlines.render(&said(times), None, run, || Some(written.to_owned()))
    };
    assert_eq!([render(1, "b"), render(1, "a")], [None, None], "it stays so for this shape");
    assert_eq!([render(2, "aa"), render(2, "never asked")], [Some("aa".to_owned()), Some("aa".to_owned())]);
}
