//! Takes a pipeline and a processor's folder, gives whether the Hugging Face processor that is installed here makes the same samples.
//!
//! ```text
//!  pipeline ─► worker in this process ─► frame ───────────────────────┐
//!                     └─► record, pictures' files ─► Hugging Face ────┴─► equal, or the first difference
//! ```
//!
//! The right half is `verify.py`, run by the user's own Python. One record after another goes through a scratch folder, so that any number
//! of them needs little room.

/// Python on the other end of two pipes.
mod reference;
/// What was found, in words.
mod told;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use feedmill_protocol::bad::RowStatus;
use feedmill_protocol::frame::BatchView;
use feedmill_protocol::pipeline::spec::ProcessorSpec;
use feedmill_protocol::position::Range;
use serde_json::{Value, json};

use crate::args::{AccessArguments, VerifyArguments};
use crate::output::print;
use crate::pipeline;
use crate::scratch::Scratch;
use crate::target::{Local, Target};
use crate::usage::Usage;

use reference::{Reference, Row};
use told::{Outcome, Summary};

/// Runs `feedmill verify`: 0 all equal, 1 a difference, 2 nothing could be compared.
///
/// # Errors
/// A pipeline that cannot be read, packages that are not installed.
pub async fn run(arguments: &VerifyArguments) -> anyhow::Result<ExitCode> {
    let pipeline = pipeline::read(&arguments.pipeline, &arguments.stream).map_err(Usage::of)?;
    let path = arguments.pipeline.to_str().context("the pipeline's path is not UTF-8")?;
    let Target::Pipeline(local) =
        Target::open(path, &arguments.stream, &arguments.storage, &AccessArguments::default()).await?
    else {
        return Err(Usage::of(anyhow!("feedmill verify reads a pipeline's file, not a worker")));
    };
    let scratch = Scratch::new("verify").context("cannot make a folder for one record")?;
    let settings =
        settings(&pipeline.processor, &arguments.processor, &local, &arguments.stream, scratch.path())?;
    let mut reference =
        Reference::start(&arguments.python, scratch.path(), &settings).await.map_err(Usage::of)?;
    let mut summary = Summary::new(reference.about().clone(), &settings);
    let end = arguments.position.saturating_add(arguments.records);
    for position in arguments.position..end {
        let outcome = one(&local, &arguments.stream, position, scratch.path(), &mut reference).await?;
        if !arguments.json {
            print(&outcome.text(position))?;
        }
        summary.add(position, outcome);
    }
    reference.end().await?;
    print(&summary.text(arguments.json))?;
    Ok(summary.exit_code())
}

/// One position: what stands there, made twice.
async fn one(
    local: &Local,
    stream: &str,
    position: u64,
    scratch: &Path,
    reference: &mut Reference,
) -> anyhow::Result<Outcome> {
    let range = Range::new(position, position + 1).map_err(Usage::of)?;
    let frame = match local.worker().batch(stream, range, None).await {
        Ok(frame) => frame,
        Err(problem) => return Ok(Outcome::NotCompared(crate::http::describe(&problem).to_string())),
    };
    let view = BatchView::parse(&frame).context("the worker's own frame cannot be read")?;
    let status = view.samples().first().map(|sample| sample.status);
    if let Some(RowStatus::ZeroLoss(class)) = status {
        return Ok(Outcome::NotCompared(format!("a row without loss stands there: {}", class.name())));
    }
    let original = local.worker().original(stream, position).await;
    let original = original.map_err(|problem| crate::http::describe(&problem))?;
    let Some(original) = original else {
        return Ok(Outcome::NotCompared("no record stands there".into()));
    };
    let write = |name: &str, bytes: &[u8]| {
        let path = scratch.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    if original.described["own_size"] == true {
        return Ok(Outcome::NotCompared("the record asks for sizes of its own pictures".into()));
    }
    write("frame", &frame)?;
    for (number, bytes) in original.pictures.iter().enumerate() {
        write(&format!("picture-{number}"), bytes)?;
    }
    let answer = reference.ask(&original.described).await?;
    Ok(Outcome::of(answer, Row::of(&original.described)))
}

/// What the other side must know of the pipeline.
fn settings(
    spec: &ProcessorSpec,
    processor: &Path,
    local: &Local,
    stream: &str,
    scratch: &Path,
) -> anyhow::Result<Value> {
    let folder = std::fs::canonicalize(processor)
        .with_context(|| format!("--processor {} cannot be used", processor.display()))
        .map_err(Usage::of)?;
    let plan = local.worker().facts(stream).context("the stream has no plan")?;
    Ok(json!({
        "processor": folder,
        "folder": scratch,
        "min_pixels": plan["processor.min_pixels"],
        "max_pixels": plan["processor.max_pixels"],
        "template_kwargs": spec.template_kwargs,
        "control_tokens": spec.control_tokens.assistant,
        "last_turn_only": spec.labels.last_turn_only,
        "newline": spec.labels.newline,
        "exif_orientation": spec.colors.exif_orientation,
        "alpha_on_white": spec.colors.alpha_on_white,
    }))
}
