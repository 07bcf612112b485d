//! The `data` section: training data.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Training data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Source of the training data.
    #[serde(default)]
    pub r#type: DataType,
    /// Training files, folders and glob patterns, and datasets of the Hugging Face
    /// hub, as `hf://datasets/owner/name`. `*` matches within a file name, `**`
    /// matches any number of folders. Files are text, Markdown, JSONL, JSON arrays,
    /// CSV, TSV and Parquet, and all but the last may be compressed (`.gz`, `.zst`).
    /// Of a dataset folder with splits, the train split is used.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Several sets of files, instead of `paths`. Each has `paths`, a `weight`,
    /// which is its share of the text, and perhaps `epochs`, after which the others
    /// share its weight. A set without `epochs` is repeated without end, and the
    /// run needs `train.max_steps`.
    #[serde(default)]
    pub mixture: Vec<MixtureConfig>,
    /// Card of a dataset, instead of `paths`. `eval_paths`, `format`,
    /// `separator` and `chat_template` are the card's unless they are set here.
    #[serde(default)]
    pub dataset: Option<String>,
    /// Evaluation files, folders and glob patterns: the main evaluation set, whose
    /// loss is `eval/loss`.
    #[serde(default)]
    pub eval_paths: Vec<String>,
    /// More evaluation sets by name, such as `{code: {paths: [code.jsonl]}}`, whose
    /// losses are `eval/<name>/loss`. Without `eval_paths`, `eval/loss` is their mean.
    #[serde(default)]
    pub eval_sets: BTreeMap<String, EvalSet>,
    /// Format of each object of a JSON or JSONL file. If set, named files of
    /// other types are read too: as plain text for `text`, else as JSONL.
    #[serde(default)]
    pub format: DataFormat,
    /// Tokens per row. Longer text continues in the next row; longer
    /// prompt-completion pairs and conversations are truncated.
    #[serde(default = "max_seq_len")]
    pub max_seq_len: usize,
    /// Pack documents into rows of `max_seq_len` tokens. Tokens attend only to
    /// their own document, and positions restart with each. If true, a row that is
    /// full cuts a document; `best_fit` cuts none that fits into a row. If false,
    /// each document starts a new row, which is padded at the end.
    #[serde(default)]
    pub packing: Packing,
    /// Greatest share of documents that may be dropped because nothing in them
    /// can be trained on. More is an error that lists the reasons.
    #[serde(default = "max_dropped")]
    pub max_dropped: f64,
    /// Records that cannot be read: a line that is not JSON, lacks a key or has
    /// one of another type. Dropped ones count towards `max_dropped`.
    #[serde(default)]
    pub bad_lines: BadLines,
    /// Tokens that contribute to the loss.
    #[serde(default)]
    pub train_on: TrainOn,
    /// Shuffle the documents, with a new order in each epoch.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Also shuffle the rows of long text files, with `shuffle` and `packing`. If
    /// false, the rows of a document follow each other.
    #[serde(default = "yes")]
    pub shuffle_windows: bool,
    /// Seed of the shuffle. Defaults to `train.seed`.
    #[serde(default)]
    pub seed: Option<u64>,
    /// File with a Jinja chat template to use instead of the tokenizer's.
    #[serde(default)]
    pub chat_template: Option<String>,
    /// Line that separates the documents in a text file. By default a text
    /// file is one document.
    #[serde(default)]
    pub separator: Option<String>,
}

fn max_seq_len() -> usize {
    512
}

fn max_dropped() -> f64 {
    0.05
}

fn yes() -> bool {
    true
}

impl DataConfig {
    /// How documents are laid out in rows.
    pub fn row_layout(&self) -> RowLayout {
        match self.packing {
            Packing::Packed => RowLayout::Packed,
            Packing::BestFit => RowLayout::BestFit,
            Packing::Padded => RowLayout::Padded,
        }
    }

    /// Whether there is evaluation data.
    pub fn has_eval_data(&self) -> bool {
        !self.eval_paths.is_empty() || !self.eval_sets.is_empty()
    }
}

/// A set of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixtureConfig {
    /// Files, folders and glob patterns, as in `data.paths`.
    pub paths: Vec<String>,
    /// Share of the text, relative to the weights of the other sets.
    pub weight: f64,
    /// Passes over the set; then the others share its weight. By default it is
    /// repeated without end, and the run needs `train.max_steps`.
    #[serde(default)]
    pub epochs: Option<u64>,
}

/// How documents share rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// `true`: documents follow each other and are cut where a row is full.
    #[default]
    Packed,
    /// `best_fit`: no document that fits into a row is cut.
    BestFit,
    /// `false`: each document starts a row.
    Padded,
}

impl Packing {
    const BEST_FIT: &str = "best_fit";

    /// Whether rows may have several documents.
    pub fn is_packed(self) -> bool {
        self != Self::Padded
    }
}

impl Serialize for Packing {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Packed => to.serialize_bool(true),
            Self::Padded => to.serialize_bool(false),
            Self::BestFit => to.serialize_str(Self::BEST_FIT),
        }
    }
}

impl<'de> Deserialize<'de> for Packing {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(from)? {
            serde_json::Value::Bool(true) => Ok(Self::Packed),
            serde_json::Value::Bool(false) => Ok(Self::Padded),
            serde_json::Value::String(name) if name == Self::BEST_FIT => Ok(Self::BestFit),
            _ => Err(D::Error::custom("`packing` is true, false or best_fit")),
        }
    }
}

impl JsonSchema for Packing {
    fn schema_name() -> Cow<'static, str> {
        "Packing".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let best_fit = "The longest documents first, each into the row with the least room that is \
                        enough, among the documents of about two million tokens.";
        schemars::json_schema!({
            "anyOf": [
                {"type": "boolean"},
                {"oneOf": [{"type": "string", "const": Self::BEST_FIT, "description": best_fit}]},
            ],
        })
    }
}

/// An evaluation set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EvalSet {
    /// Files, folders and glob patterns.
    pub paths: Vec<String>,
}

/// Source of the training data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataType {
    /// Files of text, tables, JSON and Parquet.
    #[default]
    Files,
    /// Random tokens, for testing a config.
    Dummy,
}

/// What to do with records that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BadLines {
    /// End with an error that names the file and the line.
    #[default]
    Error,
    /// Drop them; the account of the data has their number and the first one.
    Drop,
}

/// Format of each line of a JSONL file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(transform = crate::extensions::one_of)]
pub enum DataFormat {
    /// Detect the format from the keys of each line.
    #[default]
    Auto,
    /// `{"text": …}`.
    Text,
    /// `{"prompt": …, "completion": …}`.
    PromptCompletion,
    /// `{"messages": [{"role": …, "content": …}, …]}`.
    Chat,
    /// `{"instruction": …, "input": …, "output": …}`, a question and its answer.
    Alpaca,
    /// `{"conversations": [{"from": …, "value": …}, …]}`, with roles such as
    /// `human` and `gpt`.
    Sharegpt,
    /// `{"prompt": …, "chosen": …, "rejected": …}`, each a string or a list of
    /// messages. Without `prompt`, both begin with it.
    Preference,
    /// One that the program has registered with
    /// [`DataFormats`](crate::data::DataFormats).
    #[serde(untagged)]
    #[schemars(skip)]
    Registered(String),
}

impl DataFormat {
    /// The format with a name in the config.
    pub(crate) fn named(name: &str) -> Self {
        let built_in = [
            Self::Auto,
            Self::Text,
            Self::PromptCompletion,
            Self::Chat,
            Self::Alpaca,
            Self::Sharegpt,
            Self::Preference,
        ];
        let found = built_in.into_iter().find(|format| format.name() == name);
        found.unwrap_or_else(|| Self::Registered(name.to_owned()))
    }

    /// The name in the config.
    pub fn name(&self) -> &str {
        match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::PromptCompletion => "prompt_completion",
            Self::Chat => "chat",
            Self::Alpaca => "alpaca",
            Self::Sharegpt => "sharegpt",
            Self::Preference => "preference",
            Self::Registered(name) => name,
        }
    }
}

/// How documents are laid out in rows; `data.packing` chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowLayout {
    /// Documents follow each other and are split where a row is full.
    #[default]
    Packed,
    /// Documents share rows, and those that fit into a row are not split.
    BestFit,
    /// Each document starts a row, which is padded at the end.
    Padded,
    /// Each document is a row of two sequences, whatever `data.packing` is.
    Pairs,
}

/// Tokens that contribute to the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainOn {
    /// Completions, assistant messages and plain text; prompts are masked.
    #[default]
    Completions,
    /// All tokens, including prompts.
    All,
}
