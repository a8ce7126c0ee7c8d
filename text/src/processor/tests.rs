use std::sync::OnceLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::record::{ImageReference, Message, Part, RecordShape, parse_record};

/// Qwen's added tokens, and a vocabulary of the 256 bytes without merges.
fn tokenizer_json() -> Value {
    let mut vocab = serde_json::Map::new();
    // The byte-level alphabet: printable bytes stand for themselves, the others follow from U+0100 on.
    let mut next = 0x100;
    for byte in 0u32..256 {
        let itself = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let character = if itself { byte } else { next };
        if !itself {
            next += 1;
        }
        vocab.insert(char::from_u32(character).unwrap().to_string(), json!(byte));
    }
    let names = [
        ("<|endoftext|>", true),
        ("<|im_start|>", true),
        ("<|im_end|>", true),
        ("<|object_ref_start|>", true),
        ("<|box_start|>", true),
        ("<|box_end|>", true),
        ("<|vision_start|>", true),
        ("<|vision_end|>", true),
        ("<|vision_pad|>", true),
        ("<|image_pad|>", true),
        ("<|video_pad|>", true),
        ("<tool_call>", false),
        ("</tool_call>", false),
        ("<tool_response>", false),
        ("</tool_response>", false),
        ("<think>", false),
        ("</think>", false),
        ("<|fim_pad|>", false),
    ];
    let added: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(index, (content, special))| {
            json!({
                "id": 300 + index, "content": content, "special": special,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
                "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

fn files_with(tokenizer: &Value, config: &Value, template: Option<&str>, patch_size: u32) -> ProcessorFiles {
    ProcessorFiles {
        tokenizer_json: serde_json::to_vec(tokenizer).unwrap(),
        tokenizer_config_json: Some(serde_json::to_vec(config).unwrap()),
        chat_template: template.map(|template| template.as_bytes().to_vec()),
        preprocessor_config_json: serde_json::to_vec(&json!({"patch_size": patch_size, "merge_size": 2}))
            .unwrap(),
    }
}

fn config() -> Value {
    json!({"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}})
}

fn builtin(builtin: BuiltinTemplate) -> TextSettings {
    TextSettings { template: TemplateChoice::Builtin(builtin), ..TextSettings::default() }
}

fn load(settings: &TextSettings) -> TextProcessor {
    let patch_size = match settings.template {
        TemplateChoice::Builtin(BuiltinTemplate::Qwen3Vl) | TemplateChoice::Checkpoint => 16,
        TemplateChoice::Builtin(_) => 14,
    };
    TextProcessor::load(&files_with(&tokenizer_json(), &config(), None, patch_size), settings).unwrap()
}

fn load_template(template: &str, settings: &TextSettings) -> Result<TextProcessor, LoadError> {
    TextProcessor::load(&files_with(&tokenizer_json(), &config(), Some(template), 16), settings)
}

fn qwen3() -> &'static TextProcessor {
    static PROCESSOR: OnceLock<TextProcessor> = OnceLock::new();
    PROCESSOR.get_or_init(|| load(&builtin(BuiltinTemplate::Qwen3Vl)))
}

fn record(record: Value) -> Conversation {
    parse_record(&serde_json::to_vec(&record).unwrap(), &RecordShape::Messages.into()).unwrap()
}

/// The whole text of a row, and its learnt stretches.
fn texts(processor: &TextProcessor, conversation: &Conversation) -> (String, Vec<String>) {
    let sizes = vec![1; conversation.images.len()];
    let encoded = processor.encode(conversation, &sizes).unwrap();
    let learnt = processor
        .runs(&encoded)
        .into_iter()
        .filter(|(_, supervised)| *supervised)
        .map(|(text, _)| text)
        .collect();
    (processor.decode(&encoded.tokens), learnt)
}

fn two_turns() -> Conversation {
    record(json!({"messages": [
        {"role": "user", "content": [{"image": "a"}, {"text": "what?"}]}, {"role": "assistant", "content": " one\n"},
        {"role": "user", "content": "and the assistant\n?"}, {"role": "assistant", "content": ""},
    ]}))
}

#[test]
fn qwen2_vl_writes_its_default_system_turn_and_qwen3_vl_does_not() {
    let turns = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>what?<|im_end|>\n\
                 <|im_start|>assistant\n one\n<|im_end|>\n<|im_start|>user\nand the assistant\n?<|im_end|>\n\
                 <|im_start|>assistant\n<|im_end|>\n";
    let system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n";
    let learnt = [" one\n<|im_end|>\n".to_owned(), "<|im_end|>\n".to_owned()];
    let conversation = two_turns();
    assert_eq!(texts(qwen3(), &conversation), (turns.to_owned(), learnt.to_vec()));
    for template in [BuiltinTemplate::Qwen2Vl, BuiltinTemplate::Qwen2_5Vl] {
        let processor = load(&builtin(template));
        assert_eq!(texts(&processor, &conversation), (system.to_owned() + turns, learnt.to_vec()));
        let own = record(
            json!({"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}]}),
        );
        assert_eq!(
            texts(&processor, &own).0,
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        );
    }
}

#[test]
fn arguments_reach_the_template() {
    let mut settings = builtin(BuiltinTemplate::Qwen2Vl);
    settings.template_kwargs.insert("add_vision_id".into(), json!(true));
    assert!(texts(&load(&settings), &two_turns()).0.contains("Picture 1: <|vision_start|>"));
    settings.template_kwargs.insert("messages".into(), json!([]));
    let error =
        TextProcessor::load(&files_with(&tokenizer_json(), &config(), None, 14), &settings).err().unwrap();
    assert!(matches!(error, LoadError::ReservedArgument { .. }));
}

#[test]
fn label_settings_and_loss_choose_what_is_learnt() {
    let mut settings = builtin(BuiltinTemplate::Qwen3Vl);
    settings.labels = LabelSettings { last_turn_only: false, include_newline: false };
    assert_eq!(texts(&load(&settings), &two_turns()).1, [" one\n<|im_end|>", "<|im_end|>"]);
    settings.labels = LabelSettings { last_turn_only: true, include_newline: true };
    let last = load(&settings);
    assert_eq!(texts(&last, &two_turns()).1, ["<|im_end|>\n"]);

    let mut conversation = two_turns();
    conversation.messages[3].loss = Some(false);
    assert_eq!(texts(qwen3(), &conversation).1, [" one\n<|im_end|>\n"]);
    let error = last.prepare(&conversation).unwrap_err();
    assert_eq!(error.class(), FaultClass::NoSupervision);
}

#[test]
fn placeholders_widen_on_ids_and_lengths_are_known_before() {
    let prepared = qwen3().prepare(&two_turns()).unwrap();
    let one = prepared.expand(&[1]).unwrap();
    let many = prepared.expand(&[70]).unwrap();
    assert_eq!((prepared.image_count(), prepared.text_len()), (1, one.tokens.len() - 1));
    assert_eq!(prepared.expanded_len(&[70]), many.tokens.len());
    assert_eq!(many.tokens.len(), many.loss_mask.len());
    let pads = many.tokens.iter().filter(|token| **token == qwen3().image_pad_id()).count();
    assert_eq!(pads, 70);
    assert_eq!(prepared.supervised(), many.loss_mask.iter().filter(|mask| **mask == 1).count());
    for sizes in [&[][..], &[1, 1], &[0], &[u32::MAX]] {
        assert_eq!(prepared.expand(sizes).unwrap_err().class(), FaultClass::PlaceholderMismatch);
    }
}

#[test]
fn tokens_show_whole_characters_and_fold_placeholders() {
    let processor = qwen3();
    let conversation = record(json!({"id": 1, "images": ["a.jpg"], "messages": [
        {"role": "user", "content": "<image>né 🦜"}, {"role": "assistant", "content": "a🦜\u{fffd}"}
    ]}));
    let encoded = processor.encode(&conversation, &[7]).unwrap();
    let views = processor.tokens(&encoded);
    let repeated =
        views.iter().flat_map(|view| std::iter::repeat_n((view.id, view.supervised), view.repeats));
    let row = encoded.tokens.iter().copied().zip(encoded.loss_mask.iter().map(|mask| *mask == 1));
    assert!(repeated.eq(row), "{views:?}");
    let pads: Vec<_> = views.iter().filter(|view| view.id == processor.image_pad_id()).collect();
    assert_eq!(pads.iter().map(|view| view.repeats).collect::<Vec<_>>(), [7]);
    let shown: String =
        views.iter().filter(|view| view.repeats == 1).filter_map(|view| view.text.as_deref()).collect();
    assert_eq!(shown, processor.decode(&encoded.tokens).replace("<|image_pad|>", ""));
    assert_eq!(shown.matches('🦜').count(), 2, "{shown}");
}

#[test]
fn control_tokens_of_records_are_text_and_content_tokens_are_not_touched() {
    let conversation = record(json!({"messages": [
        {"role": "user", "content": [{"text": "<|im_"}, {"text": "end|>"}, {"text": "<think><tool_call>"}]},
        {"role": "assistant", "content": "<think></think><|im_start|><tool_call>x<|box_start|>",
            "tool_calls": [{"name": "f<|box_end|>", "arguments": {"<tool_call>": "</tool_call>"}}]},
    ]}));
    let count = |processor: &TextProcessor, token: &str| {
        let encoded = processor.encode(&conversation, &[]).unwrap();
        let id = processor.tokenizer.id_of(token).unwrap() as i32;
        encoded.tokens.iter().filter(|token| **token == id).count()
    };
    let mut settings = builtin(BuiltinTemplate::Qwen3Vl);
    settings.control_tokens_assistant = ControlTokensAssistant::Escape;
    let escape = load(&settings);
    for (token, kept, escaped) in [
        ("<|im_start|>", 2, 2),
        ("<|im_end|>", 2, 2),
        ("<think>", 2, 2),
        ("<tool_call>", 2, 1),
        ("</tool_call>", 1, 1),
        ("<|box_start|>", 1, 0),
        ("<|box_end|>", 0, 0),
    ] {
        assert_eq!(count(qwen3(), token), kept, "{token}");
        assert_eq!(count(&escape, token), escaped, "{token}");
    }
    assert_eq!(texts(qwen3(), &conversation).0, texts(&escape, &conversation).0);
}

#[test]
fn texts_full_of_private_characters_hide_tokens_with_others_or_are_refused() {
    let with = |private: String| {
        record(
            json!({"messages": [{"role": "user", "content": private + "<|im_end|>"}, {"role": "assistant", "content": "a"}]}),
        )
    };
    let some: String = (0x10_0000..0x10_0800).step_by(256).filter_map(char::from_u32).collect();
    let conversation = with(some.clone());
    assert!(texts(qwen3(), &conversation).0.contains(&(some + "<|im_end|><|im_end|>")));
    let all: String = (0x10_0000..0x11_0000).step_by(256).filter_map(char::from_u32).collect();
    assert_eq!(qwen3().prepare(&with(all.clone())).unwrap_err().class(), FaultClass::Tokenizer);
    // Without a control token nothing has to be hidden.
    let harmless = record(json!({"messages": [{"role": "assistant", "content": all}]}));
    assert!(qwen3().prepare(&harmless).is_ok());
}

#[test]
fn templates_that_do_not_write_tools_refuse_conversations_with_tools() {
    let mut conversation = two_turns();
    conversation.tools = vec![json!({"name": "f"})];
    assert!(qwen3().prepare(&conversation).is_ok());
    let qwen2 = load(&builtin(BuiltinTemplate::Qwen2Vl));
    assert_eq!(qwen2.prepare(&conversation).unwrap_err().class(), FaultClass::UnsupportedField);
    conversation.tools.clear();
    conversation.messages[1].tool_calls = vec![json!({"name": "f", "arguments": {}})];
    assert_eq!(qwen2.prepare(&conversation).unwrap_err().class(), FaultClass::UnsupportedField);
}

const CHATML: &str = "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}\
    {% else %}{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}\
    {{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>{{ '\\n' }}{%- endfor -%}";

#[test]
fn reasoning_is_written_by_templates_that_know_it_and_refused_by_others() {
    let conversation = record(json!({"messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "be<|im_end|>cause"},
    ]}));
    let error = load_template(CHATML, &TextSettings::default()).unwrap().prepare(&conversation).unwrap_err();
    assert_eq!(error.class(), FaultClass::UnsupportedField);
    let knows = CHATML.replace(
        "{% if m.content is string %}",
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{% if m.content is string %}",
    );
    let processor = load_template(&knows, &TextSettings::default()).unwrap();
    // What the record says stays text: one turn, one end.
    let (whole, learnt) = texts(&processor, &conversation);
    assert_eq!(learnt, ["<think>be<|im_end|>cause</think>a<|im_end|>\n"]);
    let end = processor.special_ids().turn_end;
    let tokens = processor.encode(&conversation, &[]).unwrap().tokens;
    assert_eq!(tokens.iter().filter(|token| **token == end).count(), 2, "{whole}");
}

#[test]
fn control_tokens_are_counted_by_role_and_token() {
    let conversation = record(json!({
        "tools": [{"name": "f", "description": "<tool_call>"}],
        "messages": [
            {"role": "user", "content": [{"text": "<|im_"}, {"text": "end|><|im_end|>"}, {"text": "<think>"}]},
            {"role": "assistant", "content": "<|box_start|>1<|box_end|>", "tool_calls": [{"name": "f", "arguments": {"x": "<|box_end|>"}}]},
        ],
    }));
    let counts = qwen3().control_token_counts(&conversation);
    let expected = [
        ((Role::System, "<tool_call>"), 1),
        ((Role::User, "<|im_end|>"), 2),
        ((Role::Assistant, "<|box_end|>"), 2),
        ((Role::Assistant, "<|box_start|>"), 1),
    ];
    assert_eq!(counts, expected.into_iter().collect());
}

#[test]
fn a_checkpoints_template_is_taken_from_any_of_its_places() {
    let named = json!([{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]);
    let mut in_config = config();
    in_config["chat_template"] = named.clone();
    let settings = TextSettings::default();
    let expected = texts(&load_template(CHATML, &settings).unwrap(), &two_turns());
    for (config, template) in [
        (in_config, None),
        (config(), Some(json!({"chat_template": CHATML}).to_string())),
        (config(), Some(json!({"chat_template": named}).to_string())),
    ] {
        let files = files_with(&tokenizer_json(), &config, template.as_deref(), 16);
        assert_eq!(texts(&TextProcessor::load(&files, &settings).unwrap(), &two_turns()), expected);
    }
    let none = TextProcessor::load(&files_with(&tokenizer_json(), &config(), None, 16), &settings);
    assert!(matches!(none, Err(LoadError::NoTemplate)));
}

#[test]
fn generation_marks_say_what_is_learnt() {
    let marked = CHATML.replace(
        "{{ m.content }}",
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!{% endgeneration %}{% else %}{{ m.content }}{% endif %}",
    );
    let processor = load_template(&marked, &TextSettings::default()).unwrap();
    let conversation = record(json!({"messages": [
        {"role": "user", "content": "<|im_end|>"},
        {"role": "assistant", "content": "a<|im_start|>b<|im_end|>"},
        {"role": "assistant", "content": "c"},
    ]}));
    let (text, learnt) = texts(&processor, &conversation);
    assert_eq!(learnt, ["a<|im_start|>b<|im_end|>!", "c!"]);
    assert!(text.ends_with("c!<|im_end|>\n"));
    let forged = record(json!({"messages": [{"role": "assistant", "content": "\u{10FFFD}x\u{10FFFC}"}]}));
    assert_eq!(processor.prepare(&forged).unwrap_err().class(), FaultClass::Template);
}

#[test]
fn templates_whose_turns_cannot_be_found_are_refused() {
    let settings = TextSettings::default();
    let refused = |template: &str| load_template(template, &settings).err().unwrap();
    assert!(matches!(refused("{{ broken"), LoadError::Template(TemplateError::Compile(_))));
    assert!(matches!(
        refused(&CHATML.replace("assistant", "x").replace("m.role", "'turn'")),
        LoadError::Probe(_)
    ));
    assert!(matches!(refused(&CHATML.replace("<|im_end|>", "")), LoadError::Probe(_)));
    assert!(matches!(refused(&CHATML.replace("<|image_pad|>", "")), LoadError::Probe(_)));
    assert!(matches!(refused(&CHATML.replace("{{ m.content }}", "")), LoadError::Probe(_)));
    assert!(matches!(refused(&(CHATML.to_owned() + "{{ raise_exception('no') }}")), LoadError::Probe(_)));
    assert!(matches!(
        refused(&(CHATML.to_owned() + "\u{100000}")),
        LoadError::Template(TemplateError::PrivateCharacters)
    ));
}

#[test]
fn a_template_that_asks_for_the_date_needs_one() {
    let template = "<|im_start|>system\n{{ strftime_now('%d %b %Y') }}<|im_end|>\n".to_owned() + CHATML;
    let error = load_template(&template, &TextSettings::default()).err().unwrap();
    assert!(matches!(error, LoadError::Template(TemplateError::NeedsDate)));
    let settings = TextSettings { date: Some("2026-03-01".parse().unwrap()), ..TextSettings::default() };
    assert!(
        texts(&load_template(&template, &settings).unwrap(), &two_turns())
            .0
            .starts_with("<|im_start|>system\n01 Mar 2026")
    );
}

#[test]
fn a_template_that_looks_at_control_tokens_in_text_is_not_guessed() {
    let template = CHATML
        .replace("{{ m.content }}", "{{ m.content }}{% if '<tool_call>' in m.content %} (calls){% endif %}");
    let processor = load_template(&template, &TextSettings::default()).unwrap();
    let conversation = record(
        json!({"messages": [{"role": "user", "content": "<tool_call>"}, {"role": "assistant", "content": "a"}]}),
    );
    assert_eq!(processor.prepare(&conversation).unwrap_err().class(), FaultClass::Template);
}

#[test]
fn a_message_that_the_template_leaves_out_makes_the_record_bad() {
    let conversation = record(json!({"messages": [
        {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "system", "content": "later"},
        {"role": "assistant", "content": "a"},
    ]}));
    assert!(matches!(
        qwen3().prepare(&conversation),
        Err(EncodeError::Layout(LayoutError::LeftOut { message: 2 }))
    ));
}

#[test]
fn files_that_contradict_each_other_are_refused() {
    let refused = |tokenizer: &Value, config: &Value, patch_size: u32| {
        TextProcessor::load(
            &files_with(tokenizer, config, None, patch_size),
            &builtin(BuiltinTemplate::Qwen3Vl),
        )
        .err()
        .unwrap()
    };
    let tokenizer = tokenizer_json();
    let without = |token: &str| {
        let mut tokenizer = tokenizer.clone();
        tokenizer["added_tokens"].as_array_mut().unwrap().retain(|added| added["content"] != token);
        tokenizer
    };
    for token in ["<|image_pad|>", "<|vision_start|>", "<|im_end|>", "<|endoftext|>"] {
        assert!(matches!(refused(&without(token), &config(), 16), LoadError::MissingToken { .. }), "{token}");
    }
    assert!(matches!(
        refused(&tokenizer, &json!({"eos_token": "<none>"}), 16),
        LoadError::MissingToken { .. }
    ));
    assert!(matches!(refused(&tokenizer, &config(), 14), LoadError::Family { .. }));
    let mut other_id = config();
    other_id["added_tokens_decoder"] = json!({"999": {"content": "<|im_end|>"}});
    assert!(matches!(
        refused(&tokenizer, &other_id, 16),
        LoadError::Tokenizer(TokenizerError::Contradiction { .. })
    ));
    let changed = |pointer: &str, value: Value| {
        let mut tokenizer = tokenizer.clone();
        *tokenizer.pointer_mut(pointer).unwrap() = value;
        tokenizer
    };
    for tokenizer in [
        changed("/model/type", json!("Unigram")),
        changed("/model/vocab/a", json!(4_000_000_000u32)),
        changed("/model/merges", json!(["a b c"])),
        changed("/normalizer", json!({"type": "Lowercase"})),
        changed("/pre_tokenizer", Value::Null),
        changed("/added_tokens/0/id", json!(65)),
        changed("/added_tokens/0/id", json!(301)),
        changed("/added_tokens/0/lstrip", json!(true)),
        changed("/added_tokens/0/content", json!("")),
        json!({}),
        json!(null),
    ] {
        assert!(matches!(refused(&tokenizer, &config(), 16), LoadError::Tokenizer(_)));
    }
}

#[test]
fn tokens_of_the_configuration_are_added_as_the_reference_adds_them() {
    let mut config = config();
    config["added_tokens_decoder"] = json!({"777": {"content": "<|extra|>", "special": true}});
    let files = files_with(&tokenizer_json(), &config, None, 16);
    let processor = TextProcessor::load(&files, &builtin(BuiltinTemplate::Qwen3Vl)).unwrap();
    let conversation = record(
        json!({"messages": [{"role": "user", "content": "<|extra|>"}, {"role": "assistant", "content": "<|extra|>"}]}),
    );
    let encoded = processor.encode(&conversation, &[]).unwrap();
    assert_eq!(encoded.tokens.iter().filter(|token| **token == 777).count(), 1);
}

/// Text that tries to be something else.
fn hostile_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "<|image_pad|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|video_pad|>",
        "<|endoftext|>",
        "<|im_",
        "end|>",
        "start|>",
        "<",
        "|>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "<|box_start|>",
        "<think>",
        "assistant\n",
        "\n",
        " ",
        "\u{338}",
        "\u{301}",
        "é",
        "\u{100000}",
        "\u{10FFFC}",
        "{{ x }}",
        "\"",
        "\\",
    ]);
    let piece = prop_oneof![3 => piece.prop_map(str::to_owned), 1 => any::<String>()];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

fn conversation(user: &[String], assistant: &str, tool: &str, name: &str) -> Conversation {
    let text = |role, texts: &[String]| Message {
        reasoning: None,
        role,
        parts: texts.iter().filter(|text| !text.is_empty()).map(|text| Part::Text(text.clone())).collect(),
        loss: None,
        tool_calls: Vec::new(),
    };
    let mut question = text(Role::User, user);
    question.parts.insert(user.len().min(1).min(question.parts.len()), Part::Image(0));
    let mut call = text(Role::Assistant, &[assistant.to_owned()]);
    call.tool_calls = vec![json!({"name": name, "arguments": {name: [tool, 1.5]}})];
    Conversation {
        id: None,
        messages: vec![
            question,
            call,
            text(Role::Tool, &[tool.to_owned()]),
            text(Role::Assistant, &[assistant.to_owned()]),
        ],
        images: vec![ImageReference::Path("a".into()).into()],
        tools: vec![json!({"name": name, "description": tool})],
        dropped_trailing_user: 0,
        empty_assistant: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_turns_or_images(
        user in prop::collection::vec(hostile_text(), 1..4), assistant in hostile_text(), tool in hostile_text(), name in hostile_text(),
    ) {
        let processor = qwen3();
        let hostile = processor.prepare(&conversation(&user, &assistant, &tool, &name)).unwrap();
        let harmless = processor.prepare(&conversation(&["q".into()], "a", "t", "n")).unwrap();
        let ids = processor.special_ids();
        let pads = [ids.image_pad, ids.vision_start, ids.vision_end, ids.turn_start, ids.turn_end, ids.pad, ids.video_pad.unwrap()];
        for id in pads {
            let count = |prepared: &Prepared| prepared.tokens.iter().filter(|token| **token == id).count();
            prop_assert_eq!(count(&hostile), count(&harmless));
        }
        // What is learnt is the same stretch of text whatever it holds.
        let encoded = hostile.expand(&[1]).unwrap();
        let learnt: Vec<String> = processor.runs(&encoded).into_iter().filter(|(_, learnt)| *learnt).map(|(text, _)| text).collect();
        prop_assert_eq!(learnt.len(), 2);
        let answer = learnt[1].strip_suffix("<|im_end|>\n").unwrap();
        let normal = |text: &str| processor.tokenizer.normalize(text).into_owned();
        prop_assert_eq!(normal(answer), normal(&assistant));
    }
}
