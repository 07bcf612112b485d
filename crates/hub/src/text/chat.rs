//! Chat templates.
//!
//! Templates are Jinja programs that come with a model, written for the
//! environment of transformers. This module provides that environment with
//! limits on time and memory, because templates are untrusted.

mod answer;
mod budget;
mod error;
mod instrument;
mod message;
mod python;
mod timestamp;

pub use answer::RenderedAnswer;
pub use error::ChatError;
pub use message::{InvalidMessage, Message, OrderedJson};
pub use timestamp::Timestamp;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use minijinja::value::{Kwargs, Rest};
use minijinja::{
    Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value, syntax::SyntaxConfig,
};
use weightloom_checkpoint::formats::gguf::GgufValue;

use super::folder_tokenizer;
use super::gguf_metadata::GgufMetadata;
use super::tokenizer_config::{ReadFile, TokenizerFiles};
use budget::Stop;

/// Name of the template in its environment.
const NAME: &str = "chat";

const MAX_TEMPLATE_BYTES: usize = 1 << 20;

const MAX_TEXT_BYTES: usize = 1 << 24;

/// Limit for nested calls. Few templates have more than three.
const MAX_CALL_DEPTH: usize = 100;

/// Templates run on a separate thread, because nested values need stack: about
/// 170 bytes per level, and the work limit allows half a million levels. Only
/// used pages take memory.
const STACK_BYTES: usize = 256 << 20;

/// Whether the text ends with the start of an assistant message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GenerationPrompt {
    /// It does, so that the model continues as the assistant.
    Add,
    /// It ends with the last message.
    Leave,
}

/// Variables of a template besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatContext {
    /// Tools that the model can call, each with its schema.
    pub tools: Option<Vec<OrderedJson>>,
    /// Documents that the model can quote.
    pub documents: Option<Vec<OrderedJson>>,
    /// Current time for `strftime_now`, which is undefined without it.
    pub now: Option<Timestamp>,
    /// Other variables, such as `enable_thinking`.
    pub variables: Vec<(String, OrderedJson)>,
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    tokens: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(source: &str) -> Result<Self, ChatError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(ChatError::LongTemplate { bytes: source.len(), limit: MAX_TEMPLATE_BYTES });
        }
        let rewritten = instrument::instrument(source)?;
        let mut environment = environment().map_err(|error| ChatError::syntax(&error))?;
        environment.add_template_owned(NAME, rewritten).map_err(|error| ChatError::syntax(&error))?;
        Ok(Self { environment, source: source.to_owned(), tokens: Vec::new() })
    }

    /// Adds special tokens that the template can use by name, such as
    /// `bos_token`.
    #[must_use]
    pub fn with_tokens(mut self, tokens: Vec<(&'static str, String)>) -> Self {
        self.tokens = tokens;
        self
    }

    /// The original source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation.
    pub fn render(
        &self,
        messages: &[Message],
        prompt: GenerationPrompt,
        context: &ChatContext,
    ) -> Result<String, ChatError> {
        let list = |list: &Option<Vec<OrderedJson>>| match list {
            Some(list) => list.iter().map(OrderedJson::to_value).collect(),
            None => Value::from(()),
        };
        let mut variables: BTreeMap<String, Value> = BTreeMap::new();
        variables
            .extend(self.tokens.iter().map(|(name, text)| ((*name).to_owned(), Value::from(text.as_str()))));
        variables.extend(context.variables.iter().map(|(name, data)| (name.clone(), data.to_value())));
        if let Some(now) = context.now {
            let strftime = move |format: String| now.strftime(&format);
            variables.insert("strftime_now".to_owned(), Value::from_function(strftime));
        }
        let messages: Value = messages.iter().map(Message::to_value).collect();
        variables.insert("messages".to_owned(), messages);
        variables.insert("tools".to_owned(), list(&context.tools));
        variables.insert("documents".to_owned(), list(&context.documents));
        let add = Value::from(prompt == GenerationPrompt::Add);
        variables.insert("add_generation_prompt".to_owned(), add);

        let run = || {
            let template = self.environment.get_template(NAME)?;
            template.render(Value::from_pairs(variables))
        };
        let ended = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run);
            thread.map(std::thread::ScopedJoinHandle::join)
        });
        let text = match ended {
            Ok(Ok(rendered)) => rendered.map_err(|error| ChatError::failed(&error))?,
            Ok(Err(_)) => return Err(ChatError::Panicked),
            Err(error) => return Err(ChatError::Thread { message: error.to_string() }),
        };
        if text.len() > MAX_TEXT_BYTES {
            return Err(ChatError::LongText { limit: MAX_TEXT_BYTES });
        }
        Ok(text)
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, tokens, .. } = self;
        f.debug_struct("ChatTemplate").field("source", source).field("tokens", tokens).finish_non_exhaustive()
    }
}

/// The templates of a model. Most have one, `default`; some have another for
/// tools, `tool_use`.
#[derive(Debug, Default)]
pub struct ChatTemplates(BTreeMap<String, ChatTemplate>);

impl ChatTemplates {
    /// Reads a folder; empty if the model has no chat template.
    pub fn from_folder(folder: &Path) -> Result<Self, ChatError> {
        Self::from_files(&folder_tokenizer::file_reader(folder))
    }

    /// Reads files through a function.
    pub fn from_files(read: ReadFile<'_>) -> Result<Self, ChatError> {
        let files = TokenizerFiles::read(read)?;
        let tokens = files.tokens()?;
        let mut sources = BTreeMap::new();
        if let Some(bytes) = read("chat_template.jinja")? {
            let text = String::from_utf8(bytes)
                .map_err(|error| super::TextError::invalid("chat_template.jinja", &error))?;
            sources.insert("default".to_owned(), text);
        } else if let Some(value) = files.config.get("chat_template") {
            sources = named_sources(value)?;
        }
        Self::new(sources, &tokens)
    }

    /// Reads the metadata of a GGUF file.
    pub fn from_gguf(metadata: &BTreeMap<String, GgufValue>) -> Result<Self, ChatError> {
        const KEY: &str = "tokenizer.chat_template";
        let gguf = GgufMetadata(metadata);
        let vocabulary = gguf.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
        let mut tokens = Vec::new();
        for (name, key) in
            [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
        {
            let id = gguf.count(&format!("tokenizer.ggml.{key}_token_id"))?;
            let text = id.and_then(|id| vocabulary.get(usize::try_from(id).ok()?));
            tokens.extend(text.map(|text| (name, text.clone())));
        }
        let mut sources = BTreeMap::new();
        for key in metadata.keys() {
            let name = match key.strip_prefix(KEY) {
                Some("") => "default",
                Some(rest) => match rest.strip_prefix('.') {
                    Some(name) => name,
                    None => continue,
                },
                None => continue,
            };
            sources.extend(gguf.text(key)?.map(|text| (name.to_owned(), text.to_owned())));
        }
        Self::new(sources, &tokens)
    }

    fn new(sources: BTreeMap<String, String>, tokens: &[(&'static str, String)]) -> Result<Self, ChatError> {
        let template = |(name, source): (String, String)| {
            Ok((name, ChatTemplate::new(&source)?.with_tokens(tokens.to_vec())))
        };
        Ok(Self(sources.into_iter().map(template).collect::<Result<_, ChatError>>()?))
    }

    /// Whether the model has no chat template.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names of the templates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// A template by name.
    pub fn get(&self, name: &str) -> Option<&ChatTemplate> {
        self.0.get(name)
    }

    /// Selects the template for a conversation: the one for tools if there are
    /// tools, else the default.
    pub fn pick(&self, context: &ChatContext) -> Option<&ChatTemplate> {
        let for_tools = self.0.get("tool_use").filter(|_| context.tools.is_some());
        for_tools.or_else(|| self.0.get("default"))
    }
}

/// Sources from `chat_template`: a string, or a list of names and strings.
fn named_sources(value: &serde_json::Value) -> Result<BTreeMap<String, String>, ChatError> {
    let wrong =
        || super::TextError::value("chat_template", "a string, or a list of names and templates", value);
    let entry = |entry: &serde_json::Value| {
        let field = |key: &str| entry.get(key)?.as_str().map(str::to_owned);
        field("name").zip(field("template"))
    };
    Ok(match value {
        serde_json::Value::Null => BTreeMap::new(),
        serde_json::Value::String(text) => [("default".to_owned(), text.clone())].into(),
        serde_json::Value::Array(list) => list.iter().map(entry).collect::<Option<_>>().ok_or_else(wrong)?,
        _ => return Err(wrong().into()),
    })
}

/// The environment that transformers provides.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_recursion_limit(MAX_CALL_DEPTH);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(format);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise);
    environment.add_function(instrument::SPEND, budget::spend);
    Ok(environment)
}

/// Formats a value like Python.
fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let owned;
    let text = match value.as_str() {
        Some(text) => text,
        None => {
            owned = python::text(value)?;
            &owned
        }
    };
    budget::spend(state, text.len() as u64)?;
    out.write_str(text).map_err(Error::from)
}

/// Python's `json.dumps` with its defaults, except that non-ASCII characters
/// stay.
fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(named.or_else(|| args.get(index).cloned()).filter(|value| !value.is_none()))
    };
    let style = python::JsonStyle::new(
        argument(0, "ensure_ascii")?,
        argument(1, "indent")?,
        argument(2, "separators")?,
        argument(3, "sort_keys")?,
    )?;
    kwargs.assert_all_used()?;
    style.dumps(value)
}

/// `raise_exception`: a template rejects a conversation.
fn raise(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Stop::Raised(message)))
}
