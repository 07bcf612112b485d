//! Bodies of requests to a server, up to the tokens of their prompts.

use std::sync::LazyLock;

use weightloom_hub::TextGenerator;
use weightloom_serve::{ServeOptions, validate_request};

use crate::fixture::{Chats, NAME, generator};

static MODEL: LazyLock<(TextGenerator, ServeOptions)> =
    LazyLock::new(|| (generator(64, Chats::Known), ServeOptions::new(NAME)));

/// The body of a request for `/v1/completions`.
pub fn completion(input: &[u8]) {
    check("/v1/completions", input);
}

/// The body of a request for `/v1/chat/completions`.
pub fn chat(input: &[u8]) {
    check("/v1/chat/completions", input);
}

fn check(path: &str, input: &[u8]) {
    let (generator, options) = &*MODEL;
    if let Err(error) = validate_request(path, input, generator, options) {
        // A client can always read the reason, and it is never the server's fault.
        assert!(error.starts_with("{\"error\":") && !error.contains("server_error"), "{error}");
    }
}
