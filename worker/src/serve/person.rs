//! One sample as a person sees it.

use std::sync::Arc;

use feedmill_protocol::http::Problem;
use feedmill_text::record::{Part, Role};
use serde_json::{Value, json};

use super::answer::not_found;
use crate::app::Loaded;
use crate::make::{Outcome, SizedSample};
use crate::stream::Stream;

/// What stands at a position, in words.
pub(crate) async fn sample(loaded: &Loaded, stream_name: &str, position: u64) -> Result<Value, Problem> {
    let (index, stream) = loaded.stream(stream_name).ok_or_else(|| not_found("no such stream"))?;
    if position >= feedmill_protocol::position::POSITION_END {
        return Err(not_found("positions end at 2^53"));
    }
    let maker = loaded.engine.maker();
    let explained = maker.explain(index, position).await.map_err(|error| error.problem(position))?;
    let rejected: Vec<Value> = explained
        .rejected
        .iter()
        .map(|(id, fault)| {
            json!({
                "dataset": stream.datasets[id.dataset].name,
                "record_index": id.record,
                "line": fault.line,
                "class": fault.class,
                "key": fault.key,
                "detail": fault.detail,
                "remedy": fault.class.remedy(),
            })
        })
        .collect();
    let status = match &explained.outcome {
        Outcome::Sample(_) if explained.rejected.is_empty() => "ok",
        Outcome::Sample(_) => "substituted",
        Outcome::Stub => "zero_loss",
        Outcome::Fails => "fails",
    };
    let sample = match &explained.outcome {
        Outcome::Sample(sample) => Some(described(stream, sample)),
        Outcome::Stub | Outcome::Fails => None,
    };
    Ok(json!({
        "stream": stream.name,
        "plan": stream.digest.to_string(),
        "position": position,
        "epoch": explained.epoch,
        "sample_index": explained.assigned,
        "status": status,
        "rejected": rejected,
        "sample": sample,
    }))
}

fn described(stream: &Arc<Stream>, sample: &SizedSample) -> Value {
    let read = &sample.read;
    let geometry = &stream.processor.geometry;
    let messages: Vec<Value> = read
        .conversation
        .messages
        .iter()
        .map(|message| {
            let parts: Vec<Value> = message
                .parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) => json!({"text": text}),
                    Part::Image(index) => json!({"image": index}),
                })
                .collect();
            json!({"role": message.role.as_str(), "parts": parts, "supervised": message.role == Role::Assistant})
        })
        .collect();
    let images: Vec<Value> = sample
        .sized
        .iter()
        .map(|picture| {
            let header = &sample.headers[picture.source];
            let (width, height) = header.oriented_size(&stream.processor.colors);
            let (resized_height, resized_width) = picture.resized;
            json!({
                "key": read.key(picture.source),
                "format": header.format().as_str(),
                "bytes": sample.picture_bytes(picture.source),
                "width": width,
                "height": height,
                "resized_width": resized_width,
                "resized_height": resized_height,
                "grid_thw": [picture.grid.t, picture.grid.h, picture.grid.w],
                "tokens": picture.grid.tokens(geometry),
            })
        })
        .collect();
    let runs: Vec<Value> = stream
        .processor
        .text
        .runs(&sample.encoded)
        .into_iter()
        .map(|(text, supervised)| json!({"text": text, "supervised": supervised}))
        .collect();
    let supervised = sample.encoded.loss_mask.iter().filter(|mask| **mask == 1).count();
    json!({
        "dataset": stream.datasets[read.id.dataset].name,
        "record_index": read.id.record,
        "line": read.line,
        "row": read.row,
        "id": read.conversation.id,
        "messages": messages,
        "images": images,
        "tokens": sample.encoded.tokens.len(),
        "supervised_tokens": supervised,
        "text": runs,
        "max_pixels": sample.max_pixels,
        "shrunk": sample.max_pixels < geometry.max_pixels,
    })
}
