//! Takes a position, gives what stands there before anything was made of it: the record as a chat template reads it, and the files of
//! its pictures. For holding another program's tensors against ours.

use bytes::Bytes;
use feedmill_protocol::http::Problem;
use feedmill_text::record::{Conversation, ImageSize, Message, Part};
use serde_json::{Map, Value, json};

use super::answer::not_found;
use crate::app::Loaded;
use crate::make::{Outcome, SizedSample};
use crate::stream::Stream;

/// A record that stands at a position.
#[derive(Clone, Debug)]
pub struct Original {
    /// `dataset`, `line`, `id`, `messages` and `tools` as Hugging Face's `apply_chat_template` takes them, `loss` of each assistant
    /// message, `max_pixels` that the pictures were made with, whether the record asks for
    /// sizes of its own (`own_size`), and for each picture its index in `pictures`.
    pub described: Value,
    /// Each different picture's file as it is stored.
    pub pictures: Vec<Bytes>,
}

/// The record at a position; None where none stands: a row without loss, a position that fails.
///
/// # Errors
/// As for the sample itself.
pub async fn original(loaded: &Loaded, stream: &str, position: u64) -> Result<Option<Original>, Problem> {
    let (index, stream) = loaded.stream(stream).ok_or_else(|| not_found("no such stream"))?;
    let explained = loaded.engine.maker().explain(index, position).await.map_err(|e| e.problem(position))?;
    Ok(match explained.outcome {
        Outcome::Sample(sample, _) => {
            Some(Original { described: described(stream, &sample), pictures: sample.files().to_vec() })
        }
        Outcome::Stub | Outcome::Fails => None,
    })
}

fn described(stream: &Stream, sample: &SizedSample) -> Value {
    let Conversation { id, messages, tools, images, .. } = &sample.read.conversation;
    let own_size = images.iter().any(|image| image.size != ImageSize::default());
    json!({
        "dataset": stream.datasets[sample.read.id.dataset].name,
        "line": sample.read.line,
        "id": id,
        "messages": messages.iter().map(message).collect::<Vec<_>>(),
        "loss": messages.iter().map(|message| message.loss).collect::<Vec<_>>(),
        "tools": tools,
        "images": sample.sized.iter().map(|picture| picture.source).collect::<Vec<_>>(),
        "max_pixels": sample.max_pixels,
        "own_size": own_size,
    })
}

/// One text is a string, anything else a list of parts.
fn message(message: &Message) -> Value {
    let text = |text: &str| json!({"type": "text", "text": text});
    let content = match message.parts.as_slice() {
        [] => json!(""),
        [Part::Text(text)] => json!(text),
        parts => parts
            .iter()
            .map(|part| match part {
                Part::Text(part) => text(part),
                Part::Image(_) => json!({"type": "image"}),
            })
            .collect(),
    };
    let mut fields =
        Map::from_iter([("role".to_owned(), json!(message.role.as_str())), ("content".to_owned(), content)]);
    if let Some(reasoning) = &message.reasoning {
        fields.insert("reasoning_content".into(), json!(reasoning));
    }
    if !message.tool_calls.is_empty() {
        fields.insert("tool_calls".into(), json!(message.tool_calls));
    }
    Value::Object(fields)
}
