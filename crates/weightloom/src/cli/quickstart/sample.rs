//! Generated text before and after fine-tuning.

use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;
use weightloom::hub::{Hub, StopCriteria};
use weightloom::nn::GenerateRequest;

use crate::cli::device::DeviceArgs;
use crate::cli::failure::Failure;
use crate::cli::generate::RunArgs;
use crate::cli::located::OpenedModel;
use crate::cli::output::Output;

/// Prompts that both texts of the tour complete, each in its own way.
const PROMPTS: [&str; 3] = ["A rank is", "A shard is", "A checkpoint is"];

const MAX_NEW_TOKENS: usize = 64;

/// The completions of a prompt.
#[derive(Serialize)]
pub(super) struct Sample {
    pub(super) prompt: &'static str,
    /// Without the adapter.
    pub(super) before: String,
    /// With the adapter.
    pub(super) after: String,
}

/// Completes the prompts without and with the adapter.
pub(super) fn samples(
    hub: &Hub,
    model: &Path,
    adapter: &Path,
    device: DeviceArgs,
) -> Result<Vec<Sample>, Failure> {
    let before = generate(hub, model, None, device)?;
    let after = generate(hub, model, Some(adapter), device)?;
    let all = PROMPTS.into_iter().zip(before).zip(after);
    Ok(all.map(|((prompt, before), after)| Sample { prompt, before, after }).collect())
}

fn generate(
    hub: &Hub,
    model: &Path,
    adapter: Option<&Path>,
    device: DeviceArgs,
) -> Result<Vec<String>, Failure> {
    let model = hub.open(&model.display().to_string(), &())?;
    let opened = OpenedModel { model, adapter: adapter.map(Path::to_owned) };
    let generator = RunArgs::plain(device).generator(&opened, None, Output::TEXT.quiet())?.generator;
    let prompts = PROMPTS.iter().map(|prompt| generator.encode_prompt(prompt)).collect::<Result<_, _>>()?;
    let request = GenerateRequest { prompts, max_new_tokens: MAX_NEW_TOKENS, ..GenerateRequest::default() };
    let rows = generator.generate(&request, &StopCriteria::default(), |_| ControlFlow::Continue(()))?;
    Ok(rows.into_iter().map(|row| row.text).collect())
}
