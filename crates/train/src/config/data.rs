//! The `data` section: training data.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Training data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Source of the training data.
    #[serde(default)]
    pub r#type: DataType,
    /// Training files, folders and glob patterns. `*` matches within a file
    /// name, `**` matches any number of folders. A folder contributes its
    /// `.txt`, `.text`, `.md`, `.markdown`, `.jsonl` and `.ndjson` files. A
    /// named `.json` file is an array of the same objects as in JSONL.
    #[serde(default)]
    pub paths: Vec<String>,
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
    /// their own document, and positions restart with each. If false, each
    /// document starts a new row, which is padded at the end.
    #[serde(default = "yes")]
    pub packing: bool,
    /// Greatest share of documents that may be dropped because nothing in them
    /// can be trained on. More is an error that lists the reasons.
    #[serde(default = "max_dropped")]
    pub max_dropped: f64,
    /// Records that cannot be read: a line that is no JSON, lacks a key or has
    /// one of another type. Dropped ones count towards `max_dropped`.
    #[serde(default)]
    pub bad_lines: BadLines,
    /// Tokens that contribute to the loss.
    #[serde(default)]
    pub train_on: TrainOn,
    /// Shuffle the documents, with a new order in each epoch.
    #[serde(default = "yes")]
    pub shuffle: bool,
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
        if self.packing { RowLayout::Packed } else { RowLayout::Padded }
    }

    /// Whether there is evaluation data.
    pub fn has_eval_data(&self) -> bool {
        !self.eval_paths.is_empty() || !self.eval_sets.is_empty()
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
    /// Text, Markdown and JSONL files.
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
