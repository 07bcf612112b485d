//! The data loader: batches of rows for a rank.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weightloom_files::read_text;
use weightloom_hub::TrainingData;
use weightloom_hub::text::{ChatTemplate, ChatTemplates, Tokenizer};

use super::block::{BlockSettings, Fill};
use super::count::{Count, Measure, Progress};
use super::digest::Digest;
use super::documents::{DataSize, DocumentSettings, Documents, PromptStyle};
use super::dummy::Dummy;
use super::error::DataError;
use super::format::DataFormats;
use super::formatting;
use super::hf_dataset::Purpose;
use super::mixture::{MixtureOrder, MixtureSet};
use super::order::{DocumentOrder, Order, Shuffle};
use super::parts::part_bytes;
use super::preference::Supervision;
use super::prefetch::Prefetched;
use super::row::{Batch, Row};
use super::sample::{Sampler, Templates, plain_prompt};
use super::scan::ScanSettings;
use super::state::{DataState, Dataset, Position};
use super::stream::{Blocks, Epochs, Lengths, RowStream, Want};
use super::summary::DocumentsRead;
use crate::config::{BadLines, DataConfig, DataType, MixtureConfig, Packing, RowLayout};

/// The inputs of a loader.
#[derive(Clone, Debug)]
pub struct DataSettings {
    /// The `data` section of the config.
    pub config: DataConfig,
    /// The tokenizer; not needed for dummy data.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The model's chat templates.
    pub templates: Arc<ChatTemplates>,
    /// The seed, unless `data.seed` is set.
    pub seed: u64,
    /// Vocabulary size of the model.
    pub vocabulary: usize,
    /// Number of epochs.
    pub epochs: Epochs,
    /// The formats that the config may name.
    pub formats: DataFormats,
    /// The folder for plain copies of compressed files and Parquet. Defaults to one
    /// in the folder for temporary files.
    pub cache: Option<PathBuf>,
}

/// Produces the same rows in the same order on every rank.
pub struct Loader {
    settings: DataSettings,
    supervision: Supervision,
    source: Source,
    position: Position,
    dataset: Arc<Dataset>,
}

enum Source {
    Files(Box<RowStream>),
    Dummy(Dummy),
}

impl Loader {
    /// Scans all documents and starts before the first.
    pub fn new(settings: DataSettings) -> Result<Self, DataError> {
        Self::supervised(settings, Supervision::Tokens)
    }

    /// The same for a loss that trains on such documents.
    pub fn supervised(settings: DataSettings, supervision: Supervision) -> Result<Self, DataError> {
        Self::with_purpose(settings, supervision, Purpose::Training)
    }

    pub(super) fn with_purpose(
        settings: DataSettings,
        supervision: Supervision,
        purpose: Purpose,
    ) -> Result<Self, DataError> {
        let config = &settings.config;
        if config.max_seq_len == 0 {
            return Err(DataError::NoLength);
        }
        let (source, dataset) = match config.r#type {
            DataType::Dummy => {
                if supervision != Supervision::Tokens {
                    return Err(DataError::DummyPreferences);
                }
                if settings.epochs != Epochs::Endless {
                    return Err(DataError::NoEpochs);
                }
                let seed = config.seed.unwrap_or(settings.seed);
                let dummy = Dummy::new(seed, settings.vocabulary, config.max_seq_len)?;
                (Source::Dummy(dummy), Dataset::new(dummy_settings(&dummy), [].iter()))
            }
            DataType::Files => {
                let stream = stream(&settings, supervision, purpose)?;
                let dataset =
                    Dataset::new(row_settings(&settings, &stream)?, stream.documents.fingerprints());
                (Source::Files(Box::new(stream)), dataset)
            }
        };
        Ok(Self { settings, supervision, source, position: Position::default(), dataset: Arc::new(dataset) })
    }

    /// Returns the rows `own` of the next global batch of `rows` rows. `own` are
    /// ascending, disjoint ranges of `0..rows`. Every rank must pass the same
    /// `rows`.
    ///
    /// The last batch of the last epoch is filled with empty rows; then comes
    /// `None`. After an error the position is unchanged.
    pub fn next_batch(&mut self, rows: usize, own: &[Range<usize>]) -> Result<Option<Batch>, DataError> {
        check_ranges(rows, own)?;
        let before = self.position;
        let batch = self.take_batch(rows, own);
        if batch.is_err() {
            self.position = before;
        }
        batch
    }

    fn take_batch(&mut self, rows: usize, own: &[Range<usize>]) -> Result<Option<Batch>, DataError> {
        let mut batch =
            Batch { rows: Vec::new(), own_targets: 0, real_rows: 0, first_row: self.position.rows };
        if let Source::Files(stream) = &mut self.source {
            stream.taken.clear();
        }
        for at in 0..rows {
            let want = if own.iter().any(|range| range.contains(&at)) { Want::Row } else { Want::Position };
            let row = match &mut self.source {
                Source::Dummy(dummy) => {
                    let row = (want == Want::Row).then(|| dummy.row(self.position.rows));
                    self.position.rows = self.position.rows.saturating_add(1);
                    self.position.tokens = self.position.tokens.saturating_add(dummy.size as u64);
                    batch.real_rows += 1;
                    row
                }
                Source::Files(stream) => match stream.next(&mut self.position, want)? {
                    Some(row) => {
                        batch.real_rows += 1;
                        row
                    }
                    None if batch.real_rows == 0 => return Ok(None),
                    None => (want == Want::Row).then(|| Row::empty(stream.size, stream.pad)),
                },
            };
            batch.rows.extend(row);
        }
        batch.own_targets = batch.rows.iter().map(Row::target_count).sum();
        Ok(Some(batch))
    }

    /// The position before the next batch.
    pub fn state(&self) -> DataState {
        DataState { position: self.position, dataset: Dataset::clone(&self.dataset) }
    }

    /// Moves to a saved position, from any number of ranks. The data must be
    /// unchanged.
    pub fn restore(&mut self, state: &DataState) -> Result<(), DataError> {
        self.dataset.check(&state.dataset)?;
        if let Source::Files(stream) = &mut self.source {
            let Position { epoch, place, offset, .. } = state.position;
            let documents = stream.order.len();
            if place >= documents {
                return Err(DataError::Position { what: "document", number: place, limit: documents });
            }
            let rows = if offset > 0 { stream.rows_of_block(epoch, place)? } else { None };
            if let Some(limit) = rows {
                if offset >= limit {
                    return Err(DataError::Position { what: "row", number: offset, limit });
                }
            } else if offset > 0 {
                let document = stream.order.at(epoch, place) as usize;
                let length = stream.lookup(document)?.length as u64;
                if offset >= length {
                    return Err(DataError::Position { what: "token", number: offset, limit: length });
                }
            }
        }
        self.position = state.position;
        Ok(())
    }

    /// A digest of all settings and files that determine the rows.
    pub(crate) fn dataset_digest(&self) -> String {
        let mut digest = Digest::new();
        for (name, value) in &self.dataset.settings {
            digest.text(name);
            digest.text(value);
        }
        digest.text(&self.dataset.digest);
        digest.hex()
    }

    /// The number of documents; 0 for dummy data.
    pub(crate) fn document_count(&self) -> usize {
        self.file_stream().map_or(0, |stream| stream.documents.len())
    }

    /// The row of a document, by its number in the data: of preferences. Empty if the
    /// document is dropped.
    pub(crate) fn document_row(&mut self, document: usize) -> Result<Row, DataError> {
        self.files()?.pair_row(document)
    }

    /// The size of the data before tokenization; `None` for dummy data.
    pub fn size(&self) -> Option<DataSize> {
        Some(self.file_stream()?.documents.size())
    }

    /// How prompts look to a model that is trained on the data.
    pub fn prompt_style(&self) -> PromptStyle {
        self.file_stream().map_or(PromptStyle::Plain, |stream| stream.documents.prompt_style())
    }

    /// A prompt as a model that is trained on the data expects it: as it is, or as
    /// a user message in the chat template, with what precedes an answer.
    /// `None` without a tokenizer.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Option<Vec<u32>>, DataError> {
        let tokens = match self.file_stream() {
            Some(stream) if self.prompt_style() == PromptStyle::Chat => stream.sampler.chat_prompt(prompt),
            _ => match &self.settings.tokenizer {
                Some(tokenizer) => plain_prompt(tokenizer, prompt),
                None => return Ok(None),
            },
        };
        tokens.map(Some)
    }

    /// Starts at the first document of changed data, with the rows and tokens of
    /// a saved position.
    pub fn restart(&mut self, state: &DataState) {
        let Position { rows, tokens, .. } = state.position;
        self.position = Position { rows, tokens, ..Position::default() };
    }

    /// How the data are formatted; `None` for dummy data.
    pub fn training_data(&self) -> Result<Option<TrainingData>, DataError> {
        let Source::Files(stream) = &self.source else { return Ok(None) };
        let sets = self.evaluation_sets()?;
        let eval: Vec<&Documents> =
            sets.iter().filter_map(|(_, loader)| Some(&loader.file_stream()?.documents)).collect();
        formatting::record(&self.settings.config, stream, &eval).map(Some)
    }

    /// The text of the template that `data.chat_template` names, if any.
    pub fn template_file(&self) -> Option<&str> {
        match &self.source {
            Source::Files(stream) => match &stream.sampler.templates {
                Templates::File(template) => Some(template.source()),
                Templates::Model(_) => None,
            },
            Source::Dummy(_) => None,
        }
    }

    /// Reads and counts all documents, which finds every error in them. The
    /// position is unchanged, and later batches are faster because all lengths
    /// are known.
    pub fn count_epoch(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<Count, DataError> {
        let documents = self.files()?.documents.len();
        let measures = self.measure(0..documents, progress)?;
        self.count(&measures)
    }

    /// Measures a range of documents, so that ranks can share the work.
    pub fn measure(
        &mut self,
        documents: Range<usize>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Measure>, DataError> {
        let stream = self.files()?;
        let limit = stream.documents.len();
        if documents.end > limit || documents.start > documents.end {
            let (number, limit) = (documents.end.max(documents.start) as u64, limit as u64);
            return Err(DataError::Position { what: "document", number, limit });
        }
        let of = documents.len() as u64;
        let mut measures = Vec::with_capacity(documents.len());
        for document in documents {
            measures.push(Measure::of(stream.sample(document)?));
            progress(Progress { done: measures.len() as u64, of });
        }
        Ok(measures)
    }

    /// Sums the measures of all documents, and remembers their lengths.
    pub fn count(&mut self, measures: &[Measure]) -> Result<Count, DataError> {
        let stream = self.files()?;
        let documents = stream.documents.len();
        if measures.len() != documents {
            let (number, limit) = (measures.len() as u64, documents as u64);
            return Err(DataError::Position { what: "measure", number, limit });
        }
        for (document, &measure) in measures.iter().enumerate() {
            stream.lengths.put(document, measure);
        }
        let count = stream.count_rows(measures);
        if count.targets == 0 {
            return Err(DataError::NoTargets { documents });
        }
        Ok(count)
    }

    /// A digest of the first `steps` × `rows` documents and their order, without
    /// tokenization.
    pub fn order_digest(&self, steps: u64, rows: usize) -> String {
        let mut digest = Digest::new();
        digest.text(&self.dataset.digest);
        match &self.source {
            Source::Dummy(dummy) => {
                digest.number(dummy.seed);
                digest.number(dummy.vocabulary as u64);
            }
            Source::Files(stream) => {
                let documents = stream.order.len();
                let wanted = steps.saturating_mul(rows as u64);
                let count = match stream.epochs {
                    Epochs::Endless => wanted,
                    Epochs::Times(times) => wanted.min(times.saturating_mul(documents)),
                };
                for at in 0..count {
                    digest.number(stream.order.at(at / documents, at % documents));
                }
            }
        }
        digest.hex()
    }

    /// A loader of one unshuffled epoch of `data.eval_paths`, if there are any.
    pub fn held_out(&self) -> Result<Option<Self>, DataError> {
        let paths = &self.settings.config.eval_paths;
        if paths.is_empty() { Ok(None) } else { self.evaluation_of(paths).map(Some) }
    }

    /// The first `limit` evaluation rows, or all for 0, in memory at once, and the
    /// account of their documents. Use [`Self::held_out`] for large data.
    pub fn eval_rows(&self, limit: usize) -> Result<(Vec<Row>, Option<DocumentsRead>), DataError> {
        let Some(mut loader) = self.held_out()? else { return Ok((Vec::new(), None)) };
        let mut rows = Vec::new();
        while limit == 0 || rows.len() < limit {
            match loader.next_batch(1, &[0..1])? {
                Some(batch) => rows.extend(batch.rows),
                None => break,
            }
        }
        Ok((rows, Some(DocumentsRead::at(&loader.position))))
    }

    /// Prepares the batches on a thread.
    pub fn prefetched(self, rows: usize, own: Vec<Range<usize>>) -> Result<Prefetched, DataError> {
        check_ranges(rows, &own)?;
        Prefetched::new(self, rows, own)
    }

    pub(super) fn position(&self) -> Position {
        self.position
    }

    pub(super) fn set_position(&mut self, position: Position) {
        self.position = position;
    }

    pub(super) fn supervision(&self) -> Supervision {
        self.supervision
    }

    pub(super) fn settings(&self) -> &DataSettings {
        &self.settings
    }

    pub(super) fn dataset(&self) -> Arc<Dataset> {
        self.dataset.clone()
    }

    /// The stream of rows; `None` for dummy data.
    pub(super) fn file_stream(&self) -> Option<&RowStream> {
        match &self.source {
            Source::Files(stream) => Some(stream),
            Source::Dummy(_) => None,
        }
    }

    pub(super) fn files(&mut self) -> Result<&mut RowStream, DataError> {
        match &mut self.source {
            Source::Files(stream) => Ok(stream),
            Source::Dummy(_) => Err(DataError::NoEpochs),
        }
    }
}

fn check_ranges(rows: usize, own: &[Range<usize>]) -> Result<(), DataError> {
    if rows == 0 {
        return Err(DataError::NoRows);
    }
    let mut end = 0;
    for range in own {
        if range.start < end || range.end < range.start || range.end > rows {
            return Err(DataError::RowRange { start: range.start, end: range.end, rows });
        }
        end = range.end;
    }
    Ok(())
}

fn stream(
    settings: &DataSettings,
    supervision: Supervision,
    purpose: Purpose,
) -> Result<RowStream, DataError> {
    let DataSettings { config, tokenizer, templates, seed, vocabulary, epochs, formats, cache } = settings;
    let tokenizer = tokenizer.clone().ok_or(DataError::NoTokenizer)?;
    let templates = match &config.chat_template {
        Some(file) => Templates::File(Box::new(read_template(file, &tokenizer)?)),
        None => Templates::Model(templates.clone()),
    };
    let format = formats.select(&config.format)?;
    let cache = cache.clone().unwrap_or_else(|| std::env::temp_dir().join("weightloom-data"));
    // Preferences are rows of their own.
    let packing = if supervision == Supervision::Tokens { config.packing } else { Packing::Padded };
    let cuts_texts = config.shuffle && packing.is_packed() && config.shuffle_windows;
    let part_bytes = cuts_texts.then(|| part_bytes(config.max_seq_len));
    let reading = DocumentSettings {
        scan: ScanSettings { separator: config.separator.as_deref(), part_bytes },
        format: &format,
        bad_lines: config.bad_lines,
        purpose,
        cache: &cache,
    };
    let sets: Vec<&[String]> = match &*config.mixture {
        [] => vec![&*config.paths],
        sets => sets.iter().map(|set| &*set.paths).collect(),
    };
    let documents = Documents::new(&sets, &reading)?;
    let shuffle = match config.shuffle {
        true => Shuffle::EachEpoch { seed: config.seed.unwrap_or(*seed) },
        false => Shuffle::Never,
    };
    // Padding is never a target or attended to, but must be a valid token.
    let fits = |token: &u32| (*token as usize) < *vocabulary;
    let pad = tokenizer.pad().or_else(|| tokenizer.eos().first().copied()).filter(fits).unwrap_or(0);
    let fill = match packing {
        Packing::BestFit => Some(Fill::BestFit),
        // The rows of parts are shuffled.
        Packing::Packed => (documents.continuations() > 0).then_some(Fill::InOrder),
        Packing::Padded => None,
    };
    let blocks = fill.map(|fill| {
        let settings = BlockSettings { fill, shuffle, size: config.max_seq_len };
        Blocks { settings, current: None }
    });
    Ok(RowStream {
        order: document_order(config, &documents, shuffle),
        blocks,
        lengths: Lengths::unknown(documents.len()),
        documents,
        sampler: Sampler {
            tokenizer,
            templates,
            train_on: config.train_on,
            max_tokens: config.max_seq_len.saturating_add(1),
            vocabulary: *vocabulary,
            supervision,
        },
        epochs: *epochs,
        layout: match supervision {
            Supervision::Tokens => config.row_layout(),
            Supervision::Preferences | Supervision::Labels => RowLayout::Pairs,
        },
        size: config.max_seq_len,
        pad,
        latest: None,
        taken: Vec::new(),
    })
}

fn document_order(config: &DataConfig, documents: &Documents, shuffle: Shuffle) -> DocumentOrder {
    if config.mixture.is_empty() {
        return DocumentOrder::Plain(Order::new(documents.len(), shuffle));
    }
    let set = |((range, bytes), set): ((Range<usize>, u64), &MixtureConfig)| MixtureSet {
        first: range.start as u64,
        documents: range.len() as u64,
        bytes,
        weight: set.weight,
        epochs: set.epochs,
    };
    let sets: Vec<MixtureSet> = documents.sets().into_iter().zip(&config.mixture).map(set).collect();
    DocumentOrder::Mixture(MixtureOrder::new(&sets, shuffle))
}

/// The largest file that is read as a chat template.
const MAX_TEMPLATE: u64 = 16 << 20;

/// Reads a chat template, with the names of the tokenizer's special tokens.
fn read_template(file: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, DataError> {
    let text = read_text(Path::new(file), MAX_TEMPLATE)?;
    let template = ChatTemplate::new(&text)
        .map_err(|source| DataError::TemplateFile { file: file.to_owned(), source })?;
    let ids = [
        ("bos_token", tokenizer.bos()),
        ("eos_token", tokenizer.eos().first().copied()),
        ("pad_token", tokenizer.pad()),
    ];
    let text = |(name, id): (&'static str, Option<u32>)| Some((name, tokenizer.token(id?)?.to_owned()));
    Ok(template.with_tokens(ids.into_iter().filter_map(text).collect()))
}

/// The settings that determine the rows of the files.
fn row_settings(settings: &DataSettings, stream: &RowStream) -> Result<BTreeMap<String, String>, DataError> {
    let DataConfig {
        format,
        max_seq_len,
        packing,
        train_on,
        shuffle,
        seed,
        separator,
        bad_lines,
        mixture,
        ..
    } = &settings.config;
    let mut all = BTreeMap::new();
    let mut put = |name: &str, value: String| all.insert(name.to_owned(), value);
    put("data.type", "files".to_owned());
    put("data.format", format!("{format:?}"));
    put("data.max_seq_len", max_seq_len.to_string());
    let packing = match packing {
        Packing::Packed => "true",
        Packing::BestFit => "best_fit",
        Packing::Padded => "false",
    };
    put("data.packing", packing.to_owned());
    if stream.documents.continuations() > 0 {
        put("data.shuffle_windows", "true".to_owned());
    }
    if !mixture.is_empty() {
        let set = |(set, (range, _)): (&MixtureConfig, (Range<usize>, u64))| {
            let epochs = set.epochs.map_or_else(String::new, |epochs| format!(" × {epochs}"));
            format!("{} of {}{epochs}", set.weight, range.len())
        };
        let sets: Vec<String> = mixture.iter().zip(stream.documents.sets()).map(set).collect();
        put("data.mixture", sets.join(", "));
    }
    put("data.train_on", format!("{train_on:?}"));
    put("data.shuffle", shuffle.to_string());
    if *shuffle {
        put("data.seed", seed.unwrap_or(settings.seed).to_string());
    }
    let rows = match stream.sampler.supervision {
        Supervision::Tokens => None,
        Supervision::Preferences => Some("preferences"),
        Supervision::Labels => Some("labelled completions"),
    };
    if let Some(rows) = rows {
        put("train.loss rows", rows.to_owned());
    }
    put("data.separator", format!("{separator:?}"));
    if *bad_lines == BadLines::Drop {
        put("data.bad_lines", "drop".to_owned());
    }
    let tokenizer = &stream.sampler.tokenizer;
    let mut digest = Digest::new();
    digest.text(&tokenizer.to_json().map_err(|source| DataError::Tokenizer { source })?);
    digest.text(&tokenizer.config_json(None));
    put("tokenizer", digest.hex());
    // Text files need no template.
    if stream.documents.has_json() {
        let mut digest = Digest::new();
        match &stream.sampler.templates {
            Templates::File(template) => digest.text(template.source()),
            Templates::Model(templates) => {
                for template in templates.names().filter_map(|name| templates.get(name)) {
                    digest.text(template.source());
                }
            }
        }
        put("chat template", digest.hex());
    }
    Ok(all)
}

fn dummy_settings(dummy: &Dummy) -> BTreeMap<String, String> {
    let all = [
        ("data.type", "dummy".to_owned()),
        ("data.seed", dummy.seed.to_string()),
        ("data.max_seq_len", dummy.size.to_string()),
        ("model vocabulary", dummy.vocabulary.to_string()),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}
