//! One sample as a person sees it.

use std::sync::Arc;

use feedmill_arena::Urgency;
use feedmill_protocol::hash::{SampleHash, hex};
use feedmill_protocol::http::Problem;
use feedmill_text::processor::TokenView;
use feedmill_text::record::{Part, Role};
use serde_json::{Value, json};

use super::answer::not_found;
use crate::app::Loaded;
use crate::make::{MakeError, Outcome, SizedPicture, SizedSample};
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
        Outcome::Sample(..) if explained.rejected.is_empty() => "ok",
        Outcome::Sample(..) => "substituted",
        Outcome::Stub => "zero_loss",
        Outcome::Fails => "fails",
    };
    let sample = match explained.outcome {
        Outcome::Sample(sample, hash) => {
            let of = Arc::clone(stream);
            let described = move |_: &mut feedmill_vision::Scratch| described(&of, &sample, hash);
            let described = maker.pool.run(&Urgency::new(0), described).await;
            Some(described.map_err(|lost| MakeError::from(lost).problem(position))?)
        }
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

fn described(stream: &Stream, sample: &SizedSample, hash: SampleHash) -> Value {
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
        "hash": hex(&hash),
        "messages": messages,
        "images": images,
        "tokens": sample.encoded.tokens.len(),
        "supervised_tokens": supervised,
        "text": runs,
        "token_list": token_list(stream, sample),
        "max_pixels": sample.max_pixels,
        "dropped_turns": sample.dropped_turns,
        "shrunk": sample.max_pixels < geometry.max_pixels,
    })
}

/// The tokens one by one; the placeholders of a picture as one entry with its number and how many they are.
fn token_list(stream: &Stream, sample: &SizedSample) -> Vec<Value> {
    let geometry = &stream.processor.geometry;
    let image_pad = stream.processor.text.image_pad_id();
    let mut pictures = sample.sized.iter().enumerate().peekable();
    let token = |TokenView { id, text, supervised, repeats }| {
        if id != image_pad {
            return json!({"id": id, "text": text, "supervised": supervised});
        }
        let of_one = |picture: &(usize, &SizedPicture)| picture.1.grid.tokens(geometry) == repeats as u64;
        let image = pictures.next_if(of_one).map(|(index, _)| index);
        json!({"id": id, "image": image, "count": repeats, "supervised": supervised})
    };
    stream.processor.text.tokens(&sample.encoded).into_iter().map(token).collect()
}
