//! A small tokenizer, a folder with files, and settings: what tests play on.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tempfile::TempDir;
use weightloom_hub::text::{ChatTemplates, TextError, Tokenizer};

use crate::config::{BadLines, DataConfig, DataFormat};
use crate::data::documents::{DocumentSettings, Documents};
use crate::data::hf_dataset::Purpose;
use crate::data::scan::ScanSettings;
use crate::data::{DataError, DataFormats, DataSettings, DataState, Epochs, Loader, Row};

/// The special tokens, by their numbers.
pub(super) const MARKS: [&str; 5] = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"];
pub(super) const BOS: u32 = 0;
pub(super) const EOS: u32 = 1;
pub(super) const PAD: u32 = 2;

/// What a tokenizer puts around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Around {
    Nothing,
    Bos,
    Both,
}

fn config() -> Value {
    json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
}

/// One token for each character of ASCII, and for `ab`, `ll`, and `ab` twice.
pub(super) fn tokenizer(around: Around) -> Tokenizer {
    let mut vocabulary = Map::new();
    let mut add = |piece: String| {
        let id = vocabulary.len();
        vocabulary.insert(piece, json!(id));
    };
    MARKS.iter().for_each(|mark| add((*mark).to_owned()));
    (' '..='~').chain(['\n']).for_each(|char| add(char.to_string()));
    ["ab", "ll", "abab"].iter().for_each(|piece| add((*piece).to_owned()));
    let added = MARKS.iter().enumerate().map(|(id, mark)| {
        json!({"id": id, "content": mark, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    });
    let mark = |mark: &str| json!({"SpecialToken": {"id": mark, "type_id": 0}});
    let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
    let single = match around {
        Around::Nothing => vec![sequence],
        Around::Bos => vec![mark("<s>"), sequence],
        Around::Both => vec![mark("<s>"), sequence, mark("</s>")],
    };
    let file = json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<_>>(),
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": [],
            "special_tokens": {
                "<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]},
                "</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]},
            },
        },
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b", "l l", "ab ab"]},
    });
    let read = |name: &str| -> Result<Option<Vec<u8>>, TextError> {
        Ok(match name {
            "tokenizer.json" => Some(file.to_string().into_bytes()),
            "tokenizer_config.json" => Some(config().to_string().into_bytes()),
            _ => None,
        })
    };
    Tokenizer::from_files(&read).unwrap()
}

/// Templates of which one is the default.
pub(super) fn templates(source: &str) -> ChatTemplates {
    let read = |name: &str| -> Result<Option<Vec<u8>>, TextError> {
        Ok(match name {
            "chat_template.jinja" => Some(source.as_bytes().to_vec()),
            "tokenizer_config.json" => Some(config().to_string().into_bytes()),
            _ => None,
        })
    };
    ChatTemplates::from_files(&read).unwrap()
}

/// A folder with files in it.
pub(super) fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        write(folder.path(), name, bytes);
    }
    folder
}

pub(super) fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// A path inside of a folder, as text.
pub(super) fn inside(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// Settings for all files of a folder, with changes to the section `data`.
pub(super) fn settings(folder: &TempDir, changes: Value) -> DataSettings {
    let mut config = json!({"paths": [folder.path().to_str().unwrap()]});
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let config: DataConfig = serde_json::from_value(config).unwrap();
    DataSettings {
        config,
        tokenizer: Some(Arc::new(tokenizer(Around::Bos))),
        templates: Arc::new(ChatTemplates::default()),
        seed: 1,
        vocabulary: 200,
        epochs: Epochs::Times(1),
        formats: DataFormats::standard(),
        cache: Some(folder.path().join(".cache")),
    }
}

/// The documents of files.
pub(super) fn documents(paths: &[String], separator: Option<&str>) -> Result<Documents, DataError> {
    let format = DataFormats::standard().select(&DataFormat::Auto).unwrap();
    let cache = Path::new(&paths[0]).with_file_name(".cache");
    let (bad_lines, cache) = (BadLines::Error, &*cache);
    let scan = ScanSettings { separator, part_bytes: None };
    Documents::new(
        &[paths],
        &DocumentSettings { scan, format: &format, bad_lines, purpose: Purpose::Training, cache },
    )
}

/// All rows that one rank alone is given, one by one.
pub(super) fn all_rows(loader: &mut Loader) -> Vec<Row> {
    std::iter::from_fn(|| loader.next_batch(1, &[0..1]).unwrap()).flat_map(|batch| batch.rows).collect()
}

/// All rows that ranks are given in batches of eight, and the state after two of
/// them. The ranks start from a state, if there is one.
pub(super) fn walk(settings: &DataSettings, from: Option<&DataState>, ranks: usize) -> (Vec<Row>, DataState) {
    let mut loaders: Vec<Loader> = (0..ranks).map(|_| Loader::new(settings.clone()).unwrap()).collect();
    if let Some(state) = from {
        loaders.iter_mut().for_each(|loader| loader.restore(state).unwrap());
    }
    let (mut rows, mut middle) = (Vec::new(), loaders[0].state());
    for step in 0.. {
        let share = 8 / ranks;
        let mut ended = false;
        for (rank, loader) in loaders.iter_mut().enumerate() {
            let own = rank * share..(rank + 1) * share;
            match loader.next_batch(8, std::slice::from_ref(&own)).unwrap() {
                Some(batch) => rows.extend(batch.rows),
                None => ended = true,
            }
        }
        if ended || step == 50 {
            break;
        }
        if step == 1 {
            middle = loaders[0].state();
        }
    }
    (rows, middle)
}
