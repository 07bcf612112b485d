//! Whether a local model is used with messages.

use weightloom_hub::{HubError, Model, TrainingData};

use super::Tuned;
use super::engine::templates;
use crate::chat::{ChatSupport, ChatUsage};

/// How the models are used, and why. The training record decides if there is
/// one; without it, an instruct model is used with messages.
pub(super) fn support(base: &Model, tuned: &Tuned, record: Option<&TrainingData>) -> ChatSupport {
    decide(base, tuned, record).unwrap_or_else(|error| {
        ChatSupport::new(ChatUsage::Unavailable, format!("the chat template cannot be used: {error}"))
    })
}

fn decide(base: &Model, tuned: &Tuned, record: Option<&TrainingData>) -> Result<ChatSupport, HubError> {
    let trained = match tuned {
        Tuned::Adapter(_) => "adapter",
        Tuned::None | Tuned::Model(_) => "model",
    };
    let has_chats = record.is_some_and(TrainingData::has_chats);
    if templates(base, tuned)?.is_empty() {
        let why = match has_chats {
            true => format!("there is no chat template, although the {trained} was trained on chats"),
            false => String::new(),
        };
        return Ok(ChatSupport::new(ChatUsage::Unavailable, why));
    }
    if has_chats {
        return Ok(ChatSupport::new(ChatUsage::Chat, format!("the {trained} was trained on chats")));
    }
    if let Some(record) = record.filter(|record| !record.kinds.is_empty()) {
        let kinds: Vec<String> = record.kinds.iter().map(ToString::to_string).collect();
        let why = format!("the {trained} was trained on {}", kinds.join(" and "));
        return Ok(ChatSupport::new(ChatUsage::PlainText, why));
    }
    let sides = match tuned {
        Tuned::Model(model) => vec![&**model, base],
        Tuned::None | Tuned::Adapter(_) => vec![base],
    };
    for model in sides {
        if model.is_instruct()? {
            return Ok(ChatSupport::new(ChatUsage::Chat, format!("`{}` is an instruct model", model.name())));
        }
    }
    let why = format!("`{}` has a chat template but does not end its turns: a base model", base.name());
    Ok(ChatSupport::new(ChatUsage::PlainText, why))
}
