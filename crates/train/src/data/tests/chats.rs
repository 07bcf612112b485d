//! Which tokens of conversations count, with templates of several styles.

use proptest::prelude::*;
use weightloom_hub::text::{ChatError, Message, OrderedJson};

use super::masks::{sample, sampler, shown};
use super::stage::Around;
use crate::data::error::DataError;
use crate::data::record::Content;
use crate::data::{DocumentStatus, DropReason};

/// As ChatML has it: a mark, a role, a line break, and a mark at the end.
pub(super) const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// As Llama 2 has it: each question begins with BOS, each answer ends with
/// EOS, and nothing is added for an answer to come.
const INST: &str = "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}\
    {% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}";

/// Thoughts are dropped once there is another question.
const THOUGHTS: &str = "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}\
    {% for m in messages %}{% set text = m.content %}\
    {% if m.role == 'assistant' and loop.index0 < ns.last %}{% set text = m.content.split('</think>')[-1] %}{% endif %}\
    {{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// An answer begins with a thought, which is not shown later.
const OPENED: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content.split('</think>')[-1] + '<|im_end|>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}";

/// No special tokens, and one end for the whole.
const PLAIN: &str = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ 'assistant: ' }}{% else %}{{ eos_token }}{% endif %}";

/// What is said first goes to the last question.
const LATE: &str = "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}\
    {% if loop.index0 == messages | map(attribute='role') | list | length - 2 %}{{ '(be kind) ' }}{% endif %}{{ m.content + '|' }}\
    {% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}";

/// Questions and answers by pairs; a question alone is not shown.
const PAIRS: &str = "{% for m in messages %}{% if m.role == 'assistant' %}\
    {{ bos_token + loop.previtem.content + '=>' + m.content + eos_token }}{% endif %}{% endfor %}";

fn chat(template: &str, messages: &[(&str, &str)]) -> String {
    let messages = messages.iter().map(|(role, content)| Message::new(role, *content)).collect();
    told(template, messages).unwrap()
}

fn told(template: &str, messages: Vec<Message>) -> Result<String, DataError> {
    // A tokenizer that adds BOS must not add it to what a template renders.
    let sampler = sampler(Around::Both, template);
    let sample = sample(&sampler, Content::Chat { messages, tools: None })?;
    Ok(shown(&sampler.tokenizer, &sample))
}

#[test]
fn assistant_messages_contribute_with_their_end_token() {
    assert_eq!(
        chat(
            CHATML,
            &[("system", "be"), ("user", "q"), ("assistant", "yes"), ("user", "r"), ("assistant", "no")]
        ),
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nq<|im_end|>\n\
         <|im_start|>assistant\n⟦yes<|im_end|>⟧\n<|im_start|>user\nr<|im_end|>\n\
         <|im_start|>assistant\n⟦no<|im_end|>⟧\n"
    );
    assert_eq!(
        chat(CHATML, &[("assistant", "hello"), ("user", "q")]),
        "<|im_start|>assistant\n⟦hello<|im_end|>⟧\n<|im_start|>user\nq<|im_end|>\n"
    );
    assert_eq!(
        chat(CHATML, &[("user", "q"), ("assistant", "a"), ("assistant", "b")]),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦a<|im_end|>⟧\n\
         <|im_start|>assistant\n⟦b<|im_end|>⟧\n"
    );
    assert_eq!(
        chat(CHATML, &[("user", "q"), ("assistant", "")]),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦<|im_end|>⟧\n"
    );
}

#[test]
fn templates_can_repeat_the_bos_token() {
    assert_eq!(
        chat(INST, &[("user", "q"), ("assistant", "yes"), ("user", "r"), ("assistant", "no")]),
        "<s>[INST] q [/INST]⟦ yes </s>⟧<s>[INST] r [/INST]⟦ no </s>⟧"
    );
    // The answer spells the question.
    assert_eq!(chat(INST, &[("user", "ab"), ("assistant", "ab")]), "<s>[INST] ab [/INST]⟦ ab </s>⟧");
}

#[test]
fn templates_can_drop_earlier_reasoning() {
    assert_eq!(
        chat(
            THOUGHTS,
            &[("user", "q"), ("assistant", "hm</think>yes"), ("user", "r"), ("assistant", "oh</think>no")]
        ),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦yes<|im_end|>⟧\n\
         <|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n⟦oh</think>no<|im_end|>⟧\n"
    );
    // Answers that are like those they are exchanged for.
    for answer in ["Quince", "Quiz", "Maple wood", "food"] {
        let thought = format!("hm</think>{answer}");
        assert_eq!(
            chat(THOUGHTS, &[("user", "q"), ("assistant", &thought), ("user", answer), ("assistant", "no")]),
            format!(
                "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦{answer}<|im_end|>⟧\n\
                 <|im_start|>user\n{answer}<|im_end|>\n<|im_start|>assistant\n⟦no<|im_end|>⟧\n"
            )
        );
    }
}

#[test]
fn generation_prompts_can_contain_more_than_earlier_turns() {
    assert_eq!(
        chat(OPENED, &[("user", "q"), ("assistant", "yes"), ("user", "r"), ("assistant", "no")]),
        "<|im_start|>user\nq<|im_end|><|im_start|>assistant\n⟦yes<|im_end|>⟧\
         <|im_start|>user\nr<|im_end|><|im_start|>assistant\n⟦no<|im_end|>⟧"
    );
}

#[test]
fn templates_can_lack_special_tokens() {
    // What ends the first answer is not known, so its words count alone.
    assert_eq!(
        chat(PLAIN, &[("user", "q"), ("assistant", "yes"), ("user", "r"), ("assistant", "no")]),
        "user: q\nassistant: ⟦yes⟧\nuser: r\nassistant: ⟦no\n</s>⟧"
    );
}

#[test]
fn templates_can_change_earlier_messages() {
    assert_eq!(
        chat(LATE, &[("user", "q"), ("assistant", "yes"), ("user", "r"), ("assistant", "no")]),
        "<s>q|⟦yes</s>⟧<s>(be kind) r|⟦no</s>⟧"
    );
    assert_eq!(
        chat(PAIRS, &[("user", "q"), ("assistant", "yes"), ("user", "r"), ("assistant", "no")]),
        "<s>q=>⟦yes</s>⟧<s>r=>⟦no</s>⟧"
    );
}

#[test]
fn tool_calls_contribute() {
    let template = CHATML.replace("m.content +", "(m.content or '') + (m.calls or '') +");
    let call = Message::new("assistant", OrderedJson::Null).with("calls", "f(1)");
    let messages =
        vec![Message::new("user", "q"), call, Message::new("tool", "7"), Message::new("assistant", "7")];
    assert_eq!(
        told(&template, messages).unwrap(),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦f(1)<|im_end|>⟧\n\
         <|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n⟦7<|im_end|>⟧\n"
    );
}

#[test]
fn a_conversation_without_assistant_messages_is_dropped_and_its_roles_are_named() {
    let sampler = sampler(Around::Bos, CHATML);
    let of = |roles: &[&str]| {
        let messages = roles.iter().map(|role| Message::new(role, "q")).collect();
        let sample = sample(&sampler, Content::Chat { messages, tools: None }).unwrap();
        (sample.status, sample.unknown_roles.into_iter().collect::<Vec<_>>().join(","))
    };
    let dropped = DocumentStatus::Dropped;
    assert_eq!(of(&["user"]), (dropped(DropReason::NoAssistantMessage), String::new()));
    assert_eq!(of(&["human", "gpt", "human"]), (dropped(DropReason::UnknownRoles), "gpt,human".to_owned()));
    assert_eq!(of(&["user", "bot"]), (dropped(DropReason::UnknownRoles), "bot".to_owned()));
    assert_eq!(of(&["human", "assistant"]), (DocumentStatus::Whole, String::new()));
}

#[test]
fn a_template_that_omits_a_message_is_an_error() {
    let hiding = "{% for m in messages %}{{ m.role + ',' }}{% endfor %}{{ messages | length }}";
    let messages = vec![Message::new("user", "q"), Message::new("assistant", "a"), Message::new("user", "r")];
    let expected = DataError::UnlocatedMessage { file: "x.jsonl".to_owned(), line: 7, message: 2 };
    assert_eq!(told(hiding, messages), Err(expected));
}

#[test]
fn a_template_that_raises_is_an_error() {
    let messages = vec![Message::new("user", "q")];
    let source = ChatError::Refused { message: "no".to_owned() };
    let expected = DataError::Chat { file: "x.jsonl".to_owned(), line: 7, source };
    assert_eq!(told("{{ raise_exception('no') }}", messages.clone()), Err(expected));
    let none = sample(&sampler(Around::Bos, ""), Content::Chat { messages, tools: None }).unwrap_err();
    assert_eq!(none, DataError::NoTemplate { file: "x.jsonl".to_owned(), line: 7 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Of any conversation, the answers count and nothing else, whatever is
    /// said in it.
    #[test]
    fn only_assistant_messages_contribute(
        turns in prop::collection::vec(("[abQeMd :\n]{0,6}", "[abQeMd :\n]{0,6}"), 1..4),
        thoughts in any::<bool>(),
    ) {
        let mut messages = Vec::new();
        let (mut chatml, mut inst) = (String::new(), String::new());
        for (at, (question, answer)) in turns.iter().enumerate() {
            let dropped = thoughts && at + 1 < turns.len();
            let said = if thoughts { format!("hm</think>{answer}") } else { answer.clone() };
            let shown = if dropped { answer } else { &said };
            messages.push(Message::new("user", question.as_str()));
            messages.push(Message::new("assistant", said.as_str()));
            chatml += &format!("<|im_start|>user\n{question}<|im_end|>\n");
            chatml += &format!("<|im_start|>assistant\n⟦{shown}<|im_end|>⟧\n");
            inst += &format!("<s>[INST] {question} [/INST]⟦ {said} </s>⟧");
        }
        prop_assert_eq!(told(THOUGHTS, messages.clone()).unwrap(), chatml);
        prop_assert_eq!(told(INST, messages).unwrap(), inst);
    }
}
