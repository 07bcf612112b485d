//! An assistant's answer within a rendered conversation.

use super::super::error::TextError;
use super::super::tokenizer::{Special, Tokenizer};
use super::{ChatContext, ChatError, ChatTemplate, GenerationPrompt, Message};

/// A question and an answer that no template writes by itself.
const PROBE: [(&str, &str); 2] = [("user", "Maple?"), ("assistant", "Quince")];

/// A rendered conversation that ends with an assistant's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedAnswer {
    /// The conversation up to the end of the answer's turn.
    pub text: String,
    /// The byte at which the answer starts: after the generation prompt.
    pub start: usize,
}

impl ChatTemplate {
    /// Renders a conversation with an assistant's answer at its end.
    ///
    /// The answer is a whole turn, as in training: it includes what the template
    /// writes at the end of a turn, but no white space after that. A template
    /// that renders a finished turn differently from its generation prompt has
    /// no such end; then the answer is appended to the generation prompt as it
    /// is.
    pub fn render_answer(
        &self,
        messages: &[Message],
        answer: &str,
        context: &ChatContext,
    ) -> Result<RenderedAnswer, ChatError> {
        let opened = self.render(messages, GenerationPrompt::Add, context)?;
        let start = opened.len();
        let mut whole = messages.to_vec();
        whole.push(Message::new("assistant", answer));
        let closed = self.render(&whole, GenerationPrompt::Leave, context);
        let text = match closed {
            Ok(closed) if closed.starts_with(&opened) => {
                let end = closed.trim_end().len().max(start);
                closed[..end].to_owned()
            }
            _ => opened + answer,
        };
        Ok(RenderedAnswer { text, start })
    }

    /// What the template writes after an assistant's answer, without white space
    /// around it; none if it writes nothing.
    pub fn end_of_turn(&self) -> Option<String> {
        let messages = PROBE.map(|(role, content)| Message::new(role, content));
        let text = self.render(&messages, GenerationPrompt::Leave, &ChatContext::default()).ok()?;
        let (_, end) = text.rsplit_once(PROBE[1].1)?;
        let end = end.trim();
        (!end.is_empty()).then(|| end.to_owned())
    }

    /// The special token that ends an assistant's answer; none if the template
    /// writes no special token there.
    pub fn end_of_turn_token(&self, tokenizer: &Tokenizer) -> Result<Option<u32>, TextError> {
        let Some(end) = self.end_of_turn() else { return Ok(None) };
        let tokens = tokenizer.encode(&end, Special::Plain)?;
        Ok(tokens.into_iter().find(|token| tokenizer.is_special(*token)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(source).unwrap()
    }

    fn answer(source: &str, answer: &str) -> (String, usize) {
        let messages = [Message::new("user", "Hi")];
        let found = template(source).render_answer(&messages, answer, &ChatContext::default()).unwrap();
        (found.text, found.start)
    }

    const CHATML: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}\
                          {% if add_generation_prompt %}<|assistant|>{% endif %}";

    #[test]
    fn an_answer_ends_with_the_end_of_its_turn() {
        let (text, start) = answer(CHATML, "Hello ");
        assert_eq!(text, "<|user|>Hi<|end|>\n<|assistant|>Hello <|end|>");
        assert_eq!(&text[start..], "Hello <|end|>");
        assert_eq!(template(CHATML).end_of_turn().as_deref(), Some("<|end|>"));
    }

    #[test]
    fn an_answer_without_an_end_of_turn_is_appended() {
        // The generation prompt opens a block that finished turns do not have.
        let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}\
                      {% if add_generation_prompt %}[assistant]<think>{% endif %}";
        let (text, start) = answer(source, " yes");
        assert_eq!((text.as_str(), &text[start..]), ("[user]Hi[assistant]<think> yes", " yes"));
        assert_eq!(template(source).end_of_turn(), None);
    }
}
