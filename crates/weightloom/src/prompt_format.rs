//! How prompts become tokens: as plain text, or as a message of a chat.

use weightloom_hub::text::{ChatContext, Message, OrderedJson, Timestamp};
use weightloom_hub::{EosHandling, HubError, TextGenerator};

/// How a prompt is formatted, and who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptFormat {
    /// Plain text.
    Text,
    /// Plain text: the training data were chats, but there is no chat template.
    TextForLackOfTemplate,
    /// A message of a chat.
    Chat,
    /// A message of a chat: the training data were chats.
    ChatAsInTraining,
}

impl PromptFormat {
    /// Whether the chat template is applied.
    pub fn is_chat(self) -> bool {
        matches!(self, Self::Chat | Self::ChatAsInTraining)
    }

    /// What to say about a format that nobody asked for. `trained` is what was
    /// trained, and `disable` the option that selects plain text.
    pub fn note(self, trained: &str, disable: &str) -> Option<String> {
        match self {
            Self::Text | Self::Chat => None,
            Self::ChatAsInTraining => Some(format!(
                "note: using the chat template: the {trained} was trained on chats ({disable} disables it)"
            )),
            Self::TextForLackOfTemplate => Some(format!(
                "note: using plain text: the {trained} was trained on chats, but there is no chat template"
            )),
        }
    }

    /// Encodes a prompt. `system` is the system message of a chat.
    pub fn encode(
        self,
        generator: &TextGenerator,
        text: &str,
        system: Option<&str>,
        now: Option<Timestamp>,
    ) -> Result<Vec<u32>, HubError> {
        if !self.is_chat() {
            return generator.encode_prompt(text);
        }
        let system = system.map(|text| Message::new("system", text));
        let user = Message::new("user", OrderedJson::from(text));
        let messages: Vec<Message> = system.into_iter().chain([user]).collect();
        generator.encode_chat(&messages, &ChatContext { now, ..ChatContext::default() })
    }

    /// Tokens that end the text besides those of the model: in a chat, the one
    /// that ends the assistant's turn, which a base model does not have.
    pub fn stop_tokens(self, generator: &TextGenerator, eos: EosHandling) -> Result<Vec<u32>, HubError> {
        let template = generator.templates.pick(&ChatContext::default());
        match template.filter(|_| self.is_chat() && eos == EosHandling::Stop) {
            Some(template) => Ok(template.end_of_turn_token(&generator.tokenizer)?.into_iter().collect()),
            None => Ok(Vec::new()),
        }
    }
}
