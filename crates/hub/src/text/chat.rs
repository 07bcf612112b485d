//! Chat templates: how a conversation becomes one text.
//!
//! Templates are Jinja programs that come with a model, written for the
//! environment that transformers gives them. This is that environment, with
//! limits: a template is a stranger's program, and must neither run without
//! end nor fill the memory.

mod budget;
mod data;
mod error;
mod moment;
mod python;
mod rewrite;

pub use data::{Data, Message, NotAMessage};
pub use error::ChatError;
pub use moment::Moment;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use minijinja::value::{Kwargs, Rest};
use minijinja::{
    Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value, syntax::SyntaxConfig,
};
use weightloom_checkpoint::formats::gguf::GgufValue;

use super::companions::{Companions, ReadFile};
use super::facts::Facts;
use super::folder;
use budget::Stop;

/// The name under which the environment keeps a template.
const NAME: &str = "chat";

/// Longer templates are refused, in bytes.
const LONGEST_TEMPLATE: usize = 1 << 20;

/// Longer texts are refused, in bytes.
const LONGEST_TEXT: usize = 1 << 24;

/// Calls within calls. Few templates have more than three.
const DEEPEST_CALL: usize = 100;

/// Templates run on a thread of their own, since values within values take
/// stack: some 170 bytes for each level, of which the limit of work allows
/// half a million. Memory is taken only as far as it is used.
const STACK: usize = 256 << 20;

/// Whether the text ends with what begins an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GenerationPrompt {
    /// It does; the model goes on as the assistant.
    Add,
    /// It ends with the last message.
    Leave,
}

/// What a template is told besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatContext {
    /// Tools that the model may call, each with its schema.
    pub tools: Option<Vec<Data>>,
    /// Documents that the model may quote.
    pub documents: Option<Vec<Data>>,
    /// What time it is, for templates that ask. Templates that are not told
    /// find that they cannot ask.
    pub now: Option<Moment>,
    /// Other settings of the template, such as `enable_thinking`.
    pub variables: Vec<(String, Data)>,
}

/// One template, ready for use.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    tokens: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// A template from its source.
    pub fn new(source: &str) -> Result<Self, ChatError> {
        if source.len() > LONGEST_TEMPLATE {
            return Err(ChatError::LongTemplate { bytes: source.len(), limit: LONGEST_TEMPLATE });
        }
        let rewritten = rewrite::rewritten(source)?;
        let mut environment = environment().map_err(|error| ChatError::syntax(&error))?;
        environment.add_template_owned(NAME, rewritten).map_err(|error| ChatError::syntax(&error))?;
        Ok(Self { environment, source: source.to_owned(), tokens: Vec::new() })
    }

    /// The same, with special tokens that it may use by name, such as
    /// `bos_token`.
    #[must_use]
    pub fn with_tokens(mut self, tokens: Vec<(&'static str, String)>) -> Self {
        self.tokens = tokens;
        self
    }

    /// The source as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of a conversation.
    pub fn render(
        &self,
        messages: &[Message],
        prompt: GenerationPrompt,
        context: &ChatContext,
    ) -> Result<String, ChatError> {
        let list = |list: &Option<Vec<Data>>| match list {
            Some(list) => list.iter().map(Data::to_value).collect(),
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
            let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
            thread.map(std::thread::ScopedJoinHandle::join)
        });
        let text = match ended {
            Ok(Ok(rendered)) => rendered.map_err(|error| ChatError::failed(&error))?,
            Ok(Err(_)) => return Err(ChatError::Broken),
            Err(error) => return Err(ChatError::Thread { message: error.to_string() }),
        };
        if text.len() > LONGEST_TEXT {
            return Err(ChatError::LongText { limit: LONGEST_TEXT });
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

/// All templates of a model. Most have one, named `default`; some have another
/// for conversations with tools, `tool_use`.
#[derive(Debug, Default)]
pub struct ChatTemplates(BTreeMap<String, ChatTemplate>);

impl ChatTemplates {
    /// The templates of a folder; none if the model is not made for chats.
    pub fn from_folder(folder: &Path) -> Result<Self, ChatError> {
        Self::from_files(&folder::reader(folder))
    }

    /// From files that are somewhere else: `read` gives the bytes of a file,
    /// or none if there is no such file.
    pub fn from_files(read: ReadFile<'_>) -> Result<Self, ChatError> {
        let companions = Companions::read(read)?;
        let tokens = companions.tokens()?;
        let mut sources = BTreeMap::new();
        if let Some(bytes) = read("chat_template.jinja")? {
            let text = String::from_utf8(bytes)
                .map_err(|error| super::TextError::invalid("chat_template.jinja", &error))?;
            sources.insert("default".to_owned(), text);
        } else if let Some(value) = companions.config.get("chat_template") {
            sources = named(value)?;
        }
        Self::new(sources, &tokens)
    }

    /// From the metadata of a GGUF file.
    pub fn from_gguf(metadata: &BTreeMap<String, GgufValue>) -> Result<Self, ChatError> {
        const KEY: &str = "tokenizer.chat_template";
        let facts = Facts(metadata);
        let pieces = facts.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
        let mut tokens = Vec::new();
        for (name, key) in
            [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
        {
            let id = facts.count(&format!("tokenizer.ggml.{key}_token_id"))?;
            let text = id.and_then(|id| pieces.get(usize::try_from(id).ok()?));
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
            sources.extend(facts.text(key)?.map(|text| (name.to_owned(), text.to_owned())));
        }
        Self::new(sources, &tokens)
    }

    fn new(sources: BTreeMap<String, String>, tokens: &[(&'static str, String)]) -> Result<Self, ChatError> {
        let template = |(name, source): (String, String)| {
            Ok((name, ChatTemplate::new(&source)?.with_tokens(tokens.to_vec())))
        };
        Ok(Self(sources.into_iter().map(template).collect::<Result<_, ChatError>>()?))
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The template of this name.
    pub fn get(&self, name: &str) -> Option<&ChatTemplate> {
        self.0.get(name)
    }

    /// The template for a conversation: the one for tools if there are any,
    /// else the default.
    pub fn pick(&self, context: &ChatContext) -> Option<&ChatTemplate> {
        let for_tools = self.0.get("tool_use").filter(|_| context.tools.is_some());
        for_tools.or_else(|| self.0.get("default"))
    }
}

/// Sources from `chat_template`: a text, or a list of names and texts.
fn named(value: &serde_json::Value) -> Result<BTreeMap<String, String>, ChatError> {
    let wrong =
        || super::TextError::value("chat_template", "a text, or a list of names and templates", value);
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

/// What transformers gives to templates.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_recursion_limit(DEEPEST_CALL);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(format);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise);
    environment.add_function(rewrite::WORK, budget::spend);
    Ok(environment)
}

/// Writes a value as Python does.
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

/// `json.dumps` of Python, with its defaults except that other characters
/// than ASCII stay.
fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let given = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(named.or_else(|| args.get(at).cloned()).filter(|value| !value.is_none()))
    };
    let style = python::JsonStyle::new(
        given(0, "ensure_ascii")?,
        given(1, "indent")?,
        given(2, "separators")?,
        given(3, "sort_keys")?,
    )?;
    kwargs.assert_all_used()?;
    style.dumps(value)
}

/// Templates refuse what they cannot render.
fn raise(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Stop::Raised(message)))
}
