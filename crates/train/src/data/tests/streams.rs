//! Rows do not depend on ranks, and every token is learned once: compared with
//! a plain list of all tokens.

use std::ops::Range;

use proptest::prelude::*;
use serde_json::json;
use weightloom_hub::text::Special;

use super::stage::{Around, BOS, EOS, PAD, folder, settings, tokenizer};
use crate::data::order::{Order, Shuffle};
use crate::data::{DataSettings, DataState, Epochs, IGNORED, Loader, Row};

#[derive(Clone, Debug)]
enum Document {
    Text(String),
    Prompt(String, String),
}

impl Document {
    fn line(&self) -> String {
        match self {
            Self::Text(text) => json!({"text": text}).to_string() + "\n",
            Self::Prompt(prompt, completion) => {
                json!({"prompt": prompt, "completion": completion}).to_string() + "\n"
            }
        }
    }

    /// Tokens and whether they count, none if the document is left out, as one
    /// would write it down without thinking of speed. Texts are made of
    /// characters that no token joins.
    fn tokens(&self, size: usize) -> Vec<(u32, bool)> {
        let tokenizer = tokenizer(Around::Nothing);
        let plain = |text: &str| tokenizer.encode(text, Special::Plain).unwrap();
        let (quiet, loud, longest) = match self {
            Self::Text(text) if text.is_empty() => return Vec::new(),
            Self::Text(text) => (String::new(), text, usize::MAX),
            Self::Prompt(prompt, completion) if prompt.is_empty() && completion.is_empty() => {
                return Vec::new();
            }
            Self::Prompt(prompt, completion) => (prompt.clone(), completion, size + 1),
        };
        let mut tokens = vec![(BOS, false)];
        tokens.extend(plain(&quiet).into_iter().map(|token| (token, false)));
        tokens.extend(plain(loud).into_iter().map(|token| (token, true)));
        tokens.push((EOS, true));
        tokens.truncate(longest);
        if tokens.iter().any(|(_, counts)| *counts) { tokens } else { Vec::new() }
    }
}

fn document() -> impl Strategy<Value = Document> {
    prop_oneof![
        "[xyz]{0,25}".prop_map(Document::Text),
        ("[pq]{0,12}", "[xyz]{0,8}").prop_map(|(prompt, completion)| Document::Prompt(prompt, completion)),
    ]
}

/// A row from tokens, of which the first is an input alone and the last a
/// target alone. Each comes with its place in its document.
fn row(tokens: &[(usize, u32, bool)], size: usize) -> Row {
    let length = tokens.len() - 1;
    let fill = |at: usize| if at < length { tokens[at].1 } else { PAD };
    let target = |at: usize| match tokens.get(at + 1) {
        Some(&(_, token, true)) => i64::from(token),
        _ => IGNORED,
    };
    Row {
        inputs: (0..size).map(fill).collect(),
        targets: (0..size).map(target).collect(),
        starts: (0..length).filter(|&at| tokens[at].0 == 0).collect(),
        length,
        pair: None,
    }
}

/// All rows, as one would make them with everything in memory.
fn expected(documents: &[Document], settings: &DataSettings, epochs: u64) -> Vec<Row> {
    let size = settings.config.max_seq_len;
    let shuffle = match settings.config.shuffle {
        true => Shuffle::EachEpoch { seed: settings.seed },
        false => Shuffle::Never,
    };
    let order = Order::new(documents.len(), shuffle);
    let mut pieces: Vec<Vec<(usize, u32, bool)>> = Vec::new();
    for epoch in 0..epochs {
        for place in 0..documents.len() as u64 {
            let tokens = documents[order.at(epoch, place) as usize].tokens(size);
            pieces.push(
                tokens.into_iter().enumerate().map(|(at, (token, counts))| (at, token, counts)).collect(),
            );
        }
    }
    if settings.config.packing.is_packed() {
        pieces = vec![pieces.concat()];
    }
    let mut rows = Vec::new();
    for piece in pieces {
        let mut rest = &piece[..];
        while rest.len() > 1 {
            rows.push(row(&rest[..rest.len().min(size + 1)], size));
            rest = &rest[(rest.len() - 1).min(size)..];
        }
    }
    rows
}

/// The rows of a rank: of each of `micro` parts of a batch, its share.
fn own_rows(rows: usize, micro: usize, ranks: usize, rank: usize) -> Vec<Range<usize>> {
    let cut = |range: &Range<usize>, parts: usize, part: usize| {
        let at = |part: usize| range.start + range.len() * part / parts;
        at(part)..at(part + 1)
    };
    (0..micro).map(|part| cut(&cut(&(0..rows), micro, part), ranks, rank)).collect()
}

/// How some ranks go through the data until they are restarted as others.
#[derive(Clone, Debug)]
struct Stage {
    ranks: usize,
    rows: usize,
    micro: usize,
    batches: usize,
    /// Whether ranks know the lengths of documents beforehand.
    counted: bool,
}

fn stages() -> impl Strategy<Value = Vec<Stage>> {
    let stage = (1..=5_usize, 1..=7_usize, 1..=3_usize, 1..=4_usize, any::<bool>());
    let stage = stage.prop_map(|(ranks, rows, micro, batches, counted)| Stage {
        ranks,
        rows,
        micro,
        batches,
        counted,
    });
    prop::collection::vec(stage, 1..5)
}

/// All rows that ranks are given, restarted as stages say; the last stage
/// continues to the end.
fn run(settings: &DataSettings, stages: &[Stage]) -> (Vec<Row>, u64, DataState) {
    let (mut rows, mut targets) = (Vec::new(), 0);
    let mut state: Option<DataState> = None;
    for (number, stage) in stages.iter().enumerate() {
        let mut loaders: Vec<Loader> =
            (0..stage.ranks).map(|_| Loader::new(settings.clone()).unwrap()).collect();
        for loader in &mut loaders {
            if let Some(state) = &state {
                // As it is when it has been in a checkpoint.
                let saved = serde_json::to_string(state).unwrap();
                loader.restore(&serde_json::from_str(&saved).unwrap()).unwrap();
            }
            if stage.counted {
                loader.count_epoch(&mut |_| {}).unwrap();
            }
        }
        let last = number + 1 == stages.len();
        for _ in 0..if last { usize::MAX } else { stage.batches } {
            let mut whole: Vec<Option<Row>> = vec![None; stage.rows];
            let mut real = None;
            for (rank, loader) in loaders.iter_mut().enumerate() {
                let own = own_rows(stage.rows, stage.micro, stage.ranks, rank);
                let batch = loader.next_batch(stage.rows, &own).unwrap();
                let before = *real.get_or_insert(batch.as_ref().map(|batch| batch.real_rows));
                assert_eq!(before, batch.as_ref().map(|batch| batch.real_rows));
                let Some(batch) = batch else { continue };
                assert_eq!(batch.first_row, rows.len() as u64);
                assert_eq!(batch.own_targets, batch.rows.iter().map(Row::target_count).sum::<u64>());
                targets += batch.own_targets;
                let places: Vec<usize> = own.into_iter().flatten().collect();
                assert_eq!(places.len(), batch.rows.len());
                for (place, row) in places.into_iter().zip(batch.rows) {
                    assert!(whole[place].replace(row).is_none());
                }
            }
            let states: Vec<DataState> = loaders.iter().map(Loader::state).collect();
            assert!(states.iter().all(|state| *state == states[0]));
            state = Some(states[0].clone());
            let Some(real) = real.flatten() else { break };
            for (place, row) in whole.into_iter().enumerate() {
                let row = row.unwrap();
                match place < real {
                    true => rows.push(row),
                    false => assert_eq!(
                        (row.length, row.target_count(), row.inputs.len()),
                        (0, 0, rows[0].inputs.len())
                    ),
                }
            }
        }
    }
    (rows, targets, state.unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn rows_do_not_depend_on_ranks_and_restarts(
        documents in prop::collection::vec(document(), 1..12),
        files in 1..4_usize,
        size in 1..14_usize,
        packed in any::<bool>(),
        shuffle in any::<bool>(),
        epochs in 1..4_u64,
        stages in stages(),
    ) {
        let per_file = documents.len().div_ceil(files);
        let texts: Vec<(String, Vec<u8>)> = documents
            .chunks(per_file)
            .enumerate()
            .map(|(at, part)| (format!("{at}.jsonl"), part.iter().map(Document::line).collect::<String>().into()))
            .collect();
        let texts: Vec<(&str, &[u8])> = texts.iter().map(|(name, text)| (name.as_str(), &text[..])).collect();
        let folder = folder(&texts);
        let mut settings = settings(&folder, json!({"max_seq_len": size, "packing": packed, "shuffle": shuffle}));
        settings.epochs = Epochs::Times(epochs);
        let tokens: Vec<Vec<(u32, bool)>> = documents.iter().map(|document| document.tokens(size)).collect();
        prop_assume!(tokens.iter().any(|tokens| !tokens.is_empty()));

        let expected = expected(&documents, &settings, epochs);
        let (found, targets, state) = run(&settings, &stages);
        prop_assert_eq!(&found, &expected);

        // Every token that counts is a target once in each epoch.
        let counting = tokens.concat().iter().filter(|(_, counts)| *counts).count() as u64;
        prop_assert_eq!(targets, counting * epochs);
        let mut loader = Loader::new(settings.clone()).unwrap();
        let count = loader.count_epoch(&mut |_| {}).unwrap();
        prop_assert_eq!(count.targets, counting);
        prop_assert_eq!(count.tokens, tokens.concat().len() as u64);
        prop_assert_eq!(count.documents, documents.len() as u64);
        prop_assert_eq!(count.rows_in(epochs), expected.len() as u64);
        prop_assert_eq!(count.rows_in(1), count.rows);
        prop_assert_eq!(count.dropped.total(), tokens.iter().filter(|tokens| tokens.is_empty()).count() as u64);

        // What was said on the way is what was counted beforehand.
        prop_assert_eq!(state.position.rows, expected.len() as u64);
        let inputs: usize = expected.iter().map(|row| row.length).sum();
        prop_assert_eq!(state.position.tokens, inputs as u64);
        prop_assert_eq!(state.position.documents, count.documents * epochs);
        prop_assert_eq!(state.position.dropped.total(), count.dropped.total() * epochs);
        prop_assert_eq!(state.position.truncated, count.truncated * epochs);
    }

    /// Without an end, the stream continues as with more epochs than are asked
    /// for.
    #[test]
    fn an_endless_stream_equals_many_epochs(
        documents in prop::collection::vec("[xyz]{1,9}", 1..5), packed in any::<bool>(), size in 1..7_usize,
    ) {
        let documents: Vec<Document> = documents.into_iter().map(Document::Text).collect();
        let text: String = documents.iter().map(Document::line).collect();
        let folder = folder(&[("x.jsonl", text.as_bytes())]);
        let mut settings = settings(&folder, json!({"max_seq_len": size, "packing": packed}));
        settings.epochs = Epochs::Endless;
        let expected = expected(&documents, &settings, 30);
        let mut loader = Loader::new(settings).unwrap();
        for row in expected.iter().take(expected.len() - 1) {
            prop_assert_eq!(&loader.next_batch(1, &[0..1]).unwrap().unwrap().rows[0], row);
        }
    }
}
