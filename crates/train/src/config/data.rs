//! What is trained on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Where texts come from.
    #[serde(default)]
    pub r#type: DataType,
    /// Files, folders, or patterns in which `*` stands for any part of a name
    /// and `**` for any folders. Of folders, all files are read that end in
    /// `.txt`, `.text`, `.md`, `.markdown`, `.jsonl` or `.ndjson`.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Files that are held out to measure on.
    #[serde(default)]
    pub eval_paths: Vec<String>,
    /// What a line of a JSONL file is.
    #[serde(default)]
    pub form: Form,
    /// The length of a row, in tokens. Longer texts go on in the next row;
    /// longer prompts and conversations are cut off at the end.
    #[serde(default = "max_seq_len")]
    pub max_seq_len: usize,
    /// How documents become rows.
    #[serde(default)]
    pub rows: Rows,
    /// Which tokens count in the loss.
    #[serde(default)]
    pub masking: Masking,
    /// Whether documents come in a random order, another one in each epoch.
    #[serde(default = "shuffle")]
    pub shuffle: bool,
    /// What the order is drawn from; the run's seed if not given.
    #[serde(default)]
    pub seed: Option<u64>,
    /// A chat template in a file, instead of the model's own.
    #[serde(default)]
    pub chat_template: Option<String>,
    /// A text file is one document, unless a line that is exactly this stands
    /// between several.
    #[serde(default)]
    pub separator: Option<String>,
}

fn max_seq_len() -> usize {
    512
}

fn shuffle() -> bool {
    true
}

/// Where texts come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataType {
    /// From text, Markdown and JSONL files.
    #[default]
    Files,
    /// Random tokens, to try a configuration.
    Dummy,
}

/// What a line of a JSONL file is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Told by its keys.
    #[default]
    Auto,
    /// `{"text": …}`.
    Text,
    /// `{"prompt": …, "completion": …}`.
    PromptCompletion,
    /// `{"messages": [{"role": …, "content": …}, …]}`.
    Chat,
}

/// How documents become rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One behind the other, cut where a row is full.
    #[default]
    Packed,
    /// Each in a row of its own, filled up behind its end.
    Padded,
}

/// Which tokens count in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Masking {
    /// What the model is to say: all of a text, completions, what assistants
    /// write.
    #[default]
    Answers,
    /// All.
    None,
}
