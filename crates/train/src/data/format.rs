//! The formats of records that configs may name.

use std::fmt;
use std::sync::Arc;

use weightloom_document::schema::Choice;

use super::error::DataError;
use super::record::{Content, Origin, Parsed, parse};
use crate::config::DataFormat;
use crate::extensions::{NoOptions, RegisterError, Registry, caught, section_of};

/// A format of records: what a line of a file means.
///
/// Implement it in your own crate and add it to [`DataFormats`]; configs can then
/// name it as `data.format`. Every non-empty line of every file is a record then,
/// whatever the file's extension; in `.json` files, every object of the array.
///
/// ```
/// use weightloom_train::data::{DataFormats, Document, RecordFormat};
///
/// /// Questions and answers, separated by a tab.
/// #[derive(Debug)]
/// struct Tabbed;
///
/// impl RecordFormat for Tabbed {
///     fn name(&self) -> &'static str {
///         "tabbed"
///     }
///
///     fn summary(&self) -> &'static str {
///         "A question and its answer, separated by a tab."
///     }
///
///     fn parse(&self, record: &str) -> Result<Document, String> {
///         let (prompt, completion) = record.split_once('\t').ok_or("there is no tab")?;
///         Ok(Document::Prompt { prompt: prompt.to_owned(), completion: completion.to_owned() })
///     }
/// }
///
/// let formats = DataFormats::standard().with(Tabbed)?;
/// assert!(formats.names().contains(&"tabbed"));
/// # Ok::<(), weightloom_train::extensions::RegisterError>(())
/// ```
pub trait RecordFormat: fmt::Debug + Send + Sync + 'static {
    /// The name in the config.
    fn name(&self) -> &'static str;

    /// What it is, in a sentence for the config reference.
    fn summary(&self) -> &'static str;

    /// The document of a record, which has no line break at its end. An error says
    /// what is wrong with the record; file and line are added.
    fn parse(&self, record: &str) -> Result<Content, String>;
}

/// A format with errors that name the file.
pub(super) trait AnyFormat: Send + Sync {
    fn read(&self, record: &str, origin: &Origin) -> Result<Parsed, DataError>;
}

impl<T: RecordFormat> AnyFormat for T {
    fn read(&self, record: &str, origin: &Origin) -> Result<Parsed, DataError> {
        let record = record.trim_end_matches(['\n', '\r']);
        let parsed = caught(|| self.parse(record)).unwrap_or_else(|panic| Err(panic.to_string()));
        let parsed = parsed.map(|content| Parsed { content, format: self.name() });
        parsed.map_err(|reason| {
            let Origin { file, line } = origin.clone();
            DataError::Record { file, line, format: self.name().to_owned(), reason }
        })
    }
}

/// A built-in format.
struct BuiltIn(DataFormat);

impl AnyFormat for BuiltIn {
    fn read(&self, record: &str, origin: &Origin) -> Result<Parsed, DataError> {
        parse(record, &self.0, origin)
    }
}

/// The formats that configs may name, with those of your own crate.
#[derive(Clone, Debug)]
pub struct DataFormats(Registry<dyn AnyFormat>);

impl Default for DataFormats {
    fn default() -> Self {
        Self::standard()
    }
}

impl DataFormats {
    /// The built-in formats.
    pub fn standard() -> Self {
        const OURS: &str = "the names of built-in formats differ";
        let all = [
            (DataFormat::Auto, "auto", "Detect the format from the keys of each line."),
            (DataFormat::Text, "text", "`{\"text\": …}`."),
            (DataFormat::PromptCompletion, "prompt_completion", "`{\"prompt\": …, \"completion\": …}`."),
            (DataFormat::Chat, "chat", "`{\"messages\": [{\"role\": …, \"content\": …}, …]}`."),
            (
                DataFormat::Alpaca,
                "alpaca",
                "`{\"instruction\": …, \"input\": …, \"output\": …}`, a question and its answer.",
            ),
            (
                DataFormat::Sharegpt,
                "sharegpt",
                "`{\"conversations\": [{\"from\": …, \"value\": …}, …]}`, with roles such as `human` and `gpt`.",
            ),
            (
                DataFormat::Preference,
                "preference",
                "`{\"prompt\": …, \"chosen\": …, \"rejected\": …}`, each a string or a list of messages. Without \
                 `prompt`, both begin with it.",
            ),
        ];
        let mut formats = Registry::new("data format");
        for (format, name, summary) in all {
            let format: Arc<dyn AnyFormat> = Arc::new(BuiltIn(format));
            formats.add((name, summary), section_of::<NoOptions>, format).expect(OURS);
        }
        Self(formats)
    }

    /// The same formats and another one.
    pub fn with(mut self, format: impl RecordFormat) -> Result<Self, RegisterError> {
        self.register(format)?;
        Ok(self)
    }

    /// Adds a format.
    pub fn register(&mut self, format: impl RecordFormat) -> Result<(), RegisterError> {
        let about = (format.name(), format.summary());
        self.0.add(about, section_of::<NoOptions>, Arc::new(format))
    }

    /// All names, the built-in ones first.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.names()
    }

    /// The format that a config selects.
    pub(super) fn select(&self, kind: &DataFormat) -> Result<SelectedFormat, DataError> {
        Ok(SelectedFormat { kind: kind.clone(), format: self.0.shared(kind.name())? })
    }

    pub(crate) fn choices(&self) -> Vec<Choice> {
        self.0.choices()
    }
}

/// The format that a config selects.
#[derive(Clone)]
pub(super) struct SelectedFormat {
    pub(super) kind: DataFormat,
    pub(super) format: Arc<dyn AnyFormat>,
}
