//! Whether a model is used with messages.

use weightloom_hub::{HubError, Model, TrainingData};

use super::Tuned;
use super::engine::templates;
use crate::chat::{ChatSupport, ChatUsage};

/// How the models are used, and why. The training record decides if there is
/// one; without it, an instruct model is used with messages.
pub(super) fn support(base: &Model, tuned: &Tuned, record: Option<&TrainingData>) -> ChatSupport {
    support_of(decide(base, tuned, record))
}

/// The support that was found out; none if that failed.
pub(in crate::backend) fn support_of(found: Result<ChatSupport, HubError>) -> ChatSupport {
    found.unwrap_or_else(|error| {
        ChatSupport::new(ChatUsage::Unavailable, format!("the chat template cannot be used: {error}"))
    })
}

fn decide(base: &Model, tuned: &Tuned, record: Option<&TrainingData>) -> Result<ChatSupport, HubError> {
    let facts = ChatFacts {
        base: base.name(),
        trained: match tuned {
            Tuned::Adapter(_) => "adapter",
            Tuned::None | Tuned::Model(_) => "model",
        },
        has_template: !templates(base, tuned)?.is_empty(),
        record,
    };
    facts.decide(|| {
        let sides = match tuned {
            Tuned::Model(model) => vec![&**model, base],
            Tuned::None | Tuned::Adapter(_) => vec![base],
        };
        for model in sides {
            if model.is_instruct()? {
                return Ok(Some(model.name().to_owned()));
            }
        }
        Ok(None)
    })
}

/// What decides how models are used.
pub(in crate::backend) struct ChatFacts<'a> {
    /// The name of the base.
    pub(in crate::backend) base: &'a str,
    /// What was trained: an `adapter` or a `model`.
    pub(in crate::backend) trained: &'static str,
    pub(in crate::backend) has_template: bool,
    pub(in crate::backend) record: Option<&'a TrainingData>,
}

impl ChatFacts<'_> {
    /// How the models are used. `instruct` names the one that is an instruct model.
    pub(in crate::backend) fn decide(
        &self,
        instruct: impl FnOnce() -> Result<Option<String>, HubError>,
    ) -> Result<ChatSupport, HubError> {
        let &Self { base, trained, has_template, record } = self;
        let has_chats = record.is_some_and(TrainingData::has_chats);
        if !has_template {
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
        if let Some(name) = instruct()? {
            return Ok(ChatSupport::new(ChatUsage::Chat, format!("`{name}` is an instruct model")));
        }
        let why = format!("`{base}` has a chat template but does not end its turns: a base model");
        Ok(ChatSupport::new(ChatUsage::PlainText, why))
    }
}
