//! A line of a data set.

use std::io::Read as _;
use std::path::Path;
use std::sync::OnceLock;

use feedmill_text::processor::{ProcessorFiles, TextProcessor, TextSettings};
use feedmill_text::record::{
    Columns, Conversation, Part, RecordRules, RecordShape, detect_shape, parse_record,
};

use crate::memory::peak_of;

const SHAPES: [RecordShape; 5] = RecordShape::ALL;

/// In every shape a line is a conversation that keeps its promises, or has a fault with a class; memory is in
/// proportion to the line.
pub(super) fn body(data: &[u8]) -> bool {
    let _ = detect_shape(data.split(|byte| *byte == b'\n'), &Columns::default());
    let mut taken = false;
    for shape in SHAPES {
        let (peak, parsed) = peak_of(|| parse_record(data, &RecordRules::from(shape)));
        let most = 200 * data.len() as u64 + (64 << 10);
        assert!(peak <= most, "a line of {} bytes took {peak}", data.len());
        match parsed {
            Ok(conversation) => {
                check(&conversation);
                taken = true;
            }
            Err(error) => {
                let _ = (error.class(), error.to_string());
            }
        }
    }
    taken
}

fn check(conversation: &Conversation) {
    let mut images = Vec::new();
    for part in conversation.messages.iter().flat_map(|message| &message.parts) {
        match part {
            Part::Text(text) => assert!(!text.is_empty(), "a part without text"),
            Part::Image(index) => images.push(*index),
        }
    }
    let all: Vec<usize> = (0..conversation.images.len()).collect();
    assert_eq!(images, all, "every picture stands once, in order");
}

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tokenizer").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn processor() -> &'static TextProcessor {
    static PROCESSOR: OnceLock<TextProcessor> = OnceLock::new();
    PROCESSOR.get_or_init(|| {
        let mut tokenizer_json = Vec::new();
        let packed = golden("tokenizer.json.gz");
        let unpacked = flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut tokenizer_json);
        assert!(unpacked.is_ok(), "the golden tokenizer is whole");
        let files = ProcessorFiles {
            tokenizer_json,
            tokenizer_config_json: Some(golden("tokenizer_config.json")),
            chat_template: Some(golden("chat_template.jinja")),
            preprocessor_config_json: golden("preprocessor_config.json"),
        };
        TextProcessor::load(&files, &TextSettings::default())
            .unwrap_or_else(|error| panic!("the golden processor cannot be used: {error}"))
    })
}

/// A conversation becomes tokens in which its pictures, and nothing from its text, are pictures; or it has a fault
/// with a class.
pub(super) fn text(data: &[u8]) -> bool {
    let mut taken = false;
    let processor = processor();
    for shape in SHAPES {
        let Ok(conversation) = parse_record(data, &RecordRules::from(shape)) else { continue };
        let prepared = match processor.prepare(&conversation) {
            Ok(prepared) => prepared,
            Err(error) => {
                let _ = (error.class(), error.to_string());
                continue;
            }
        };
        assert_eq!(prepared.image_count(), conversation.images.len());
        let grids: Vec<u32> = (0..prepared.image_count() as u32).map(|index| 1 + index % 5).collect();
        let expected: u32 = grids.iter().sum();
        match prepared.expand(&grids) {
            Ok(encoded) => {
                assert_eq!(encoded.tokens.len(), prepared.expanded_len(&grids));
                assert_eq!(encoded.tokens.len(), encoded.loss_mask.len());
                let pad = processor.image_pad_id();
                let pads = encoded.tokens.iter().filter(|token| **token == pad).count();
                assert_eq!(pads, expected as usize, "placeholders without pictures");
                assert!(encoded.loss_mask.contains(&1), "nothing is supervised");
                taken = true;
            }
            Err(error) => panic!("what is prepared expands: {error}"),
        }
    }
    taken
}
