//! Tests against scripted servers.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::answer::{Distribution, TokenNames};
use crate::backend::testing::{ask, ask_one};
use crate::numbers::DivergenceKind;

/// Reaction to a request.
enum Reply {
    Say(u16, Vec<(&'static str, &'static str)>, String),
    /// Close the connection.
    Leave,
    /// Close it in the middle of a response.
    Half,
    /// Send nothing.
    Hang,
}

fn say(body: &Value) -> Reply {
    Reply::Say(200, Vec::new(), body.to_string())
}

/// A request as the server saw it.
#[derive(Clone, Debug)]
struct Seen {
    path: String,
    head: String,
    body: Value,
}

type Script = dyn Fn(usize, &Value) -> Reply + Send + Sync;

/// A scripted server on loopback.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    ended: Arc<AtomicBool>,
}

impl Server {
    fn new(script: impl Fn(usize, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let script: Arc<Script> = Arc::new(script);
        let (all, end) = (Arc::clone(&seen), Arc::clone(&ended));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let (all, end, script) = (Arc::clone(&all), Arc::clone(&end), Arc::clone(&script));
                thread::spawn(move || attend(stream.unwrap(), &all, &end, &*script));
            }
        });
        Self { address, seen, ended }
    }

    fn served(&self, model: &str) -> ServedModel {
        ServedModel { endpoint: format!("http://{}", self.address), model: model.to_owned(), timeout_s: None }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn backend(&self) -> ApiBackend {
        ApiBackend::new(&self.served("base"), Some(&self.served("tuned")), &hasty()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn attend(stream: TcpStream, seen: &Mutex<Vec<Seen>>, ended: &AtomicBool, script: &Script) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push(Seen { path, head, body: body.clone() });
        seen.len() - 1
    };
    match script(number, &body) {
        Reply::Say(status, headers, text) => {
            let extra: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let _ = write!(
                stream,
                "HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n{extra}connection: close\r\n\r\n{text}",
                text.len()
            );
        }
        Reply::Leave => {}
        Reply::Half => {
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{{\"choices\":");
        }
        Reply::Hang => {
            while !ended.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Options with brief retries.
fn hasty() -> ApiOptions {
    ApiOptions { retry: brief_retries(2), ..ApiOptions::default() }
}

fn brief_retries(max_retries: u32) -> RetryPolicy {
    let (initial_backoff, max_backoff) = (Duration::from_millis(1), Duration::from_millis(2));
    RetryPolicy { max_retries, initial_backoff, max_backoff, ..ApiOptions::default().retry }
}

/// Scores letters, one token each, after BOS.
fn letters(body: &Value) -> Reply {
    let prompt = body["prompt"].as_str().unwrap();
    let shift = if body["model"] == "tuned" { 0.5 } else { 0.0 };
    if body["logprobs"].is_null() {
        return say(&json!({"choices": [{"text": format!("{prompt}!")}]}));
    }
    if body["echo"] == true {
        let tokens: Vec<String> =
            std::iter::once("<s>".to_owned()).chain(prompt.chars().map(String::from)).collect();
        let logprobs: Vec<Value> = (0..tokens.len())
            .map(|place| if place == 0 { Value::Null } else { json!(-(place as f64) - shift) })
            .collect();
        let logprobs = json!({"tokens": tokens, "token_logprobs": logprobs});
        return say(&json!({"choices": [{"text": prompt, "logprobs": logprobs}]}));
    }
    let top = match body["model"].as_str().unwrap() {
        "tuned" => json!({" c": -0.5, " b": -1.5, " a": -3.0}),
        _ => json!({" a": -0.5, " b": -1.5, " c": -3.0}),
    };
    say(&json!({"choices": [{"text": " a", "logprobs": {"top_logprobs": [top]}}]}))
}

fn next(prompt: &str) -> Query {
    Query::Next { prompt: prompt.into(), top_k: 256 }
}

fn text(text: &str) -> Query {
    Query::Text { text: text.to_owned() }
}

fn completion(prompt: &str, completion: &str) -> Query {
    Query::Completion { prompt: prompt.into(), completion: completion.to_owned() }
}

fn distribution(answer: Result<Answer, QueryError>) -> Distribution {
    let Ok(Answer::Distribution(found)) = answer else { panic!("{answer:?}") };
    found
}

/// Message and hint of the failed backend.
fn end(backend: &mut ApiBackend, questions: &[Question]) -> (String, String) {
    let (_, ended) = ask(backend, questions);
    let error = ended.unwrap_err();
    let BackendError { message, hint, .. } = error;
    (message, hint.unwrap())
}

#[test]
fn all_four_queries_follow_the_openai_format() {
    let server = Server::new(|_, body| letters(body));
    let mut backend = server.backend();
    let found = distribution(ask_one(&mut backend, &View::Base, next("x")));
    let names = [" a", " b", " c"].map(str::to_owned).to_vec();
    assert_eq!(found.tokens, TokenNames::Strings(names));
    assert_eq!(found.logprobs, [-0.5, -1.5, -3.0]);
    let left = 1.0 - [-0.5f64, -1.5, -3.0].map(f64::exp).iter().sum::<f64>();
    assert_eq!((found.vocabulary, found.tail), (None, Some(left.ln())));
    // Tokens are compared by what they are, not by their rank.
    let other = distribution(ask_one(&mut backend, &View::Tuned, next("x")));
    assert_eq!(other.logprobs, found.logprobs);
    assert!(DivergenceKind::Js.between(&found, &other).unwrap() > 0.1);

    // The token that begins texts is not counted as three letters.
    let score = ask_one(&mut backend, &View::Tuned, completion("ab", "cd"));
    assert_eq!(score, Ok(Answer::Completion(crate::CompletionScore { total: -3.5 - 4.5, tokens: 2 })));
    let rolling = ask_one(&mut backend, &View::Base, text("añb"));
    let expected = crate::Rolling { logprobs: vec![-1.0, -2.0, -3.0], tokens: 4, total: -6.0 };
    assert_eq!(rolling, Ok(Answer::Rolling(expected)));
    let writing = Query::Generate { prompt: "go".into(), max_new_tokens: 7 };
    assert_eq!(ask_one(&mut backend, &View::Base, writing), Ok(Answer::Text("go!".to_owned())));

    let bodies: Vec<Value> = server.seen().into_iter().map(|seen| seen.body).collect();
    assert!(server.seen().iter().all(|seen| seen.path == "/v1/completions"));
    let echo = |model: &str, prompt: &str| json!({"model": model, "prompt": prompt, "max_tokens": 1, "echo": true, "logprobs": 1, "temperature": 0});
    let next = |model: &str| json!({"model": model, "prompt": "x", "max_tokens": 1, "echo": false, "logprobs": 20, "temperature": 0});
    let writing = json!({"model": "base", "prompt": "go", "max_tokens": 7, "temperature": 0, "top_p": 1, "seed": 0,
        "repeat_penalty": 1, "repetition_penalty": 1});
    let expected = [next("base"), next("tuned"), echo("tuned", "abcd"), echo("base", "añb"), writing];
    assert_eq!(bodies, expected);
    backend.preflight().unwrap();
}

#[test]
fn sampling_parameters_are_sent() {
    let server = Server::new(|_, body| letters(body));
    let mut backend = server.backend();
    let query = Query::Sample {
        prompt: "go".into(),
        max_new_tokens: 7,
        temperature: crate::Real(0.5),
        top_p: crate::Real(0.25),
        seed: 99,
    };
    assert_eq!(ask_one(&mut backend, &View::Base, query), Ok(Answer::Text("go!".to_owned())));
    let body = &server.seen()[0].body;
    assert_eq!(
        (&body["temperature"], &body["top_p"], &body["seed"]),
        (&json!(0.5), &json!(0.25), &json!(99))
    );
}

#[test]
fn a_strict_server_gets_only_openai_keys() {
    let server = Server::new(|_, body| match (body["prompt"].as_str(), body["repeat_penalty"].is_null()) {
        (Some("long"), _) => Reply::Say(400, Vec::new(), "too long".to_owned()),
        (_, true) => letters(body),
        (_, false) => Reply::Say(400, Vec::new(), "what is a repeat_penalty?".to_owned()),
    });
    let mut backend = server.backend();
    let writing = |prompt: &str| Query::Generate { prompt: prompt.into(), max_new_tokens: 7 };
    // Another reason for rejection does not make the server strict.
    let error = ask_one(&mut backend, &View::Base, writing("long")).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    for asked in [4, 5] {
        let written = ask_one(&mut backend, &View::Base, writing("go"));
        assert_eq!(written, Ok(Answer::Text("go!".to_owned())));
        assert_eq!(server.seen().len(), asked);
    }
}

#[test]
fn unsupported_queries_fail_without_a_request() {
    let server = Server::new(|_, body| letters(body));
    let mut backend = server.backend();
    let not_able = |answer: Result<Answer, QueryError>| matches!(answer, Err(QueryError::Unsupported { .. }));
    let meaning = Query::Embedding { text: "x".to_owned() };
    assert!(not_able(ask_one(&mut backend, &View::Base, meaning)));
    assert!(not_able(ask_one(&mut backend, &View::Base, Query::Filler { tokens: 3 })));
    let divergence = Query::Divergence { prompt: "x".into(), from: View::Base };
    assert!(not_able(ask_one(&mut backend, &View::Tuned, divergence)));
    assert!(not_able(ask_one(&mut backend, &View::Scaled(crate::Real(0.5)), next("x"))));
    assert_eq!(ask_one(&mut backend, &View::Base, text("")), Err(QueryError::EmptyText));
    assert!(matches!(
        ask_one(&mut backend, &View::Base, completion("a", "")),
        Err(QueryError::NoTokens { .. })
    ));
    assert_eq!(server.seen().len(), 0);
    let mut alone = ApiBackend::new(&server.served("base"), None, &hasty()).unwrap();
    assert!(not_able(ask_one(&mut alone, &View::Tuned, next("x"))));
    assert!(!alone.description().capabilities.contains(&Capability::Differential));
}

/// A chat with one question.
fn hello() -> Prompt {
    Prompt::Messages(vec![ChatMessage::new(Role::System, "Be brief."), ChatMessage::new(Role::User, "Hi")])
}

#[test]
fn messages_go_to_the_chat_endpoint() {
    let server = Server::new(|_, body| {
        let content = match body["logprobs"].as_bool() {
            Some(true) => {
                let token =
                    |token: &str, logprob: f64| json!({"token": token, "logprob": logprob, "bytes": null});
                let top = json!([token("A", -0.5), token("B", -1.5)]);
                json!({"message": {"content": "A"}, "logprobs": {"content": [{"top_logprobs": top}]}})
            }
            _ => json!({"message": {"role": "assistant", "content": "Hello."}}),
        };
        say(&json!({"choices": [content]}))
    });
    let mut backend = server.backend();
    let next = ask_one(&mut backend, &View::Base, Query::Next { prompt: hello(), top_k: 2 });
    let Ok(Answer::Distribution(found)) = next else { panic!("{next:?}") };
    assert_eq!(found.tokens, TokenNames::Strings(vec!["A".to_owned(), "B".to_owned()]));
    let written = Query::Generate { prompt: hello(), max_new_tokens: 7 };
    assert_eq!(ask_one(&mut backend, &View::Tuned, written), Ok(Answer::Text("Hello.".to_owned())));
    let seen = server.seen();
    assert!(seen.iter().all(|seen| seen.path == "/v1/chat/completions"), "{:?}", seen[0].path);
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
    assert_eq!((&seen[0].body["messages"], &seen[0].body["top_logprobs"]), (&messages, &json!(2)));
    assert_eq!((&seen[1].body["messages"], &seen[1].body["prompt"]), (&messages, &Value::Null));
    // Given answers cannot be scored there, and the reason is named.
    let scored = Query::Completion { prompt: hello(), completion: "Hello.".to_owned() };
    let refused = ask_one(&mut backend, &View::Base, scored).unwrap_err().to_string();
    assert!(refused.contains("log-probabilities of generated text only"), "{refused}");
    assert_eq!(server.seen().len(), seen.len());
    assert_eq!(backend.chat_support().usage, ChatUsage::PlainText);
}

#[test]
fn the_description_states_the_limits_and_names_both_models() {
    let server = Server::new(|_, body| letters(body));
    let backend = server.backend();
    let description = backend.description();
    assert!(description.notes[0].contains("at most 20"), "{:?}", description.notes);
    let address = format!("http://{}", server.address);
    assert_eq!(description.identity, Some(format!("api:{address}:base:{address}:tuned")));
    assert_eq!(description.adapter, Some(format!("{address}:tuned")));
    assert!(description.capabilities.contains(&Capability::Differential));
    assert!(!description.capabilities.contains(&Capability::FullVocabulary));
}

#[test]
fn an_address_with_v1_is_the_same_server() {
    let server = Server::new(|_, body| letters(body));
    let served = ServedModel { endpoint: format!("http://{}/v1/", server.address), ..server.served("m") };
    let mut backend = ApiBackend::new(&served, None, &hasty()).unwrap();
    ask_one(&mut backend, &View::Base, next("x")).unwrap();
    assert_eq!(server.seen()[0].path, "/v1/completions");
}

#[test]
fn transient_failures_are_retried() {
    let server = Server::new(|number, body| match number {
        0 => Reply::Say(429, vec![("retry-after", "0")], "slow down".to_owned()),
        1 => Reply::Leave,
        2 => letters(body),
        3 => Reply::Say(503, Vec::new(), "busy".to_owned()),
        4 => Reply::Half,
        _ => letters(body),
    });
    let mut backend = server.backend();
    ask_one(&mut backend, &View::Base, next("x")).unwrap();
    assert_eq!(server.seen().len(), 3);
    ask_one(&mut backend, &View::Base, next("y")).unwrap();
    assert_eq!(server.seen().len(), 6);
}

#[test]
fn retry_after_is_respected_or_reported() {
    let server = Server::new(|number, body| match number {
        0 => Reply::Say(429, vec![("retry-after", "0.3")], String::new()),
        1 => letters(body),
        _ => Reply::Say(429, vec![("retry-after", "86400")], String::new()),
    });
    let mut backend = server.backend();
    let began = std::time::Instant::now();
    ask_one(&mut backend, &View::Base, next("x")).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(300));
    let (message, _) = end(&mut backend, &[Question::new(&View::Base, next("x"))]);
    assert!(message.ends_with("allows the next request in 86400s"), "{message}");
}

#[test]
fn a_busy_server_ends_the_backend_and_earlier_answers_are_kept() {
    let server = Server::new(|_, body| match body["prompt"].as_str() {
        Some("good") => letters(body),
        _ => Reply::Say(503, Vec::new(), "b".repeat(1000)),
    });
    let options = ApiOptions { concurrency: 1, ..hasty() };
    let mut backend = ApiBackend::new(&server.served("base"), None, &options).unwrap();
    let questions = ["good", "bad", "never"].map(|prompt| Question::new(&View::Base, next(prompt)));
    let (told, ended) = ask(&mut backend, &questions);
    assert!(matches!(told[0], Some(Ok(_))));
    assert!(told[1].is_none() && told[2].is_none());
    let error = ended.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("failed after 3 attempts: status 503: bbb"), "{said}");
    assert_eq!(said.matches('b').count() - "the backend".matches('b').count(), 200, "{said}");
    assert_eq!(error.hint().unwrap(), "see the log of the server");
    assert_eq!(server.seen().len(), 4);
}

#[test]
fn an_unreachable_server_ends_the_backend() {
    let server = Server::new(|number, body| if number == 0 { letters(body) } else { Reply::Leave });
    let mut backend = server.backend();
    ask_one(&mut backend, &View::Base, next("x")).unwrap();
    let (_, hint) = end(&mut backend, &[Question::new(&View::Base, next("x"))]);
    assert!(hint.starts_with("check that the server is running"), "{hint}");
    // Nobody listens there any more.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let served = ServedModel { endpoint, model: "m".to_owned(), timeout_s: None };
    let mut backend = ApiBackend::new(&served, None, &hasty()).unwrap();
    let (message, _) = end(&mut backend, &[Question::new(&View::Base, next("x"))]);
    assert!(message.contains("cannot reach the server"), "{message}");
}

#[test]
fn a_hanging_server_times_out() {
    let server = Server::new(|_, _| Reply::Hang);
    let options = ApiOptions { retry: brief_retries(1), timeout: Duration::from_millis(50), ..hasty() };
    let mut backend = ApiBackend::new(&server.served("base"), None, &options).unwrap();
    let (message, hint) = end(&mut backend, &[Question::new(&View::Base, next("x"))]);
    assert!(message.contains("failed after 2 attempts: no answer within 50ms"), "{message}");
    assert!(hint.contains("timeout_s"), "{hint}");
    let (message, _) = end(&mut backend, &[Question::new(&View::Base, text("x"))]);
    assert!(message.contains("no answer within 50ms"), "{message}");
    let served = ServedModel { timeout_s: Some(7), ..server.served("m") };
    let http = build_client(options.connect_timeout, &options.proxies).unwrap();
    let shown = ModelClient::new(http, &served, &options).unwrap();
    assert!(shown.name().ends_with(":m"));
}

#[test]
fn a_rejected_question_does_not_affect_others() {
    let server = Server::new(|_, body| match body["prompt"].as_str() {
        Some("long") => Reply::Say(400, Vec::new(), "too long".repeat(100)),
        Some("mad") => Reply::Say(200, Vec::new(), "<html>".to_owned()),
        Some("nan") => Reply::Say(200, Vec::new(), r#"{"choices": [{"logprobs": NaN}]}"#.to_owned()),
        Some("huge") => Reply::Say(200, Vec::new(), r#"{"choices": [{"x": 1e999}]}"#.to_owned()),
        Some("none") => say(&json!({"choices": []})),
        Some("bare") => say(&json!({"choices": [{"text": "x", "logprobs": null}]})),
        Some("empty") => say(&json!({"choices": [{"text": "x", "logprobs": {"top_logprobs": [{}]}}]})),
        Some("word") => say(&json!({"choices": [{"text": "x", "logprobs": {"top_logprobs": [{"a": "b"}]}}]})),
        _ => letters(body),
    });
    let mut backend = server.backend();
    let prompts = ["long", "good", "mad", "nan", "huge", "none", "bare", "empty", "word"];
    let questions = prompts.map(|prompt| Question::new(&View::Base, next(prompt)));
    let (told, ended) = ask(&mut backend, &questions);
    ended.unwrap();
    let told: Vec<Result<Answer, QueryError>> = told.into_iter().map(Option::unwrap).collect();
    assert!(told[1].is_ok());
    let said = |place: usize| told[place].as_ref().unwrap_err().to_string();
    assert!(said(0).contains("status 400: too long") && said(0).len() < 300, "{}", said(0));
    assert!(said(2).contains("did not return JSON") && said(2).contains("<html>"), "{}", said(2));
    assert!(matches!(&told[3], Err(QueryError::NotFinite { found, .. }) if found == "NaN"), "{}", said(3));
    assert!(said(4).contains("out of range"), "{}", said(4));
    assert!(said(5).contains("`choices`"), "{}", said(5));
    assert!(said(6).contains("returns no log-probabilities"), "{}", said(6));
    assert!(said(7).contains("`top_logprobs` is empty"), "{}", said(7));
    assert!(said(8).contains("`logprobs`"), "{}", said(8));
}

#[test]
fn a_server_without_logprobs_fails_the_preflight() {
    let server = Server::new(|_, _| say(&json!({"choices": [{"text": "x", "logprobs": null}]})));
    let error = server.backend().preflight().unwrap_err();
    assert!(error.to_string().contains("returns no log-probabilities"), "{error}");
    assert!(error.hint().unwrap().contains("logprobs"));
}

#[test]
fn a_server_with_chats_only_passes_the_preflight_and_answers_chats() {
    let server = Server::new(|_, body| {
        if body["messages"].is_null() {
            return Reply::Say(404, Vec::new(), "no such endpoint".to_owned());
        }
        let top = json!([{"token": "A", "logprob": -0.5, "bytes": null}]);
        say(
            &json!({"choices": [{"message": {"content": "A"}, "logprobs": {"content": [{"top_logprobs": top}]}}]}),
        )
    });
    let mut backend = server.backend();
    backend.preflight().unwrap();
    let note = backend.description().notes.last().unwrap().clone();
    assert!(note.contains("messages only") && note.contains("404"), "{note}");
    ask_one(&mut backend, &View::Tuned, Query::Next { prompt: hello(), top_k: 1 }).unwrap();
    // Plain text fails question by question, without a request.
    let asked = server.seen().len();
    for query in [next("x"), text("go"), completion("a", "b")] {
        let error = ask_one(&mut backend, &View::Base, query).unwrap_err().to_string();
        assert!(error.contains("messages only"), "{error}");
    }
    assert_eq!(server.seen().len(), asked);
}

#[test]
fn generated_tokens_are_not_scored() {
    let server = Server::new(|_, body| {
        let prompt = body["prompt"].as_str().unwrap();
        let tokens: Vec<String> = prompt.chars().map(String::from).chain(["z".to_owned()]).collect();
        let logprobs: Vec<Value> =
            (0..tokens.len()).map(|place| if place == 0 { Value::Null } else { json!(-1.0) }).collect();
        let logprobs = json!({"tokens": tokens, "token_logprobs": logprobs});
        say(&json!({"choices": [{"text": tokens.concat(), "logprobs": logprobs}]}))
    });
    let mut backend = server.backend();
    let Ok(Answer::Rolling(found)) = ask_one(&mut backend, &View::Base, text("abc")) else { panic!() };
    assert_eq!((found.tokens, found.total), (3, -2.0));
    let score = ask_one(&mut backend, &View::Base, completion("ab", "cd"));
    assert_eq!(score, Ok(Answer::Completion(crate::CompletionScore { total: -2.0, tokens: 2 })));
}

#[test]
fn logprobs_in_chat_format_are_read() {
    let content = json!([{"token": "a", "logprob": -0.5, "top_logprobs": [
        {"token": "a", "bytes": [97], "logprob": -0.5},
        {"token": "", "bytes": [195], "logprob": -1.5},
        {"token": "", "bytes": [196], "logprob": -2.0},
        {"token": "a", "bytes": null, "logprob": -7.0},
    ]}]);
    let server =
        Server::new(move |_, _| say(&json!({"choices": [{"text": "a", "logprobs": {"content": content}}]})));
    let found = distribution(ask_one(&mut server.backend(), &View::Base, next("x")));
    let names = ["a", "bytes:\\xc3", "bytes:\\xc4"].map(str::to_owned).to_vec();
    assert_eq!(found.tokens, TokenNames::Strings(names));
    assert_eq!(found.logprobs, [-0.5, -1.5, -2.0]);
    let server = Server::new(|_, _| {
        let content = json!([{"top_logprobs": [{"logprob": -0.5}]}]);
        say(&json!({"choices": [{"text": "a", "logprobs": {"content": content}}]}))
    });
    let error = ask_one(&mut server.backend(), &View::Base, next("x")).unwrap_err();
    assert!(error.to_string().contains("`logprobs.content`"), "{error}");
}

/// A server whose tokens are letters. Each is followed by itself with the
/// probability e^-4, and by "!" with e^-0.1; an echo tells the row above, or the
/// row below, as some do.
fn rows(body: &Value, row: Row) -> Reply {
    let prompt = body["prompt"].as_str().unwrap();
    if body["echo"] != true {
        let top = json!({"!": -0.1});
        return say(&json!({"choices": [{"text": "!", "logprobs": {"top_logprobs": [top]}}]}));
    }
    let letters: Vec<String> = prompt.chars().map(String::from).collect();
    let told = |place: usize| match row {
        _ if place == 0 => Value::Null,
        Row::Above if letters[place] == "!" => json!(-0.1),
        _ => json!(-4.0),
    };
    let logprobs: Vec<Value> = (0..letters.len()).map(told).collect();
    let logprobs = json!({"tokens": letters, "token_logprobs": logprobs});
    say(&json!({"choices": [{"text": prompt, "logprobs": logprobs}]}))
}

#[derive(Clone, Copy)]
enum Row {
    Above,
    Below,
}

#[test]
fn a_shifted_echo_is_detected() {
    let server = Server::new(|_, body| rows(body, Row::Above));
    let mut backend = server.backend();
    let before = backend.description().notes.clone();
    backend.preflight().unwrap();
    assert_eq!(backend.description().notes, before);
    ask_one(&mut backend, &View::Base, text("go")).unwrap();

    let server = Server::new(|_, body| rows(body, Row::Below));
    let mut backend = server.backend();
    backend.preflight().unwrap();
    // Both models are at one server, and are told once.
    let notes = &backend.description().notes;
    assert_eq!(notes.len(), before.len() + 1, "{notes:?}");
    let said = notes.last().unwrap().clone();
    assert!(said.contains("-4.00") && said.contains("-0.10") && said.contains("`echo`"), "{said}");
    let asked = server.seen().len();
    for ask in [text("go"), completion("g", "o")] {
        let told = ask_one(&mut backend, &View::Tuned, ask);
        assert_eq!(told, Err(QueryError::Failed { message: said.clone() }));
    }
    assert_eq!(server.seen().len(), asked, "what is known is not asked again");
    ask_one(&mut backend, &View::Tuned, next("go")).unwrap();
}

#[test]
fn a_server_that_rejects_echo_still_answers_other_queries() {
    for status in [400, 500, 501] {
        let server = Server::new(move |_, body| match body["echo"] == true {
            true => Reply::Say(status, Vec::new(), "no echo here".to_owned()),
            false => letters(body),
        });
        let mut backend = server.backend();
        backend.preflight().unwrap();
        let error = ask_one(&mut backend, &View::Base, text("go")).unwrap_err();
        assert!(error.to_string().contains("no echo here"), "{error}");
        assert!(error.to_string().contains("weightloom serve"), "{error}");
        ask_one(&mut backend, &View::Base, next("x")).unwrap();
    }
}

#[test]
fn a_busy_server_does_not_count_as_one_without_echo() {
    let server = Server::new(|number, body| match number {
        // The first three ask for next tokens.
        3 => Reply::Say(503, Vec::new(), "busy".to_owned()),
        4 => Reply::Say(500, Vec::new(), "oops".to_owned()),
        _ => letters(body),
    });
    let mut backend = server.backend();
    backend.preflight().unwrap();
    ask_one(&mut backend, &View::Base, text("go")).unwrap();
}

#[test]
fn a_server_without_echo_is_reported() {
    let server = Server::new(|_, _| {
        let logprobs = json!({"tokens": [" on"], "token_logprobs": [-1.0]});
        say(&json!({"choices": [{"text": " on", "logprobs": logprobs}]}))
    });
    let error = ask_one(&mut server.backend(), &View::Base, text("go")).unwrap_err();
    assert!(error.to_string().contains("`echo`"), "{error}");
    let server = Server::new(|_, body| {
        let logprobs = json!({"tokens": ["g", "o", "n"], "token_logprobs": [null, -1.0, null]});
        say(&json!({"choices": [{"text": body["prompt"], "logprobs": logprobs}]}))
    });
    let error = ask_one(&mut server.backend(), &View::Base, text("gon")).unwrap_err();
    assert!(error.to_string().contains("no log-probability of token 2"), "{error}");
}

#[test]
fn keys_go_to_the_server_and_nowhere_else() {
    let server = Server::new(|_, body| match body["prompt"].as_str() {
        Some("x") => Reply::Say(401, Vec::new(), "wrong key tulip-7".to_owned()),
        Some("on") => Reply::Say(307, vec![("location", "http://127.0.0.1:1/")], String::new()),
        _ => letters(body),
    });
    let variable = |name: &str| (name == "SWAY_API_KEY").then(|| "tulip-7".to_owned());
    let keys = ApiKeys::from_variables(&variable).unwrap();
    let options = ApiOptions { keys, ..hasty() };
    let mut backend = ApiBackend::new(&server.served("base"), None, &options).unwrap();
    backend.preflight().unwrap();
    assert!(server.seen()[0].head.to_lowercase().contains("authorization: bearer tulip-7"));
    let tried = server.seen().len();
    for prompt in ["x", "on"] {
        let (message, hint) = end(&mut backend, &[Question::new(&View::Base, next(prompt))]);
        assert!(!format!("{message} {hint} {options:?} {:?}", backend.description()).contains("tulip"));
    }
    // Refusals that will not pass are not asked again.
    assert_eq!(server.seen().len(), tried + 2);
    let mut nobody = server.backend();
    let (_, hint) = end(&mut nobody, &[Question::new(&View::Base, next("x"))]);
    assert!(hint.contains("set SWAY_API_KEY"), "{hint}");
    assert!(!server.seen()[tried + 2].head.to_lowercase().contains("authorization"));
}

#[test]
fn a_suite_cannot_send_openais_key_elsewhere() {
    let server = Server::new(|_, body| letters(body));
    let variable = |name: &str| (name == "OPENAI_API_KEY").then(|| "tulip-7".to_owned());
    let keys = ApiKeys::from_variables(&variable).unwrap();
    let options = ApiOptions { keys, ..hasty() };
    let mut backend = ApiBackend::new(&server.served("base"), None, &options).unwrap();
    backend.preflight().unwrap();
    let seen = server.seen();
    assert!(!seen.is_empty());
    for request in seen {
        let head = request.head.to_lowercase();
        assert!(!head.contains("authorization") && !head.contains("tulip"), "{head}");
    }
}

#[test]
fn errors_of_endpoints_leave_out_secrets() {
    for endpoint in ["http://me:secret@h", "ftp://h", "http://h?secret=1", "http://"] {
        let served = ServedModel { endpoint: endpoint.to_owned(), model: "m".to_owned(), timeout_s: None };
        let error = ApiBackend::new(&served, None, &hasty()).err().unwrap();
        assert!(matches!(error, ApiError::Endpoint { .. }) && error.hint().is_some(), "{error}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
    let mut options = hasty();
    options.proxies.all = Some("::".to_owned());
    let served = ServedModel { endpoint: "http://h".to_owned(), model: "m".to_owned(), timeout_s: None };
    let error = ApiBackend::new(&served, None, &options).err().unwrap();
    assert_eq!(error, ApiError::Client(ClientError::Proxy { variable: "ALL_PROXY" }));
}

#[test]
fn parallel_requests_are_limited() {
    let (now, most) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
    let (counted, highest) = (Arc::clone(&now), Arc::clone(&most));
    let server = Server::new(move |_, body| {
        *counted.lock().unwrap() += 1;
        thread::sleep(Duration::from_millis(5));
        let mut highest = highest.lock().unwrap();
        *highest = (*highest).max(*counted.lock().unwrap());
        *counted.lock().unwrap() -= 1;
        letters(body)
    });
    let options = ApiOptions { concurrency: 3, ..hasty() };
    let mut backend = ApiBackend::new(&server.served("base"), None, &options).unwrap();
    let questions: Vec<Question> =
        (0..30).map(|place| Question::new(&View::Base, next(&place.to_string()))).collect();
    let (told, ended) = ask(&mut backend, &questions);
    ended.unwrap();
    assert!(told.iter().all(|answer| matches!(answer, Some(Ok(_)))));
    assert!(*most.lock().unwrap() <= 3);
}
