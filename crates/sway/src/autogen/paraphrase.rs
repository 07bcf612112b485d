//! Other words for a question.

use crate::prompt::Prompt;

/// Three paraphrases of a question in a document.
pub(super) fn of_document(prompt: &Prompt) -> Vec<Prompt> {
    let bare = prompt.question().trim_end_matches(['?', '.', ' ']);
    let texts = [
        format!("Here is something I wonder about: {bare}?"),
        format!("Please answer this in your own words. {bare}?"),
        format!("{bare}? A short answer is enough."),
    ];
    texts.map(|text| prompt.with_question(text)).into()
}

/// Three paraphrases of a message in a chat. They change neither the length nor
/// the manner of the answer, because the answer to score stays the same.
pub(super) fn of_message(prompt: &Prompt) -> Vec<Prompt> {
    let asked = prompt.question().trim();
    let texts = if asked.ends_with('?') {
        [
            format!("I have a question. {asked}"),
            format!("Can you help me with this? {asked}"),
            format!("{asked} I would like to know."),
        ]
    } else {
        [
            format!("I have a request. {asked}"),
            format!("Can you help me with this? {asked}"),
            format!("{asked}\n\nThank you."),
        ]
    };
    texts.map(|text| prompt.with_question(text)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::{ChatMessage, Role};

    #[test]
    fn paraphrases_change_the_last_question_only() {
        let prompt = Prompt::Messages(vec![
            ChatMessage::new(Role::System, "Be brief."),
            ChatMessage::new(Role::User, "Who are you?"),
        ]);
        for other in of_message(&prompt) {
            assert!(other.question().contains("Who are you?") && other.question() != "Who are you?");
            assert!(other.to_string().starts_with("system: Be brief.\n"));
        }
        assert_eq!(of_document(&"What is 0?".into())[2], "What is 0? A short answer is enough.".into());
        assert_eq!(of_message(&"Sing.".into())[2], "Sing.\n\nThank you.".into());
    }
}
