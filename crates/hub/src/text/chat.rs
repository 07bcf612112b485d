//! Chat templates.
//!
//! Templates are Jinja programs that come with a model, written for the
//! environment of transformers. This module provides that environment with
//! limits on time and memory, because templates are untrusted.

mod answer;
mod budget;
mod error;
mod generation_tag;
mod guard;
mod message;
mod parsed;
mod python;
mod rewrite;
mod timestamp;
mod weight;

pub use answer::RenderedAnswer;
pub use error::ChatError;
pub use message::{InvalidMessage, Message, OrderedJson};
pub use timestamp::Timestamp;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{LazyLock, OnceLock};

use minijinja::machinery::{self, CodeGenerator, Instructions, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value};
use weightloom_checkpoint::formats::gguf::GgufValue;

use super::folder_tokenizer;
use super::gguf_metadata::GgufMetadata;
use super::tokenizer_config::{ReadFile, TokenizerFiles};
use budget::Stop;
use parsed::ParsedTemplate;
use weight::{NODE_WORK, Weight};

/// Name of the template in its environment.
const NAME: &str = "chat";

const MAX_TEMPLATE_BYTES: usize = 1 << 20;

const MAX_TEXT_BYTES: usize = 1 << 24;

/// Limit for nested calls. Few templates have more than three.
const MAX_CALL_DEPTH: usize = 100;

/// Limit for tokens between `{{` and `}}` or `{%` and `%}`: expressions nest at
/// most so deep.
const MAX_TAG_TOKENS: usize = 4096;

/// The engine counts columns in 16 bits.
const MAX_LINE_CHARS: usize = 65_000;

/// Each `elif` nests in the one before it.
const MAX_BRANCHES: usize = 1024;

/// Templates are parsed and run on separate threads, because nested expressions
/// need stack: a few kilobytes for each of the tokens of a tag. Only used pages
/// take memory.
const STACK_BYTES: usize = 128 << 20;

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

/// A chat template. It is parsed once.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    tokens: Vec<(&'static str, String)>,
    parsed: OnceLock<ParsedTemplate>,
}

impl ChatTemplate {
    /// Checks the syntax of a template.
    pub fn new(source: &str) -> Result<Self, ChatError> {
        let template = Self::unchecked(source.to_owned());
        template.parsed()?;
        Ok(template)
    }

    /// A template that is parsed when it is rendered for the first time.
    fn unchecked(source: String) -> Self {
        Self { source, tokens: Vec::new(), parsed: OnceLock::new() }
    }

    fn parsed(&self) -> Result<&ParsedTemplate, ChatError> {
        if let Some(parsed) = self.parsed.get() {
            return Ok(parsed);
        }
        let bytes = self.source.len();
        if bytes > MAX_TEMPLATE_BYTES {
            return Err(ChatError::LongTemplate { bytes, limit: MAX_TEMPLATE_BYTES });
        }
        // Of several at once the first one stays.
        let parsed = ParsedTemplate::new(&self.source)?;
        Ok(self.parsed.get_or_init(|| parsed))
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
            let strftime = move |state: &mut State<'_, '_>, format: Value| {
                let format = format.as_str().unwrap_or_default();
                budget::spend(state, format.len() as u64 * 64)?;
                now.strftime(format)
            };
            variables.insert("strftime_now".to_owned(), Value::from_function(strftime));
        }
        let messages: Value = messages.iter().map(Message::to_value).collect();
        variables.insert("messages".to_owned(), messages);
        variables.insert("tools".to_owned(), list(&context.tools));
        variables.insert("documents".to_owned(), list(&context.documents));
        let add = Value::from(prompt == GenerationPrompt::Add);
        variables.insert("add_generation_prompt".to_owned(), add);

        let text = self.parsed()?.render(Value::from_pairs(variables))?;
        if text.len() > MAX_TEXT_BYTES {
            return Err(ChatError::LongText { limit: MAX_TEXT_BYTES });
        }
        Ok(text)
    }
}

/// Instructions of a template and its blocks.
type Compiled<'a> = (Instructions<'a>, BTreeMap<&'a str, Instructions<'a>>);

/// Parses a template and adds the guards.
fn compile(source: &str) -> Result<Compiled<'_>, ChatError> {
    check_nesting(source)?;
    let parsed = machinery::parse(source, NAME, syntax()).map_err(|error| ChatError::syntax(&error))?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&rewrite::rewrite(&parsed));
    Ok(generator.finish())
}

/// Limits how deep expressions and branches nest before anything recurses into
/// them.
fn check_nesting(source: &str) -> Result<(), ChatError> {
    if let Some(line) = source.lines().position(|line| line.chars().count() > MAX_LINE_CHARS) {
        return Err(ChatError::LongLine { line: line + 1, limit: MAX_LINE_CHARS });
    }
    let (mut tokens, mut branches) = (0, 0);
    for token in machinery::tokenize(source, false, syntax()) {
        // The parser reports it with its line.
        let Ok((token, span)) = token else { break };
        match token {
            Token::BlockStart | Token::VariableStart => tokens = 0,
            Token::Ident("elif") if tokens == 0 => branches += 1,
            _ => tokens += 1,
        }
        if tokens > MAX_TAG_TOKENS {
            return Err(ChatError::LongTag { line: span.start_line.into(), limit: MAX_TAG_TOKENS });
        }
        if branches > MAX_BRANCHES {
            return Err(ChatError::ManyBranches { limit: MAX_BRANCHES });
        }
    }
    Ok(())
}

fn run((instructions, blocks): &Compiled<'_>, variables: Value) -> Result<String, ChatError> {
    let mut text = String::new();
    let mut out = machinery::make_string_output(&mut text);
    let environment: &Environment<'_> = &ENVIRONMENT;
    machinery::eval(environment, instructions, variables, blocks, &mut out, AutoEscape::None)
        .map_err(|error| ChatError::failed(&error))?;
    Ok(text)
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
        Ok(Self::new(sources, &tokens))
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
        Ok(Self::new(sources, &tokens))
    }

    /// Nothing is parsed yet: most commands need no template.
    fn new(sources: BTreeMap<String, String>, tokens: &[(&'static str, String)]) -> Self {
        let template = |(name, source)| (name, ChatTemplate::unchecked(source).with_tokens(tokens.to_vec()));
        Self(sources.into_iter().map(template).collect())
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

/// The syntax of transformers.
fn syntax() -> SyntaxConfig {
    static SYNTAX: LazyLock<SyntaxConfig> = LazyLock::new(|| {
        let built = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        built.expect("the default delimiters are valid")
    });
    SYNTAX.clone()
}

/// The environment that transformers provides.
static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_recursion_limit(MAX_CALL_DEPTH);
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(format);
    guard::install(&mut environment);
    environment.add_function("raise_exception", raise);
    environment
});

/// Formats a value like Python.
fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let owned;
    let text = match value.as_str() {
        Some(text) => text,
        None => {
            let weight = Weight::of(state, std::slice::from_ref(value))?;
            budget::spend(state, weight.nodes * NODE_WORK)?;
            budget::require(state, weight.bytes.saturating_add(weight.nodes * 8))?;
            owned = python::text(value)?;
            &owned
        }
    };
    budget::spend(state, text.len() as u64 / 8)?;
    budget::allocate(state, text.len() as u64)?;
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
fn raise(state: &mut State<'_, '_>, message: Value) -> Result<Value, Error> {
    let weight = Weight::of(state, std::slice::from_ref(&message))?;
    budget::require(state, weight.bytes.saturating_add(weight.nodes * 8))?;
    let message = python::text(&message)?;
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Stop::Raised(message)))
}
