//! `/v1/completions`.

use std::ops::ControlFlow;

use serde_json::{Value, json};
use weightloom_hub::{GeneratedText, StopCriteria, TextGenerator};
use weightloom_nn::GenerateRequest;

use crate::client::{complete, get, post, refused};
use crate::fixture::{Chats, NAME, Server, generator};

/// Generates greedily without the server.
fn generate(generator: &TextGenerator, prompt: &str, max_new_tokens: usize) -> GeneratedText {
    let prompts = vec![generator.encode_prompt(prompt).unwrap()];
    let request = GenerateRequest { prompts, max_new_tokens, ..GenerateRequest::default() };
    generator.generate(&request, &StopCriteria::default(), |_| ControlFlow::Continue(())).unwrap().remove(0)
}

/// `serde_json` reads a number to the last bit or one beside it.
fn same(told: &Value, value: f64) -> bool {
    told.as_f64().is_some_and(|told| (told - value).abs() <= f64::EPSILON * value.abs())
}

#[test]
fn the_model_is_listed_and_found_by_its_name() {
    let server = Server::start();
    let list = get(server.address, "/v1/models").json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], NAME);
    let one = get(server.address, "/v1/models/tests/tiny");
    assert_eq!((one.status, &one.json()), (200, &list["data"][0]));
    assert_eq!(get(server.address, "/v1/models/tests%2Ftiny").status, 200);
    let other = get(server.address, "/v1/models/huge");
    assert_eq!(other.status, 404);
    assert_eq!(other.json()["error"]["code"], "model_not_found");
    assert_eq!(get(server.address, "/health").json(), json!({"status": "ok"}));
}

#[test]
fn a_completion_is_what_the_model_writes() {
    let server = Server::start();
    let generator = generator(64, Chats::Known);
    let answer = complete(
        server.address,
        &json!({"model": NAME, "prompt": "Once upon", "max_tokens": 20, "temperature": 0}),
    );
    let expected = generate(&generator, "Once upon", 20);
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], NAME);
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], expected.text);
    assert_eq!((&choice["index"], &choice["logprobs"]), (&json!(0), &Value::Null));
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(answer["usage"], json!({"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}));
    // Without a number there are 16 tokens at most.
    let short = complete(server.address, &json!({"prompt": "Once upon", "temperature": 0}));
    assert_eq!(short["choices"][0]["text"], generate(&generator, "Once upon", 16).text);
}

#[test]
fn a_prompt_alone_is_scored_as_the_model_scores_it() {
    let server = Server::start();
    let generator = generator(64, Chats::Known);
    let prompt = "aé€ b";
    let tokens = generator.encode_prompt(prompt).unwrap();
    let scores = generator.score(&[&tokens], 3).unwrap().remove(0);
    let asked = |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 3});
        complete(server.address, &body)["choices"][0].clone()
    };
    let choice = asked(json!(prompt));
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(prompt), &json!("length")));
    let told = &choice["logprobs"];
    assert_eq!(
        told["tokens"],
        json!([
            "<s>",
            "a",
            "bytes:\\xc3",
            "bytes:\\xa9",
            "bytes:\\xe2",
            "bytes:\\x82",
            "bytes:\\xac",
            " ",
            "b"
        ])
    );
    assert_eq!(told["text_offset"], json!([0, 0, 1, 1, 2, 2, 2, 3, 4]));
    assert_eq!(told["token_logprobs"][0], Value::Null);
    assert_eq!(told["top_logprobs"][0], Value::Null);
    for (at, score) in scores.iter().enumerate() {
        assert!(same(&told["token_logprobs"][at + 1], score.chosen));
        let top = told["top_logprobs"][at + 1].as_object().unwrap();
        let known = score.top.iter().any(|(token, _)| *token == tokens[at + 1]);
        assert_eq!(top.len(), if known { 3 } else { 4 });
        for (token, value) in &score.top {
            let matches = top.values().filter(|told| same(told, *value)).count();
            assert_eq!(matches, 1, "token {token}");
        }
    }
    // The same as tokens.
    assert_eq!(asked(json!(tokens)), choice);
    // No probabilities, no model: the prompt comes back.
    let echo = complete(server.address, &json!({"prompt": prompt, "max_tokens": 0, "echo": true}));
    assert_eq!(echo["choices"][0]["text"], prompt);
    assert_eq!(echo["usage"]["completion_tokens"], 0);
    let nothing = complete(server.address, &json!({"prompt": prompt, "max_tokens": 0}));
    assert_eq!(nothing["choices"][0]["text"], "");
}

#[test]
fn what_is_written_after_an_echo_is_told_with_it() {
    let server = Server::start();
    let body = json!({"prompt": "Hello", "max_tokens": 12, "temperature": 0, "logprobs": 0, "echo": true});
    let echoed = complete(server.address, &body)["choices"][0].clone();
    let mut plain = body.clone();
    plain["echo"] = json!(false);
    let plain = complete(server.address, &plain)["choices"][0].clone();
    let (whole, part) = (echoed["text"].as_str().unwrap(), plain["text"].as_str().unwrap());
    assert_eq!(whole, format!("Hello{part}"));
    let list = |choice: &Value, key: &str| choice["logprobs"][key].as_array().unwrap().clone();
    for key in ["tokens", "token_logprobs", "top_logprobs"] {
        assert_eq!(list(&echoed, key)[6..], list(&plain, key)[..], "{key}");
    }
    let moved: Vec<Value> =
        list(&plain, "text_offset").iter().map(|offset| json!(offset.as_u64().unwrap() + 5)).collect();
    assert_eq!(list(&echoed, "text_offset")[6..], moved[..]);
    // With 0 others, each token stands alone.
    assert!(list(&plain, "top_logprobs").iter().all(|top| top.as_object().unwrap().len() == 1));
}

#[test]
fn prompts_of_all_kinds_are_answered_in_order() {
    let server = Server::start();
    let generator = generator(64, Chats::Known);
    let texts = ["one", "three more", ""];
    let tokens: Vec<Vec<u32>> = texts.iter().map(|text| generator.encode_prompt(text).unwrap()).collect();
    let expected: Vec<String> = texts.iter().map(|text| generate(&generator, text, 8).text).collect();
    for prompt in [json!(texts), json!(tokens), json!([texts[0], tokens[1], texts[2]])] {
        let answer =
            complete(server.address, &json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "n": 2}));
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 6);
        for (index, choice) in choices.iter().enumerate() {
            assert_eq!(choice["index"], index);
            assert_eq!(choice["text"], expected[index / 2]);
        }
        // A prompt counts once, however often it is answered.
        let count: usize = tokens.iter().map(Vec::len).sum();
        assert_eq!(answer["usage"]["prompt_tokens"], count);
    }
}

#[test]
fn a_seed_draws_the_same_again_and_its_answers_differ() {
    let server = Server::start();
    let texts = |seed: i64| -> Vec<String> {
        let body = json!({"prompt": "x", "max_tokens": 30, "seed": seed, "n": 3, "temperature": 2});
        let answer = complete(server.address, &body);
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let first = texts(7);
    assert_eq!(texts(7), first);
    assert_ne!(texts(8), first);
    assert!(first[0] != first[1] && first[1] != first[2]);
}

/// The choices of a stream, put together.
fn gathered(events: &[Value], count: usize) -> Vec<Value> {
    let mut choices: Vec<Value> = vec![json!({"text": "", "finish_reason": null}); count];
    for event in events {
        for new in event["choices"].as_array().unwrap() {
            let choice = &mut choices[new["index"].as_u64().unwrap() as usize];
            assert!(choice["finish_reason"].is_null(), "nothing comes after the end: {new}");
            choice["index"] = new["index"].clone();
            choice["text"] =
                json!(format!("{}{}", choice["text"].as_str().unwrap(), new["text"].as_str().unwrap()));
            choice["finish_reason"] = new["finish_reason"].clone();
            let Some(told) = new["logprobs"].as_object() else { continue };
            for (key, list) in told {
                let mut all = choice["logprobs"][key].as_array().cloned().unwrap_or_default();
                all.extend(list.as_array().unwrap().iter().cloned());
                choice["logprobs"][key] = json!(all);
            }
        }
    }
    choices
}

#[test]
fn a_stream_is_the_same_answer_in_pieces() {
    let server = Server::start();
    for extra in [
        json!({"echo": true}),
        json!({"stop": ["e", "Q ", "zz"]}),
        json!({"ignore_eos": true, "top_k": 40, "min_p": 0.001, "repetition_penalty": 1.1}),
        json!({"max_tokens": 0, "echo": true}),
    ] {
        let mut body = json!({"prompt": ["a€", "bc"], "n": 2, "max_tokens": 40, "seed": 5, "logprobs": 2,
                              "temperature": 1.5});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let whole = complete(server.address, &body);
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let mut events = post(server.address, "/v1/completions", &body).events();
        let last = events.pop().unwrap();
        assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]), "{extra}");
        assert!(events.iter().all(|event| event["usage"].is_null() && event["object"] == "text_completion"));
        assert_eq!(json!(gathered(&events, 4)), whole["choices"], "{extra}");
    }
}

#[test]
fn a_text_to_stop_at_ends_an_answer_before_it() {
    let server = Server::start();
    let body =
        json!({"prompt": "Once", "max_tokens": 40, "temperature": 0, "ignore_eos": true, "logprobs": 0});
    let free = complete(server.address, &body)["choices"][0]["text"].as_str().unwrap().to_owned();
    let stop: String = free.chars().skip(10).take(2).collect();
    let before = free.split(&stop).next().unwrap();
    let mut stopped = body.clone();
    stopped["stop"] = json!(stop);
    let choice = complete(server.address, &stopped)["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(before), &json!("stop")));
    // Tokens are told as far as the text goes.
    let offsets = choice["logprobs"]["text_offset"].as_array().unwrap();
    let length = before.chars().count() as u64;
    assert!(offsets.iter().all(|offset| offset.as_u64().unwrap() < length), "{offsets:?} {length}");
}

#[test]
fn fields_that_cannot_be_heeded_are_refused_by_name() {
    let server = Server::start();
    for (field, value) in [
        ("logit_bias", json!({"5": 100})),
        ("best_of", json!(3)),
        ("suffix", json!("end")),
        ("response_format", json!({"type": "json_schema", "json_schema": {}})),
        ("temperature", json!("hot")),
        ("temperature", json!(-1)),
        ("top_p", json!(7)),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!(-1)),
        ("n", json!(0)),
        ("logprobs", json!(21)),
        ("logprobs", json!(true)),
        ("echo", json!("yes")),
        ("stream", json!(1)),
        ("seed", json!("x")),
        ("stop", json!({})),
        ("frequency_penalty", json!(1)),
        ("anything", json!({"else": 1})),
    ] {
        let mut body = json!({"model": NAME, "prompt": "a"});
        body[field] = value.clone();
        let (status, error) = refused(server.address, "/v1/completions", &body);
        assert_eq!((status, &error["param"]), (400, &json!(field)), "{value}: {error}");
        assert!(error["message"].as_str().unwrap().contains(field), "{error}");
    }
    let (status, error) = refused(server.address, "/v1/completions", &json!({"model": "gpt", "prompt": "a"}));
    assert_eq!((status, &error["code"]), (404, &json!("model_not_found")));
    assert!(error["message"].as_str().unwrap().contains(NAME));
    let harmless =
        json!({"prompt": "a", "user": "me", "metadata": {"else": 1}, "best_of": 1, "logit_bias": {}});
    complete(server.address, &harmless);
}
