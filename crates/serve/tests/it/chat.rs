//! Conversations.

use std::ops::ControlFlow;

use serde_json::{Value, json};
use weightloom_hub::text::{ChatContext, Message, OrderedJson};
use weightloom_hub::{StopCriteria, TextGenerator};
use weightloom_nn::GenerateRequest;

use crate::client::{post, refused};
use crate::fixture::{Chats, NAME, Server, generator, options};

const PATH: &str = "/v1/chat/completions";

fn generate(generator: &TextGenerator, variables: Vec<(String, OrderedJson)>) -> String {
    let context = ChatContext { variables, ..ChatContext::default() };
    let tokens = generator.encode_chat(&[Message::new("user", "Hi\nyou")], &context).unwrap();
    let request = GenerateRequest { prompts: vec![tokens], max_new_tokens: 10, ..GenerateRequest::default() };
    generator
        .generate(&request, &StopCriteria::default(), |_| ControlFlow::Continue(()))
        .unwrap()
        .remove(0)
        .text
}

#[test]
fn an_answer_is_what_the_model_writes_after_its_template() {
    let server = Server::start();
    let generator = generator(64, Chats::Known);
    let parts = json!([{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]);
    let mut body = json!({
        "model": NAME,
        "messages": [{"role": "user", "content": parts}],
        "max_completion_tokens": 10,
        "temperature": 0,
    });
    let answer = post(server.address, PATH, &body).json();
    assert_eq!(answer["object"], "chat.completion");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], generate(&generator, Vec::new()));
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("length"), &Value::Null));
    assert_eq!(answer["usage"]["completion_tokens"], 10);
    body["chat_template_kwargs"] = json!({"mood": "sad"});
    let sad = post(server.address, PATH, &body).json();
    let mood = vec![("mood".to_owned(), OrderedJson::from("sad"))];
    assert_eq!(sad["choices"][0]["message"]["content"], generate(&generator, mood));
    assert!(sad["usage"]["prompt_tokens"].as_u64() > answer["usage"]["prompt_tokens"].as_u64());
}

#[test]
fn a_conversation_without_a_limit_goes_on_to_the_last_position() {
    let server = Server::start();
    let body = json!({"messages": [{"role": "user", "content": "a"}], "ignore_eos": true});
    let usage = post(server.address, PATH, &body).json()["usage"].clone();
    assert_eq!(usage["total_tokens"], 64, "{usage}");
}

#[test]
fn a_streamed_answer_begins_with_who_speaks_and_is_the_same() {
    let server = Server::start();
    let mut body = json!({
        "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "a"}],
        "max_tokens": 25, "seed": 3, "n": 2, "logprobs": true, "top_logprobs": 2, "stop": "e",
    });
    let whole = post(server.address, PATH, &body).json();
    body["stream"] = json!(true);
    let events = post(server.address, PATH, &body).events();
    for index in 0..2 {
        let of_row: Vec<&Value> = events
            .iter()
            .map(|event| {
                assert_eq!(event["object"], "chat.completion.chunk");
                assert!(event.get("usage").is_none());
                &event["choices"][0]
            })
            .filter(|choice| choice["index"] == index)
            .collect();
        assert_eq!(of_row[0]["delta"], json!({"role": "assistant", "content": "", "refusal": null}));
        let text: String = of_row.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        let expected = &whole["choices"][index];
        assert_eq!(json!(text), expected["message"]["content"]);
        assert_eq!(of_row.last().unwrap()["finish_reason"], expected["finish_reason"]);
        let told: Vec<&Value> =
            of_row.iter().filter_map(|choice| choice["logprobs"]["content"].as_array()).flatten().collect();
        assert_eq!(json!(told), expected["logprobs"]["content"]);
        for entry in told {
            assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
            assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
            assert!(entry["bytes"].is_array() && entry["token"].is_string());
        }
    }
}

#[test]
fn a_model_that_is_not_made_for_conversations_says_so() {
    let server = Server::with(generator(64, Chats::Unknown), options());
    let (status, error) =
        refused(server.address, PATH, &json!({"messages": [{"role": "user", "content": "a"}]}));
    assert_eq!((status, &error["code"]), (400, &json!("no_chat_template")));
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("the model has no chat template; "), "{message}");
}

#[test]
fn messages_that_cannot_be_read_are_named() {
    let server = Server::start();
    let user = json!({"role": "user", "content": "a"});
    for (place, body) in [
        ("messages", json!({})),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": "hi"})),
        ("messages[1]", json!({"messages": [user, 5]})),
        ("messages[0]", json!({"messages": [{"content": "a"}]})),
        ("messages[0].role", json!({"messages": [{"role": 1, "content": "a"}]})),
        ("messages[0].content", json!({"messages": [{"role": "user", "content": 1}]})),
        (
            "messages[0].content[0]",
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        ),
        (
            "tool_choice",
            json!({"messages": [user], "tools": [{"type": "function"}], "tool_choice": "required"}),
        ),
        ("tools[0]", json!({"messages": [user], "tools": [1]})),
        ("response_format", json!({"messages": [user], "response_format": {"type": "json_schema"}})),
        ("top_logprobs", json!({"messages": [user], "top_logprobs": 2})),
        ("logprobs", json!({"messages": [user], "logprobs": 2})),
        ("max_tokens", json!({"messages": [user], "max_tokens": 0})),
        ("chat_template_kwargs", json!({"messages": [user], "chat_template_kwargs": []})),
    ] {
        let (status, error) = refused(server.address, PATH, &body);
        assert_eq!((status, &error["param"]), (400, &json!(place)), "{error}");
    }
}
