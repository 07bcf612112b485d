//! The folder of the tour, with its texts, tokenizer and configs.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use weightloom::errors::Hint;

const PRIMER: &str = include_str!("tour/primer.md");
const KITCHEN: &str = include_str!("tour/kitchen.md");
const TOKENIZER: &str = include_str!("tour/tokenizer.json");
const TOKENIZER_CONFIG: &str = include_str!("tour/tokenizer_config.json");
const PRETRAIN: &str = include_str!("tour/pretrain.yaml");
const TUNE: &str = include_str!("tour/tune.yaml");
const SWAY: &str = include_str!("tour/sway.yaml");

/// Divides the number of steps to give the warm-up steps.
const WARMUP_DIVISOR: u64 = 10;

/// The folder of the tour.
pub(super) struct TourFolder {
    path: PathBuf,
}

/// Why the folder cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub(super) enum FolderError {
    #[error("`{folder}` already exists")]
    Exists { folder: String },
    #[error("cannot write `{path}`: {message}")]
    Write { path: String, message: String },
}

impl Hint for FolderError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Exists { folder } => {
                Some(format!("remove it, or choose another folder: --dir {}", free_name(folder)))
            }
            Self::Write { .. } => Some("choose a writable folder: --dir DIR".to_owned()),
        }
    }
}

/// The first free name with a numeric suffix.
fn free_name(folder: &str) -> String {
    let bare = folder.trim_end_matches('/');
    let name = |number: usize| format!("{bare}-{number}");
    (2..).map(name).find(|name| !Path::new(name).exists()).unwrap_or_else(|| name(2))
}

impl TourFolder {
    /// Creates the folder, which must be new or empty, with texts and
    /// tokenizer.
    pub(super) fn create(folder: &str) -> Result<Self, FolderError> {
        let created = Self { path: PathBuf::from(folder) };
        if created.is_occupied()? {
            return Err(FolderError::Exists { folder: folder.to_owned() });
        }
        let tokenizer = created.tokenizer();
        fs::create_dir_all(&tokenizer).map_err(|error| failed(&tokenizer, &error))?;
        write(&tokenizer.join("tokenizer.json"), TOKENIZER)?;
        write(&tokenizer.join("tokenizer_config.json"), TOKENIZER_CONFIG)?;
        write(&created.primer(), PRIMER)?;
        write(&created.kitchen(), KITCHEN)?;
        Ok(created)
    }

    fn is_occupied(&self) -> Result<bool, FolderError> {
        match fs::read_dir(&self.path) {
            Ok(mut entries) => Ok(entries.next().is_some()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            // The path or one of its parents is a file.
            Err(error) if error.kind() == ErrorKind::NotADirectory => Ok(self.path.exists()),
            Err(error) => Err(failed(&self.path, &error)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn tokenizer(&self) -> PathBuf {
        self.path.join("tokenizer")
    }

    pub(super) fn primer(&self) -> PathBuf {
        self.path.join("primer.md")
    }

    pub(super) fn kitchen(&self) -> PathBuf {
        self.path.join("kitchen.md")
    }

    /// Writes the config of the pretraining.
    pub(super) fn pretrain_config(&self, steps: u64) -> Result<PathBuf, FolderError> {
        let paths = [("{tokenizer}", self.tokenizer()), ("{primer}", self.primer())];
        self.write_config("pretrain", PRETRAIN, steps, &paths)
    }

    /// Writes the config of the fine-tuning, from a checkpoint of the pretraining.
    pub(super) fn tune_config(&self, weights: &Path, steps: u64) -> Result<PathBuf, FolderError> {
        let paths = [("{weights}", weights.to_owned()), ("{kitchen}", self.kitchen())];
        self.write_config("tune", TUNE, steps, &paths)
    }

    /// Writes the suite for the adapter, and the pretraining text for the probe
    /// that checks that it is not forgotten.
    pub(super) fn suite_file(&self, model: &Path, adapter: &Path) -> Result<PathBuf, FolderError> {
        let pretraining_text = PRIMER.replace("* * *", "");
        let texts = serde_json::json!({ "external_corpus_public_domain_en": pretraining_text });
        write(&self.path.join("texts.json"), &texts.to_string())?;
        // Paths in a suite are relative to its folder.
        let relative = |path: &Path| quoted(path.strip_prefix(&self.path).unwrap_or(path));
        let text = SWAY.replace("{model}", &relative(model)).replace("{adapter}", &relative(adapter));
        let file = self.path.join("sway.yaml");
        write(&file, &text)?;
        Ok(file)
    }

    /// Path of the report in a format.
    pub(super) fn report(&self, format: &str) -> PathBuf {
        self.path.join(format!("report.{format}"))
    }

    pub(super) fn write_report(&self, file: &Path, text: &str) -> Result<(), FolderError> {
        write(file, text)
    }

    fn write_config(
        &self,
        name: &str,
        template: &str,
        steps: u64,
        paths: &[(&str, PathBuf)],
    ) -> Result<PathBuf, FolderError> {
        let mut text = template
            .replace("{steps}", &steps.to_string())
            .replace("{warmup}", &steps.div_ceil(WARMUP_DIVISOR).to_string())
            .replace("{output}", &quoted(&self.path.join(name)));
        for (placeholder, path) in paths {
            text = text.replace(placeholder, &quoted(path));
        }
        let file = self.path.join(format!("{name}.yaml"));
        write(&file, &text)?;
        Ok(file)
    }
}

/// Quotes a path for YAML.
fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

fn write(path: &Path, text: &str) -> Result<(), FolderError> {
    fs::write(path, text).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> FolderError {
    FolderError::Write { path: path.display().to_string(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom::hub::text::{Special, SpecialText, Tokenizer};
    use weightloom::train::config::read_file;

    use super::*;

    fn create(root: &Path) -> TourFolder {
        TourFolder::create(root.join("a \"tour\": #1").to_str().unwrap()).unwrap()
    }

    #[test]
    fn an_occupied_folder_is_rejected_and_another_suggested() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("tour");
        let name = folder.to_str().unwrap();
        fs::create_dir(&folder).unwrap();
        // An empty folder is fine.
        TourFolder::create(name).unwrap();
        fs::create_dir(root.path().join("tour-2")).unwrap();
        let error = TourFolder::create(name).err().unwrap();
        assert_eq!(error, FolderError::Exists { folder: name.to_owned() });
        assert!(error.hint().unwrap().ends_with(&format!("--dir {name}-3")), "{:?}", error.hint());
        // A file is rejected too.
        let file = folder.join("primer.md");
        let taken = TourFolder::create(file.to_str().unwrap()).err().unwrap();
        assert_eq!(taken, FolderError::Exists { folder: file.display().to_string() });
    }

    #[test]
    fn an_unwritable_folder_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = TourFolder::create(file.join("tour").to_str().unwrap()).err().unwrap();
        assert!(matches!(&error, FolderError::Write { path, .. } if path.contains("file/tour")), "{error:?}");
        assert!(error.hint().unwrap().contains("--dir"));
    }

    #[test]
    fn configs_are_valid_for_any_folder_name() {
        let root = tempfile::tempdir().unwrap();
        let folder = create(root.path());
        let files = [
            folder.pretrain_config(3).unwrap(),
            folder.tune_config(&folder.path().join("step_3"), 3).unwrap(),
        ];
        for (file, text) in files.iter().zip([folder.primer(), folder.kitchen()]) {
            let config = read_file(file, &[], &|_| None).unwrap();
            assert_eq!(config.data.paths, [text.to_str().unwrap()]);
            assert_eq!((config.train.max_steps, config.train.schedule.warmup_steps), (Some(3), 1));
            assert_eq!(config.train.checkpoint.output_dir, file.with_extension("").to_str().unwrap());
        }
    }

    #[test]
    fn the_tokenizer_round_trips_both_texts() {
        let root = tempfile::tempdir().unwrap();
        let folder = create(root.path());
        let tokenizer = Tokenizer::from_folder(&folder.tokenizer()).unwrap();
        let config = read_file(&folder.pretrain_config(3).unwrap(), &[], &|_| None).unwrap();
        let vocabulary = config.model.config_overrides["vocab_size"].as_u64().unwrap();
        for text in [PRIMER, KITCHEN, "Umläute, 大 and \u{1}"] {
            let tokens = tokenizer.encode(text, Special::Add).unwrap();
            assert!(tokens.iter().all(|&token| u64::from(token) < vocabulary));
            assert_eq!(tokens.first().copied(), tokenizer.bos());
            assert_eq!(tokenizer.decode(&tokens, SpecialText::Skip), text);
        }
        assert!(tokenizer.eos().iter().all(|&token| u64::from(token) < vocabulary));
        let tokens = tokenizer.encode(PRIMER, Special::Plain).unwrap().len();
        assert!(PRIMER.len() > 2 * tokens, "a token is {:.1} bytes", PRIMER.len() as f64 / tokens as f64);
    }
}
