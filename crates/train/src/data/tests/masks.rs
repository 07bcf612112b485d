//! Which tokens of texts and prompts count, against expectations written by
//! hand: counted tokens are in brackets.

use std::sync::Arc;

use weightloom_hub::text::{ChatTemplates, Message, Tokenizer};

use super::stage::{Around, templates, tokenizer};
use crate::config::TrainOn;
use crate::data::error::DataError;
use crate::data::parts::Part;
use crate::data::record::{Content, Origin};
use crate::data::sample::{Sample, Sampler, Templates};
use crate::data::{DocumentStatus, DropReason, Supervision};

pub(super) fn sampler(around: Around, template: &str) -> Sampler {
    let templates = if template.is_empty() { ChatTemplates::default() } else { templates(template) };
    Sampler {
        tokenizer: Arc::new(tokenizer(around)),
        templates: Templates::Model(Arc::new(templates)),
        train_on: TrainOn::Completions,
        max_tokens: usize::MAX,
        vocabulary: 200,
        supervision: Supervision::Tokens,
    }
}

pub(super) fn sample(sampler: &Sampler, content: Content) -> Result<Sample, DataError> {
    sampler.sample(content, Part::Whole, &Origin { file: "x.jsonl".to_owned(), line: 7 })
}

/// Tokens side by side, with brackets around those that count.
pub(super) fn shown(tokenizer: &Tokenizer, sample: &Sample) -> String {
    let mut text = String::new();
    let mut before = false;
    for (&token, &counts) in sample.tokens.iter().zip(&sample.mask) {
        if counts != before {
            text.push(if counts { '⟦' } else { '⟧' });
        }
        text.push_str(tokenizer.token(token).unwrap());
        before = counts;
    }
    if before {
        text.push('⟧');
    }
    text
}

fn text(around: Around, text: &str) -> String {
    let sampler = sampler(around, "");
    let sample = sample(&sampler, Content::Text(text.to_owned())).unwrap();
    shown(&sampler.tokenizer, &sample)
}

fn prompt(around: Around, prompt: &str, completion: &str) -> String {
    let sampler = sampler(around, "");
    let content = Content::Prompt { prompt: prompt.to_owned(), completion: completion.to_owned() };
    shown(&sampler.tokenizer, &sample(&sampler, content).unwrap())
}

#[test]
fn text_contributes_except_its_first_token() {
    assert_eq!(text(Around::Nothing, "hi"), "h⟦i</s>⟧");
    assert_eq!(text(Around::Bos, "hi"), "<s>⟦hi</s>⟧");
    assert_eq!(text(Around::Both, "hi"), "<s>⟦hi</s>⟧");
    // What a text spells out is not there twice.
    assert_eq!(text(Around::Both, "<s>hi</s>"), "<s>⟦hi</s>⟧");
    assert_eq!(text(Around::Bos, "<s>hi</s>"), "<s>⟦hi</s>⟧");
}

#[test]
fn an_empty_text_is_skipped() {
    for around in [Around::Nothing, Around::Bos, Around::Both] {
        assert_eq!(text(around, ""), "");
        assert_eq!(text(around, "</s>"), "");
        // The vocabulary has nothing for these.
        assert_eq!(text(around, "éé"), "");
    }
}

#[test]
fn only_completions_contribute() {
    assert_eq!(prompt(Around::Nothing, "q: ", "yes"), "q: ⟦yes</s>⟧");
    assert_eq!(prompt(Around::Bos, "q: ", "yes"), "<s>q: ⟦yes</s>⟧");
    assert_eq!(prompt(Around::Both, "q: ", "yes"), "<s>q: ⟦yes</s>⟧");
    // One text spells out what begins it, the other what ends it.
    assert_eq!(prompt(Around::Bos, "<s>q", "no</s>"), "<s>q⟦no</s>⟧");
    assert_eq!(prompt(Around::Both, "<s>q", "no</s>"), "<s>q⟦no</s>⟧");
    assert_eq!(prompt(Around::Bos, "q", ""), "<s>q⟦</s>⟧");
    assert_eq!(prompt(Around::Bos, "", "no"), "<s>⟦no</s>⟧");
    assert_eq!(prompt(Around::Nothing, "", "no"), "n⟦o</s>⟧");
    assert_eq!(prompt(Around::Bos, "", ""), "");
}

#[test]
fn a_token_across_the_boundary_contributes() {
    // The two are tokenized as one text: `ab` is one token, and its `b`
    // belongs to the completion.
    assert_eq!(prompt(Around::Bos, "xa", "bx"), "<s>x⟦abx</s>⟧");
    let sampler = sampler(Around::Bos, "");
    let content = Content::Prompt { prompt: "xa".to_owned(), completion: "bx".to_owned() };
    assert_eq!(sample(&sampler, content).unwrap().tokens.len(), 5);
    // Tokens beside the seam are not.
    assert_eq!(prompt(Around::Bos, "ab", "abx"), "<s>⟦ababx</s>⟧");
    assert_eq!(prompt(Around::Bos, "ab ", "abx"), "<s>ab ⟦abx</s>⟧");
}

#[test]
fn train_on_all_contributes_everything() {
    let mut sampler = sampler(Around::Bos, "{{ messages[0].content }}");
    sampler.train_on = TrainOn::All;
    let content = Content::Prompt { prompt: "q".to_owned(), completion: "a".to_owned() };
    assert_eq!(shown(&sampler.tokenizer, &sample(&sampler, content).unwrap()), "<s>⟦qa</s>⟧");
    let content = Content::Chat { messages: vec![Message::new("user", "hi")], tools: None };
    assert_eq!(shown(&sampler.tokenizer, &sample(&sampler, content).unwrap()), "h⟦i⟧");
}

#[test]
fn long_prompts_are_truncated_at_the_end() {
    let of = |longest: usize, completion: &str| {
        let mut sampler = sampler(Around::Bos, "");
        sampler.max_tokens = longest;
        let content = Content::Prompt { prompt: "qq".to_owned(), completion: completion.to_owned() };
        let sample = sample(&sampler, content).unwrap();
        (shown(&sampler.tokenizer, &sample), sample.status)
    };
    assert_eq!(of(6, "yx"), ("<s>qq⟦yx</s>⟧".to_owned(), DocumentStatus::Whole));
    assert_eq!(of(5, "yx"), ("<s>qq⟦yx⟧".to_owned(), DocumentStatus::Truncated));
    assert_eq!(of(4, "yx"), ("<s>qq⟦y⟧".to_owned(), DocumentStatus::Truncated));
    // No token contributes.
    assert_eq!(of(3, "yx"), (String::new(), DocumentStatus::Dropped(DropReason::AnswerCutOff)));
    // Texts are not cut off: they become several rows.
    let mut long = sampler(Around::Bos, "");
    long.max_tokens = 3;
    let sample = sample(&long, Content::Text("hello".to_owned())).unwrap();
    assert_eq!((sample.status, sample.tokens.len()), (DocumentStatus::Whole, 6));
}

#[test]
fn a_token_beyond_the_vocabulary_is_an_error() {
    let mut sampler = sampler(Around::Bos, "");
    sampler.vocabulary = 5;
    let token = sampler.tokenizer.id("h").unwrap();
    let error = sample(&sampler, Content::Text("h".to_owned())).unwrap_err();
    let expected = DataError::Token { file: "x.jsonl".to_owned(), line: 7, token, vocabulary: 5 };
    assert_eq!(error, expected);
}

#[test]
fn a_text_that_cannot_be_tokenized_is_an_error() {
    let file = r#"{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}"#;
    let mut sampler = sampler(Around::Bos, "{{ messages[0].content }}");
    sampler.tokenizer = Arc::new(Tokenizer::from_json(file.as_bytes()).unwrap());
    let messages = vec![Message::new("assistant", "b")];
    let (prompt, completion) = (String::new(), "b".to_owned());
    for content in [
        Content::Text("b".to_owned()),
        Content::Prompt { prompt, completion },
        Content::Chat { messages, tools: None },
    ] {
        let error = sample(&sampler, content).unwrap_err();
        assert!(matches!(error, DataError::Encode { line: 7, .. }), "{error}");
    }
}
