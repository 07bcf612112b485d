//! The record of how documents become tokens, which is saved with the weights.

use std::collections::BTreeSet;

use weightloom_hub::text::ChatContext;
use weightloom_hub::{DataKind, SystemPrompt, TemplateRecord, TemplateSource, TrainingData};

use super::documents::Documents;
use super::error::DataError;
use super::stream::RowStream;
use crate::config::{DataConfig, TrainOn};

/// The record of a stream of rows. The kind of a file is that of its first
/// document.
pub(super) fn record(
    config: &DataConfig,
    stream: &RowStream,
    eval: &[&Documents],
) -> Result<TrainingData, DataError> {
    let files = stream.documents.data_files()?;
    let mut eval_files = Vec::new();
    for documents in eval {
        eval_files.extend(documents.data_files()?);
    }
    let kinds: BTreeSet<DataKind> = files.iter().map(|file| file.kind).collect();
    let is_chat = kinds.contains(&DataKind::Chat);
    let template = stream.sampler.templates.pick(&ChatContext::default()).filter(|_| is_chat);
    let source = match &config.chat_template {
        Some(file) => TemplateSource::File(file.clone()),
        None => TemplateSource::Tokenizer,
    };
    Ok(TrainingData {
        version: TrainingData::VERSION,
        kinds: kinds.into_iter().collect(),
        chat_template: template.map(|template| TemplateRecord::new(source, template.source())),
        system_prompt: is_chat.then_some(SystemPrompt::Messages),
        train_on: match config.train_on {
            TrainOn::Completions => "completions".to_owned(),
            TrainOn::All => "all".to_owned(),
        },
        max_seq_len: config.max_seq_len,
        packing: config.packing.is_packed(),
        files,
        eval_files,
    })
}
