//! What the tour needs, laid out in a folder where it can be looked at.

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

/// One of so many steps is one in which the learning rate rises.
const WARMUP: u64 = 10;

/// The tour's folder.
pub(super) struct Material {
    folder: PathBuf,
}

/// Why the tour cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub(super) enum MaterialError {
    /// Something is in the place of the tour's folder.
    #[error("`{folder}` is there already")]
    Taken { folder: String },
    /// A file could not be written.
    #[error("cannot write `{path}`: {message}")]
    Write { path: String, message: String },
}

impl Hint for MaterialError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Taken { folder } => {
                Some(format!("remove it, or name another folder: --dir {}", other_name(folder)))
            }
            Self::Write { .. } => Some("name a folder where files can be written: --dir DIR".to_owned()),
        }
    }
}

/// The first name like this one that is free.
fn other_name(folder: &str) -> String {
    let bare = folder.trim_end_matches('/');
    let name = |number: usize| format!("{bare}-{number}");
    (2..).map(name).find(|name| !Path::new(name).exists()).unwrap_or_else(|| name(2))
}

impl Material {
    /// Makes the folder, which must be new or empty, with the texts and the
    /// tokenizer.
    pub(super) fn lay_out(folder: &str) -> Result<Self, MaterialError> {
        let material = Self { folder: PathBuf::from(folder) };
        if material.is_taken()? {
            return Err(MaterialError::Taken { folder: folder.to_owned() });
        }
        let tokenizer = material.tokenizer();
        fs::create_dir_all(&tokenizer).map_err(|error| failed(&tokenizer, &error))?;
        write(&tokenizer.join("tokenizer.json"), TOKENIZER)?;
        write(&tokenizer.join("tokenizer_config.json"), TOKENIZER_CONFIG)?;
        write(&material.primer(), PRIMER)?;
        write(&material.kitchen(), KITCHEN)?;
        Ok(material)
    }

    fn is_taken(&self) -> Result<bool, MaterialError> {
        match fs::read_dir(&self.folder) {
            Ok(mut entries) => Ok(entries.next().is_some()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            // A file in its place; or, if there is none, one above it.
            Err(error) if error.kind() == ErrorKind::NotADirectory => Ok(self.folder.exists()),
            Err(error) => Err(failed(&self.folder, &error)),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn tokenizer(&self) -> PathBuf {
        self.folder.join("tokenizer")
    }

    pub(super) fn primer(&self) -> PathBuf {
        self.folder.join("primer.md")
    }

    pub(super) fn kitchen(&self) -> PathBuf {
        self.folder.join("kitchen.md")
    }

    /// Writes the file of the first run.
    pub(super) fn pretrain_file(&self, steps: u64) -> Result<PathBuf, MaterialError> {
        let places = [("{tokenizer}", self.tokenizer()), ("{primer}", self.primer())];
        self.run_file("pretrain", PRETRAIN, steps, &places)
    }

    /// Writes the file of the second run, which begins with a checkpoint of the
    /// first.
    pub(super) fn tune_file(&self, weights: &Path, steps: u64) -> Result<PathBuf, MaterialError> {
        let places = [("{weights}", weights.to_owned()), ("{kitchen}", self.kitchen())];
        self.run_file("tune", TUNE, steps, &places)
    }

    /// Writes the suite that judges an adapter, and the texts that it asks about:
    /// what the model learned first should be left.
    pub(super) fn suite_file(&self, model: &Path, adapter: &Path) -> Result<PathBuf, MaterialError> {
        let old = PRIMER.replace("* * *", "");
        let texts = serde_json::json!({ "external_corpus_public_domain_en": old });
        write(&self.folder.join("texts.json"), &texts.to_string())?;
        // Paths in a suite are told from its folder.
        let near = |path: &Path| quoted(path.strip_prefix(&self.folder).unwrap_or(path));
        let text = SWAY.replace("{model}", &near(model)).replace("{adapter}", &near(adapter));
        let file = self.folder.join("sway.yaml");
        write(&file, &text)?;
        Ok(file)
    }

    /// Where the report is left.
    pub(super) fn report(&self, form: &str) -> PathBuf {
        self.folder.join(format!("report.{form}"))
    }

    pub(super) fn write_report(&self, file: &Path, text: &str) -> Result<(), MaterialError> {
        write(file, text)
    }

    fn run_file(
        &self,
        name: &str,
        template: &str,
        steps: u64,
        places: &[(&str, PathBuf)],
    ) -> Result<PathBuf, MaterialError> {
        let mut text = template
            .replace("{steps}", &steps.to_string())
            .replace("{warmup}", &steps.div_ceil(WARMUP).to_string())
            .replace("{output}", &quoted(&self.folder.join(name)));
        for (place, path) in places {
            text = text.replace(place, &quoted(path));
        }
        let file = self.folder.join(format!("{name}.yaml"));
        write(&file, &text)?;
        Ok(file)
    }
}

/// A path as YAML reads it back, whatever is in it.
fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

fn write(path: &Path, text: &str) -> Result<(), MaterialError> {
    fs::write(path, text).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> MaterialError {
    MaterialError::Write { path: path.display().to_string(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom::hub::text::{Special, SpecialText, Tokenizer};
    use weightloom::train::config::read_file;

    use super::*;

    fn laid_out(root: &Path) -> Material {
        Material::lay_out(root.join("a \"tour\": #1").to_str().unwrap()).unwrap()
    }

    #[test]
    fn a_folder_that_holds_something_is_refused_and_another_named() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("tour");
        let name = folder.to_str().unwrap();
        fs::create_dir(&folder).unwrap();
        // An empty folder will do.
        Material::lay_out(name).unwrap();
        fs::create_dir(root.path().join("tour-2")).unwrap();
        let error = Material::lay_out(name).err().unwrap();
        assert_eq!(error, MaterialError::Taken { folder: name.to_owned() });
        assert!(error.hint().unwrap().ends_with(&format!("--dir {name}-3")), "{:?}", error.hint());
        // So is a file.
        let file = folder.join("primer.md");
        let taken = Material::lay_out(file.to_str().unwrap()).err().unwrap();
        assert_eq!(taken, MaterialError::Taken { folder: file.display().to_string() });
    }

    #[test]
    fn a_place_where_nothing_can_be_written_is_told() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Material::lay_out(file.join("tour").to_str().unwrap()).err().unwrap();
        assert!(
            matches!(&error, MaterialError::Write { path, .. } if path.contains("file/tour")),
            "{error:?}"
        );
        assert!(error.hint().unwrap().contains("--dir"));
    }

    #[test]
    fn run_files_are_read_as_they_are_meant_whatever_the_folder_is_called() {
        let root = tempfile::tempdir().unwrap();
        let material = laid_out(root.path());
        let files = [
            material.pretrain_file(3).unwrap(),
            material.tune_file(&material.folder().join("step_3"), 3).unwrap(),
        ];
        for (file, text) in files.iter().zip([material.primer(), material.kitchen()]) {
            let config = read_file(file, &[], &|_| None).unwrap();
            assert_eq!(config.data.paths, [text.to_str().unwrap()]);
            assert_eq!((config.train.max_steps, config.train.schedule.warmup_steps), (Some(3), 1));
            assert_eq!(config.train.checkpoint.output_dir, file.with_extension("").to_str().unwrap());
        }
    }

    #[test]
    fn the_tokenizer_reads_both_texts_and_writes_them_back() {
        let root = tempfile::tempdir().unwrap();
        let material = laid_out(root.path());
        let tokenizer = Tokenizer::from_folder(&material.tokenizer()).unwrap();
        let config = read_file(&material.pretrain_file(3).unwrap(), &[], &|_| None).unwrap();
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
