//! The loader: rows for a rank, step after step.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use weightloom_hub::text::{ChatTemplate, ChatTemplates, Tokenizer};

use super::count::{Count, Measure, Progress};
use super::digest::Digest;
use super::documents::{Documents, Extent};
use super::dummy::Dummy;
use super::error::DataError;
use super::order::{Order, Shuffle};
use super::prefetch::Prefetched;
use super::row::{Batch, Row};
use super::sample::{Sampler, Templates};
use super::state::{DataState, Dataset, Position};
use super::stream::{Epochs, Lengths, RowStream, Want};
use crate::config::{DataConfig, DataType};

/// What a loader is made from.
#[derive(Clone, Debug)]
pub struct DataSettings {
    /// The section `data` of the configuration.
    pub config: DataConfig,
    /// The model's tokenizer. Random tokens need none.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The model's chat templates.
    pub templates: Arc<ChatTemplates>,
    /// The run's seed, for data without one of their own.
    pub seed: u64,
    /// How many tokens the model has.
    pub vocabulary: usize,
    /// How often all documents are gone through.
    pub epochs: Epochs,
}

/// Gives rows, the same ones in the same order whoever asks for which.
pub struct Loader {
    settings: DataSettings,
    source: Source,
    position: Position,
    dataset: Arc<Dataset>,
}

enum Source {
    Files(Box<RowStream>),
    Dummy(Dummy),
}

impl Loader {
    /// Finds all documents, and stands before the first.
    pub fn new(settings: DataSettings) -> Result<Self, DataError> {
        let config = &settings.config;
        if config.max_seq_len == 0 {
            return Err(DataError::NoLength);
        }
        let (source, dataset) = match config.r#type {
            DataType::Dummy => {
                if settings.epochs != Epochs::Endless {
                    return Err(DataError::NoEpochs);
                }
                let seed = config.seed.unwrap_or(settings.seed);
                let dummy = Dummy::new(seed, settings.vocabulary, config.max_seq_len)?;
                (Source::Dummy(dummy), Dataset::new(dummy_facts(&dummy), [].iter()))
            }
            DataType::Files => {
                let stream = stream(&settings)?;
                let dataset = Dataset::new(facts(&settings, &stream)?, stream.documents.marks());
                (Source::Files(Box::new(stream)), dataset)
            }
        };
        Ok(Self { settings, source, position: Position::default(), dataset: Arc::new(dataset) })
    }

    /// The next batch of `rows` rows over all ranks, of which those of `mine`
    /// are given. `mine` are ranges of 0..`rows`, each behind the one before.
    /// Every rank must ask for the same number of rows.
    ///
    /// At the end of the last epoch a batch is filled up with rows without
    /// tokens; after it comes none. After an error the loader stands where it
    /// stood before.
    pub fn next_batch(&mut self, rows: usize, mine: &[Range<usize>]) -> Result<Option<Batch>, DataError> {
        check_mine(rows, mine)?;
        let before = self.position;
        let batch = self.walk(rows, mine);
        if batch.is_err() {
            self.position = before;
        }
        batch
    }

    fn walk(&mut self, rows: usize, mine: &[Range<usize>]) -> Result<Option<Batch>, DataError> {
        let mut batch =
            Batch { rows: Vec::new(), targets_of_mine: 0, real_rows: 0, first_row: self.position.rows };
        for at in 0..rows {
            let want = if mine.iter().any(|range| range.contains(&at)) { Want::Row } else { Want::Place };
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
        batch.targets_of_mine = batch.rows.iter().map(Row::counted).sum();
        Ok(Some(batch))
    }

    /// Where the loader stands: before the next batch.
    pub fn state(&self) -> DataState {
        DataState { position: self.position, dataset: Dataset::clone(&self.dataset) }
    }

    /// Goes to where a loader stood, here or elsewhere, with any number of
    /// ranks. The data must be the same.
    pub fn restore(&mut self, state: &DataState) -> Result<(), DataError> {
        self.dataset.check(&state.dataset)?;
        if let Source::Files(stream) = &mut self.source {
            let Position { epoch, place, offset, .. } = state.position;
            let documents = stream.documents.len() as u64;
            if place >= documents {
                return Err(DataError::Place { what: "document", number: place, limit: documents });
            }
            if offset > 0 {
                let document = stream.order.at(epoch, place) as usize;
                let length = stream.known(document)?.length as u64;
                if offset >= length {
                    return Err(DataError::Place { what: "token", number: offset, limit: length });
                }
            }
        }
        self.position = state.position;
        Ok(())
    }

    /// How much there is, before anything is tokenized. None of random tokens.
    pub fn extent(&self) -> Option<Extent> {
        match &self.source {
            Source::Files(stream) => Some(stream.documents.extent()),
            Source::Dummy(_) => None,
        }
    }

    /// Goes through all documents once and counts. Every document is read, so
    /// that whatever is wrong with one is found. The loader stays where it is,
    /// and has less to do later: it knows the length of every document.
    pub fn count_epoch(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<Count, DataError> {
        let documents = self.files()?.documents.len();
        let measures = self.measure(0..documents, progress)?;
        self.count(&measures)
    }

    /// What is known of these documents, in the order of files. Ranks that
    /// measure a part each and share what they found count faster.
    pub fn measure(
        &mut self,
        documents: Range<usize>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Measure>, DataError> {
        let stream = self.files()?;
        let limit = stream.documents.len();
        if documents.end > limit || documents.start > documents.end {
            let (number, limit) = (documents.end.max(documents.start) as u64, limit as u64);
            return Err(DataError::Place { what: "document", number, limit });
        }
        let of = documents.len() as u64;
        let mut measures = Vec::with_capacity(documents.len());
        for document in documents {
            measures.push(Measure::of(stream.sample(document)?));
            progress(Progress { done: measures.len() as u64, of });
        }
        Ok(measures)
    }

    /// The sum of all documents' measures, which are remembered.
    pub fn count(&mut self, measures: &[Measure]) -> Result<Count, DataError> {
        let stream = self.files()?;
        let documents = stream.documents.len();
        if measures.len() != documents {
            let (number, limit) = (measures.len() as u64, documents as u64);
            return Err(DataError::Place { what: "measure", number, limit });
        }
        for (document, &measure) in measures.iter().enumerate() {
            stream.lengths.put(document, measure);
        }
        let count = Count::new(measures, stream.layout, stream.size);
        if count.targets == 0 {
            return Err(DataError::NothingCounts { documents });
        }
        Ok(count)
    }

    /// A name for the order of documents: equal if and only if the first
    /// `steps` × `rows` documents from the beginning are the same, in the same
    /// order. Nothing is tokenized.
    pub fn order_digest(&self, steps: u64, rows: usize) -> String {
        let mut digest = Digest::new();
        digest.text(&self.dataset.digest);
        match &self.source {
            Source::Dummy(dummy) => {
                digest.number(dummy.seed);
                digest.number(dummy.vocabulary as u64);
            }
            Source::Files(stream) => {
                let documents = stream.documents.len() as u64;
                let wanted = steps.saturating_mul(rows as u64);
                let there = match stream.epochs {
                    Epochs::Endless => wanted,
                    Epochs::Times(times) => wanted.min(times.saturating_mul(documents)),
                };
                for at in 0..there {
                    digest.number(stream.order.at(at / documents, at % documents));
                }
            }
        }
        digest.hex()
    }

    /// A loader of what is held out, once and in the order of files; none if
    /// nothing is.
    pub fn held_out(&self) -> Result<Option<Self>, DataError> {
        let config = &self.settings.config;
        if config.eval_paths.is_empty() {
            return Ok(None);
        }
        let config = DataConfig {
            r#type: DataType::Files,
            paths: config.eval_paths.clone(),
            eval_paths: Vec::new(),
            shuffle: false,
            ..config.clone()
        };
        Self::new(DataSettings { config, epochs: Epochs::Times(1), ..self.settings.clone() }).map(Some)
    }

    /// The first rows of what is held out, at most `most`; 0 for all. All are
    /// in memory at once: take [`Self::held_out`] where they are many.
    pub fn eval_rows(&self, most: usize) -> Result<Vec<Row>, DataError> {
        let Some(mut loader) = self.held_out()? else { return Ok(Vec::new()) };
        let mut rows = Vec::new();
        while most == 0 || rows.len() < most {
            match loader.next_batch(1, &[0..1])? {
                Some(batch) => rows.extend(batch.rows),
                None => break,
            }
        }
        Ok(rows)
    }

    /// The same batches, each prepared while the one before is computed.
    pub fn prefetched(self, rows: usize, mine: Vec<Range<usize>>) -> Result<Prefetched, DataError> {
        check_mine(rows, &mine)?;
        Prefetched::new(self, rows, mine)
    }

    pub(super) fn position(&self) -> Position {
        self.position
    }

    pub(super) fn dataset(&self) -> Arc<Dataset> {
        self.dataset.clone()
    }

    fn files(&mut self) -> Result<&mut RowStream, DataError> {
        match &mut self.source {
            Source::Files(stream) => Ok(stream),
            Source::Dummy(_) => Err(DataError::NoEpochs),
        }
    }
}

fn check_mine(rows: usize, mine: &[Range<usize>]) -> Result<(), DataError> {
    if rows == 0 {
        return Err(DataError::NoRows);
    }
    let mut end = 0;
    for range in mine {
        if range.start < end || range.end < range.start || range.end > rows {
            return Err(DataError::Mine { start: range.start, end: range.end, rows });
        }
        end = range.end;
    }
    Ok(())
}

fn stream(settings: &DataSettings) -> Result<RowStream, DataError> {
    let DataSettings { config, tokenizer, templates, seed, vocabulary, epochs } = settings;
    let tokenizer = tokenizer.clone().ok_or(DataError::NoTokenizer)?;
    let templates = match &config.chat_template {
        Some(file) => Templates::File(Box::new(template(file, &tokenizer)?)),
        None => Templates::Model(templates.clone()),
    };
    let documents = Documents::new(&config.paths, config.separator.as_deref(), config.format)?;
    let shuffle = match config.shuffle {
        true => Shuffle::EachEpoch { seed: config.seed.unwrap_or(*seed) },
        false => Shuffle::Never,
    };
    // It is never a target, and nothing looks back at it; it only has to be
    // one of the model's tokens.
    let fits = |token: &u32| (*token as usize) < *vocabulary;
    let pad = tokenizer.pad().or_else(|| tokenizer.eos().first().copied()).filter(fits).unwrap_or(0);
    Ok(RowStream {
        order: Order::new(documents.len(), shuffle),
        lengths: Lengths::unknown(documents.len()),
        documents,
        sampler: Sampler {
            tokenizer,
            templates,
            train_on: config.train_on,
            longest: config.max_seq_len.saturating_add(1),
            vocabulary: *vocabulary,
        },
        epochs: *epochs,
        layout: config.row_layout(),
        size: config.max_seq_len,
        pad,
        latest: None,
    })
}

/// A template from a file, with the tokenizer's special tokens by name.
fn template(file: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, DataError> {
    let source = std::fs::read_to_string(file)
        .map_err(|error| DataError::Read { file: file.to_owned(), message: error.to_string() })?;
    let template = ChatTemplate::new(&source)
        .map_err(|error| DataError::TemplateFile { file: file.to_owned(), error })?;
    let ids = [
        ("bos_token", tokenizer.bos()),
        ("eos_token", tokenizer.eos().first().copied()),
        ("pad_token", tokenizer.pad()),
    ];
    let text = |(name, id): (&'static str, Option<u32>)| Some((name, tokenizer.token(id?)?.to_owned()));
    Ok(template.with_tokens(ids.into_iter().filter_map(text).collect()))
}

/// All that decides about rows besides the files.
fn facts(settings: &DataSettings, stream: &RowStream) -> Result<BTreeMap<String, String>, DataError> {
    let DataConfig { format, max_seq_len, packing, train_on, shuffle, seed, separator, .. } =
        &settings.config;
    let mut facts = BTreeMap::new();
    let mut put = |name: &str, value: String| facts.insert(name.to_owned(), value);
    put("data.type", "files".to_owned());
    put("data.format", format!("{format:?}"));
    put("data.max_seq_len", max_seq_len.to_string());
    put("data.packing", packing.to_string());
    put("data.train_on", format!("{train_on:?}"));
    put("data.shuffle", shuffle.to_string());
    if *shuffle {
        put("data.seed", seed.unwrap_or(settings.seed).to_string());
    }
    put("data.separator", format!("{separator:?}"));
    let tokenizer = &stream.sampler.tokenizer;
    let mut digest = Digest::new();
    digest.text(&tokenizer.to_json().map_err(|error| DataError::Tokenizer { error })?);
    digest.text(&tokenizer.config_json(None));
    put("the tokenizer", digest.hex());
    // Texts need no template, so another one makes no difference to them.
    if stream.documents.has_lines() {
        let mut digest = Digest::new();
        match &stream.sampler.templates {
            Templates::File(template) => digest.text(template.source()),
            Templates::Model(templates) => {
                for template in templates.names().filter_map(|name| templates.get(name)) {
                    digest.text(template.source());
                }
            }
        }
        put("the chat template", digest.hex());
    }
    Ok(facts)
}

fn dummy_facts(dummy: &Dummy) -> BTreeMap<String, String> {
    let facts = [
        ("data.type", "dummy".to_owned()),
        ("data.seed", dummy.seed.to_string()),
        ("data.max_seq_len", dummy.size.to_string()),
        ("the model's vocabulary", dummy.vocabulary.to_string()),
    ];
    facts.map(|(name, value)| (name.to_owned(), value)).into()
}
