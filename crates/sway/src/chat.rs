//! Whether prompts are rendered with a chat template.
//!
//! The rule of [`ChatMode::Auto`]:
//!
//! 1. The reference statistics reproduce dlm-sway, which has no chats: plain
//!    text.
//! 2. A training record beside the adapter or the model decides: chats are
//!    rendered with the template, plain text and prompts with completions are
//!    plain text.
//! 3. Without a record, an instruct model gets its template, and any other model
//!    plain text. An instruct model has a template whose end of an answer is a
//!    token that ends a generation
//!    ([`Model::is_instruct`](weightloom_hub::Model::is_instruct)).
//!
//! Both models see the same messages. Neutral text, common facts and recited
//! documents are plain text in every mode: they measure continuations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::prompt::{ChatMessage, Prompt, Role};
use crate::statistics::Statistics;

/// When prompts are rendered with the model's chat template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChatMode {
    /// For instruct models, and for models and adapters trained on chats.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never: prompts are plain text.
    Never,
}

/// What a backend knows about chats with its model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatSupport {
    /// How the model is used.
    pub usage: ChatUsage,
    /// Why, in words that follow "because"; empty if it goes without saying.
    pub why: String,
}

/// How a model is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChatUsage {
    /// Without messages: there is no chat template.
    #[default]
    Unavailable,
    /// With plain text, although messages can be rendered.
    PlainText,
    /// With messages.
    Chat,
}

impl ChatSupport {
    /// A usage with its reason.
    pub fn new(usage: ChatUsage, why: impl Into<String>) -> Self {
        Self { usage, why: why.into() }
    }
}

/// How the prompts of an entry are rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rendering {
    /// Plain text is asked as it is; messages are still messages.
    #[default]
    PlainText,
    /// Plain text becomes the user's message.
    Chat {
        /// The system prompt of chats that have none.
        system: Option<String>,
    },
}

impl Rendering {
    /// The prompt to ask with.
    pub fn apply(&self, prompt: &Prompt) -> Prompt {
        let Self::Chat { system } = self else { return prompt.clone() };
        let mut messages = match prompt {
            Prompt::Text(text) => vec![ChatMessage::new(Role::User, text)],
            Prompt::Messages(messages) => messages.clone(),
        };
        let has_system = messages.first().is_some_and(|first| first.role == Role::System);
        if let Some(system) = system.as_ref().filter(|_| !has_system) {
            messages.insert(0, ChatMessage::new(Role::System, system));
        }
        Prompt::Messages(messages)
    }
}

/// The settings of a suite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatSettings {
    /// The mode of entries without their own.
    pub mode: ChatMode,
    /// The system prompt of chats that have none.
    pub system: Option<String>,
}

impl ChatSettings {
    /// How the prompts of an entry are rendered. `own` is the mode of the entry,
    /// if it has one.
    pub fn rendering(
        &self,
        own: Option<ChatMode>,
        support: &ChatSupport,
        statistics: Statistics,
    ) -> Rendering {
        let chat = match own.unwrap_or(self.mode) {
            ChatMode::Always => true,
            ChatMode::Never => false,
            ChatMode::Auto => statistics == Statistics::Paired && support.usage == ChatUsage::Chat,
        };
        if chat { Rendering::Chat { system: self.system.clone() } } else { Rendering::PlainText }
    }

    /// What a report says about the rendering; none if nothing is unusual.
    pub fn note(&self, support: &ChatSupport, statistics: Statistics) -> Option<String> {
        let rendered =
            |why: &str| format!("prompts are rendered with the model's chat template, because {why}");
        let plain = |why: &str| format!("prompts are plain text, because {why}");
        match (self.mode, support.usage) {
            (ChatMode::Always, _) => Some(rendered("the suite says `chat: always`")),
            (ChatMode::Never, ChatUsage::Chat) => Some(plain("the suite says `chat: never`")),
            (ChatMode::Never, _) => None,
            (ChatMode::Auto, ChatUsage::Chat) if statistics == Statistics::Reference => {
                Some(plain("the reference statistics follow dlm-sway, which has no chats"))
            }
            (ChatMode::Auto, ChatUsage::Chat) => Some(rendered(&support.why)),
            (ChatMode::Auto, _) => (!support.why.is_empty()).then(|| plain(&support.why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(mode: ChatMode) -> ChatSettings {
        ChatSettings { mode, system: Some("Be brief.".to_owned()) }
    }

    #[test]
    fn auto_follows_the_model_and_the_other_modes_do_not() {
        let chat = ChatSupport::new(ChatUsage::Chat, "the adapter was trained on chats");
        let plain = ChatSupport::new(ChatUsage::PlainText, "the adapter was trained on plain text");
        let none = ChatSupport::default();
        let is_chat = |mode, own, support: &ChatSupport| {
            settings(mode).rendering(own, support, Statistics::Paired) != Rendering::PlainText
        };
        assert!(is_chat(ChatMode::Auto, None, &chat));
        assert!(!is_chat(ChatMode::Auto, None, &plain) && !is_chat(ChatMode::Auto, None, &none));
        assert!(is_chat(ChatMode::Always, None, &none) && !is_chat(ChatMode::Never, None, &chat));
        // An entry decides for itself.
        assert!(!is_chat(ChatMode::Always, Some(ChatMode::Never), &chat));
        assert!(is_chat(ChatMode::Never, Some(ChatMode::Auto), &chat));
        // dlm-sway has no chats.
        let reference = settings(ChatMode::Auto).rendering(None, &chat, Statistics::Reference);
        assert_eq!(reference, Rendering::PlainText);
    }

    #[test]
    fn the_note_says_why() {
        let chat = ChatSupport::new(ChatUsage::Chat, "the adapter was trained on chats");
        assert_eq!(
            settings(ChatMode::Auto).note(&chat, Statistics::Paired).unwrap(),
            "prompts are rendered with the model's chat template, because the adapter was trained on chats"
        );
        assert_eq!(settings(ChatMode::Auto).note(&ChatSupport::default(), Statistics::Paired), None);
        let plain = ChatSupport::new(ChatUsage::PlainText, "the adapter was trained on plain text");
        let note = settings(ChatMode::Auto).note(&plain, Statistics::Paired).unwrap();
        assert_eq!(note, "prompts are plain text, because the adapter was trained on plain text");
    }

    #[test]
    fn text_becomes_a_message_after_the_system_prompt() {
        let chat = settings(ChatMode::Always).rendering(None, &ChatSupport::default(), Statistics::Paired);
        let system = ChatMessage::new(Role::System, "Be brief.");
        let user = ChatMessage::new(Role::User, "Hi");
        let whole = Prompt::Messages(vec![system, user.clone()]);
        assert_eq!(chat.apply(&"Hi".into()), whole);
        assert_eq!(chat.apply(&Prompt::Messages(vec![user.clone()])), whole);
        // A chat keeps its own system prompt.
        let own = Prompt::Messages(vec![ChatMessage::new(Role::System, "Be kind."), user]);
        assert_eq!(chat.apply(&own), own);
        assert_eq!(Rendering::PlainText.apply(&"Hi".into()), "Hi".into());
    }
}
