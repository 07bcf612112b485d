//! A parsed template.
//!
//! What the engine makes of a template borrows from its text, so a thread keeps
//! both until the template is dropped. It starts another thread for each
//! conversation: they are rendered at the same time, and return the memory of
//! their stacks.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, Builder, Scope};

use minijinja::Value;

use super::super::caught_panic::catch;
use super::{ChatError, Compiled, STACK_BYTES, compile, generation_tag, run};

/// A template that is parsed once and rendered many times.
#[derive(Debug)]
pub(super) struct ParsedTemplate {
    conversations: Sender<Conversation>,
}

/// Variables of a conversation, and where its text goes.
struct Conversation {
    variables: Value,
    text: Sender<Result<String, ChatError>>,
}

impl ParsedTemplate {
    /// Parses a template.
    pub(super) fn new(source: &str) -> Result<Self, ChatError> {
        let (conversations, next) = mpsc::channel();
        let (parsed, is_parsed) = mpsc::channel();
        let source = source.to_owned();
        Builder::new()
            .name("chat template".to_owned())
            .spawn(move || keep(&generation_tag::replace(&source), &parsed, &next))
            .map_err(|error| cannot_start(&error))?;
        is_parsed.recv().unwrap_or(Err(ChatError::Panicked))?;
        Ok(Self { conversations })
    }

    /// Renders a conversation.
    pub(super) fn render(&self, variables: Value) -> Result<String, ChatError> {
        let (text, rendered) = mpsc::channel();
        self.conversations.send(Conversation { variables, text }).map_err(|_| ChatError::Panicked)?;
        rendered.recv().unwrap_or(Err(ChatError::Panicked))
    }
}

/// Parses a template, reports the result, and renders conversations until the
/// template is dropped.
fn keep(source: &str, parsed: &Sender<Result<(), ChatError>>, conversations: &Receiver<Conversation>) {
    let compiled = thread::scope(|scope| {
        let thread = Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || catch(|| compile(source)));
        let thread = thread.map_err(|error| cannot_start(&error))?;
        thread.join().ok().flatten().unwrap_or(Err(ChatError::Panicked))
    });
    match compiled {
        Err(error) => drop(parsed.send(Err(error))),
        Ok(compiled) => {
            let _ = parsed.send(Ok(()));
            thread::scope(|scope| {
                for conversation in conversations {
                    start(scope, &compiled, conversation);
                }
            });
        }
    }
}

/// Renders a conversation on a thread with a large stack.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    compiled: &'scope Compiled<'_>,
    conversation: Conversation,
) {
    let Conversation { variables, text } = conversation;
    let failed = text.clone();
    let render = move || {
        let rendered = catch(|| run(compiled, variables));
        let _ = text.send(rendered.unwrap_or(Err(ChatError::Panicked)));
    };
    if let Err(error) = Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, render) {
        let _ = failed.send(Err(cannot_start(&error)));
    }
}

fn cannot_start(error: &std::io::Error) -> ChatError {
    ChatError::Thread { message: error.to_string() }
}
