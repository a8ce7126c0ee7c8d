//! Outlines against the template itself.

use proptest::prelude::*;

use super::*;
use crate::control::{Controls, Hide};
use crate::record::{ImageReference, Message, Part, Role};
use crate::tokenizer::AddedToken;

const OURS: [BuiltinTemplate; 3] =
    [BuiltinTemplate::Qwen2Vl, BuiltinTemplate::Qwen2_5Vl, BuiltinTemplate::Qwen3Vl];

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
fn only_templates_of_our_own_are_outlined() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tokenizer/chat_template.jinja");
    for source in OURS.map(BuiltinTemplate::source) {
        assert!(compiled(source).outlines.is_some());
        assert!(compiled(&format!("{source} ")).outlines.is_none());
    }
    assert!(compiled(&std::fs::read_to_string(golden).unwrap()).outlines.is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn outlines_give_what_the_templates_write(conversations in prop::collection::vec(any_conversation(), 1..4)) {
        let controls = controls();
        for template in OURS.map(BuiltinTemplate::source).map(compiled) {
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
}

/// The template is run for what there is no more room for, and not twice.
#[test]
fn shapes_beyond_those_that_are_remembered_are_not_marked() {
    let outlines = Outlines::new();
    let mut marked = 0;
    for shape in 0..20_000u32 {
        let parts = |number: u32| (0..=number % 7).map(|_| Some("a".to_owned())).collect();
        let messages = (0..5).map(|digit| (Role::User, parts(shape / 7u32.pow(digit)))).collect();
        outlines.render(&conversation(messages), None, |_| {
            marked += 1;
            None
        });
    }
    assert!((900..=1024).contains(&marked), "{marked}");
}
