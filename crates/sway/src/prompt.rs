//! Prompts: plain text, or the messages of a chat.

use std::fmt;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a model continues.
///
/// In a suite it is a string, or a list of messages. Both are the same type, so
/// that a probe need not know which it asks with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[schemars(untagged)]
pub enum Prompt {
    /// Plain text.
    Text(String),
    /// Messages, rendered with the model's chat template and followed by the
    /// start of the assistant's answer.
    Messages(Vec<ChatMessage>),
}

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions for the whole chat.
    System,
    /// The person who asks.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name in chat templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

impl ChatMessage {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

impl Prompt {
    /// The text, or the content of the last message of the user.
    pub fn question(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Messages(messages) => {
                let asked = messages.iter().rfind(|message| message.role == Role::User);
                asked.or(messages.last()).map_or("", |message| message.content.as_str())
            }
        }
    }

    /// The prompt with another text, or another last message of the user.
    #[must_use]
    pub fn with_question(&self, text: impl Into<String>) -> Self {
        match self {
            Self::Text(_) => Self::Text(text.into()),
            Self::Messages(messages) => {
                let mut messages = messages.clone();
                let asked = messages.iter().rposition(|message| message.role == Role::User);
                match asked.and_then(|at| messages.get_mut(at)) {
                    Some(message) => message.content = text.into(),
                    None => messages.push(ChatMessage::new(Role::User, text)),
                }
                Self::Messages(messages)
            }
        }
    }
}

impl fmt::Display for Prompt {
    /// The text, or the messages with their roles; a question alone has none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Messages(messages) => match messages.as_slice() {
                [ChatMessage { role: Role::User, content }] => f.write_str(content),
                messages => {
                    for (at, message) in messages.iter().enumerate() {
                        let newline = if at == 0 { "" } else { "\n" };
                        write!(f, "{newline}{}: {}", message.role.name(), message.content)?;
                    }
                    Ok(())
                }
            },
        }
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Prompt {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<&Prompt> for Prompt {
    fn from(prompt: &Prompt) -> Self {
        prompt.clone()
    }
}

/// As a suite or a report has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Messages(Vec<ChatMessage>),
}

/// As the cache has it, whose format does not say what comes next.
#[derive(Deserialize)]
enum Tagged {
    Text(String),
    Messages(Vec<ChatMessage>),
}

impl Serialize for Prompt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self, serializer.is_human_readable()) {
            (Self::Text(text), true) => serializer.serialize_str(text),
            (Self::Messages(messages), true) => messages.serialize(serializer),
            (Self::Text(text), false) => serializer.serialize_newtype_variant("Prompt", 0, "Text", text),
            (Self::Messages(messages), false) => {
                serializer.serialize_newtype_variant("Prompt", 1, "Messages", messages)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Ok(match Written::deserialize(deserializer)? {
                Written::Text(text) => Self::Text(text),
                Written::Messages(messages) => {
                    if messages.last().is_none_or(|last| last.role != Role::User) {
                        return Err(D::Error::custom("messages must end with one of the user"));
                    }
                    Self::Messages(messages)
                }
            });
        }
        Ok(match Tagged::deserialize(deserializer)? {
            Tagged::Text(text) => Self::Text(text),
            Tagged::Messages(messages) => Self::Messages(messages),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chat() -> Prompt {
        Prompt::Messages(vec![
            ChatMessage::new(Role::System, "Be brief."),
            ChatMessage::new(Role::User, "Hi"),
            ChatMessage::new(Role::Assistant, "Hello."),
            ChatMessage::new(Role::User, "Who are you?"),
        ])
    }

    #[test]
    fn a_prompt_is_a_string_or_a_list_of_messages() {
        let read = |value| serde_json::from_value::<Prompt>(value);
        assert_eq!(read(json!("Once")).unwrap(), Prompt::from("Once"));
        let value = serde_json::to_value(chat()).unwrap();
        assert_eq!(value[0], json!({"role": "system", "content": "Be brief."}));
        assert_eq!(read(value).unwrap(), chat());
        assert!(read(json!([{"role": "robot", "content": "x"}])).is_err());
        let answered = json!([{"role": "assistant", "content": "x"}]);
        assert!(read(answered).unwrap_err().to_string().contains("must end with one of the user"));
        assert!(read(json!([])).is_err() && read(json!(3)).is_err());
        // The cache keeps both apart.
        for prompt in [Prompt::from("Once"), chat()] {
            let bytes = postcard::to_allocvec(&prompt).unwrap();
            assert_eq!(postcard::from_bytes::<Prompt>(&bytes).unwrap(), prompt);
        }
    }

    #[test]
    fn the_question_of_a_chat_is_its_last_user_message() {
        assert_eq!(chat().question(), "Who are you?");
        let other = chat().with_question("Why?");
        assert_eq!((other.question(), other.to_string().lines().count()), ("Why?", 4));
        assert_eq!(Prompt::from("a").with_question("b"), Prompt::from("b"));
        let alone = Prompt::Messages(vec![ChatMessage::new(Role::User, "Hi")]);
        assert_eq!(alone.to_string(), "Hi");
        assert!(chat().to_string().starts_with("system: Be brief.\nuser: Hi\n"));
    }
}
