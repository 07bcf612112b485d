//! Rows of long texts, best fit and mixtures: the same on all ranks and after a
//! resume, with every token a target once.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::stage::{PAD, all_rows, folder, inside, settings, walk};
use crate::data::error::DataError;
use crate::data::{DataSettings, Epochs, IGNORED, Loader, Row};

/// Lines that all differ.
fn long_text(lines: usize) -> String {
    (0..lines).map(|line| format!("line {line} of a text\n")).collect()
}

fn check_ranks_and_resume(settings: &DataSettings) -> Vec<Row> {
    let (rows, middle) = walk(settings, None, 1);
    assert!(rows.len() > 16, "{} rows", rows.len());
    assert_eq!(walk(settings, None, 2).0, rows);
    assert_eq!(walk(settings, None, 8).0, rows);
    let (rest, _) = walk(settings, Some(&middle), 2);
    let compared = rest.len().min(rows.len() - 16);
    assert!(compared > 0);
    assert_eq!(rest[..compared], rows[16..16 + compared]);
    rows
}

/// How often each token is a target.
fn target_counts(rows: &[Row]) -> HashMap<i64, usize> {
    let mut counts = HashMap::new();
    for target in rows.iter().flat_map(|row| &row.targets).filter(|&&target| target != IGNORED) {
        *counts.entry(*target).or_default() += 1;
    }
    counts
}

#[test]
fn windows_of_a_long_text_are_shuffled() {
    let text = long_text(7000);
    let folder = folder(&[("long.txt", text.as_bytes()), ("short.txt", b"a short text")]);
    let with = |changes: Value| {
        let mut all = json!({"max_seq_len": 500});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        settings(&folder, all)
    };
    let mut shuffled = check_ranks_and_resume(&with(json!({})));
    // The last batch is filled up.
    shuffled.retain(|row| row.length > 0);
    let in_order = all_rows(&mut Loader::new(with(json!({"shuffle_windows": false}))).unwrap());

    // Nearly all rows are windows of the text without a gap, and neighbours in the
    // text are not neighbours in the epoch.
    let starts: Vec<usize> = shuffled.iter().map(|row| row.starts.len()).collect();
    let whole = starts.iter().filter(|&&starts| starts == 0).count();
    assert!(whole * 10 > shuffled.len() * 8, "{whole} of {}", shuffled.len());
    let tokenizer = super::stage::tokenizer(super::stage::Around::Nothing);
    let place = |row: &Row| {
        let pieces = row.inputs.iter().map(|&token| tokenizer.token(token).unwrap());
        let inputs: String = pieces.collect();
        text.find(&inputs).map(|start| (start, start + inputs.len()))
    };
    let follows = |rows: &[Row]| {
        let places: Vec<Option<(usize, usize)>> = rows.iter().map(place).collect();
        let follow = |pair: &[Option<(usize, usize)>]| matches!(pair, [Some((_, end)), Some((start, _))] if end == start);
        places.windows(2).filter(|pair| follow(pair)).count()
    };
    assert!(follows(&in_order) > in_order.len() * 8 / 10);
    assert!(follows(&shuffled) < shuffled.len() / 20);

    // Every token is a target once, but for the first of each part.
    let (found, expected) = (target_counts(&shuffled), target_counts(&in_order));
    let [all, more] = [&found, &expected].map(|counts| counts.values().sum::<usize>());
    assert!(all <= more && more - all <= 4, "{all} and {more}");
    for (token, times) in found {
        assert!(expected[&token] - times <= 4);
    }
    // The documents are counted as they are in the files.
    let mut loader = Loader::new(with(json!({}))).unwrap();
    let summary = loader.summary(&mut |_| {}).unwrap();
    assert_eq!((summary.documents, summary.read, summary.used), (2, 2, 2));
    assert_eq!(loader.size().unwrap().documents, 2);
    assert_eq!(summary.lengths.longest, summary.tokens - 14);
    let packing = summary.packing.unwrap();
    assert!(packing.filled > 0.99 && packing.cut == 0.5, "{packing:?}");
    // Counting the rows is exact, over epochs that end in rows with padding.
    let epochs = DataSettings { epochs: Epochs::Times(3), ..with(json!({})) };
    let mut loader = Loader::new(epochs).unwrap();
    let count = loader.count_epoch(&mut |_| {}).unwrap();
    assert_eq!((count.rows, count.documents), (shuffled.len() as u64, 2));
    assert_eq!(all_rows(&mut loader).len() as u64, count.rows_in(3));
    assert_eq!(loader.position().documents - loader.position().parts, 6);
    assert!(summary.is_complete());
    // Another epoch has another order.
    let mut again = Loader::new(DataSettings { epochs: Epochs::Times(2), ..with(json!({})) }).unwrap();
    let both = all_rows(&mut again);
    assert_ne!(both[..shuffled.len()], both[shuffled.len()..2 * shuffled.len()]);
}

#[test]
fn best_fit_cuts_no_document_that_fits() {
    let texts: Vec<String> = (0..400).map(|number| "xyz".repeat(1 + number * 7 % 11)).collect();
    let lines: String = texts.iter().map(|text| json!({"text": text}).to_string() + "\n").collect();
    let folder = folder(&[("x.jsonl", lines.as_bytes())]);
    let with = |packing: Value| settings(&folder, json!({"max_seq_len": 40, "packing": packing}));
    let best = check_ranks_and_resume(&DataSettings { epochs: Epochs::Times(2), ..with(json!("best_fit")) });
    // Each document starts in a row and ends in it.
    let summary = |packing: Value| {
        let mut loader = Loader::new(with(packing)).unwrap();
        loader.summary(&mut |_| {}).unwrap()
    };
    let [fit, packed, padded] = [json!("best_fit"), json!(true), json!(false)].map(summary);
    let [fit_share, packed_share, padded_share] =
        [&fit, &packed, &padded].map(|summary| summary.packing.unwrap());
    assert_eq!((fit_share.cut, padded_share.cut), (0.0, 0.0));
    assert!(packed_share.cut > 0.3 && packed_share.filled > 0.99, "{packed_share:?}");
    assert!(fit_share.filled > 0.95 && padded_share.filled < 0.6, "{fit_share:?} {padded_share:?}");
    assert_eq!(best.iter().filter(|row| row.length > 0).count() as u64, 2 * fit.rows.unwrap());
    let started: usize = best.iter().map(|row| row.starts.len()).sum();
    assert_eq!(started, 800);
    // The figure is what the rows are.
    let filled: usize = best.iter().map(|row| row.length).sum();
    let share = filled as f64 / (2 * fit.rows.unwrap() * 40) as f64;
    assert!((share - fit_share.filled).abs() < 1e-12);
    assert!(best.iter().all(|row| row.inputs[row.length..].iter().all(|&token| token == PAD)));
    // All tokens but the first of a document are targets.
    let targets: usize = best.iter().map(|row| row.target_count() as usize).sum();
    assert_eq!(targets as u64, 2 * fit.trained_tokens);
}

#[test]
fn a_mixture_draws_sets_by_weight_and_resumes() {
    let lines = |text: &str, count: usize| -> String {
        (0..count).map(|_| json!({"text": text}).to_string() + "\n").collect()
    };
    let folder =
        folder(&[("a.jsonl", lines("aaaaaaa", 50).as_bytes()), ("b.jsonl", lines("xxxxxxx", 20).as_bytes())]);
    let mixture = |weights: [f64; 2], epochs: [Option<u64>; 2]| {
        let set = |at: usize, name: &str| json!({"paths": [inside(&folder, name)], "weight": weights[at], "epochs": epochs[at]});
        json!({"paths": [], "mixture": [set(0, "a.jsonl"), set(1, "b.jsonl")], "max_seq_len": 9})
    };
    let share = |rows: &[Row]| {
        let tokens = |char: char| {
            let token = super::stage::tokenizer(super::stage::Around::Nothing)
                .encode(&char.to_string(), weightloom_hub::text::Special::Plain)
                .unwrap()[0];
            rows.iter().flat_map(|row| &row.inputs).filter(|&&input| input == token).count() as f64
        };
        tokens('a') / (tokens('a') + tokens('x'))
    };
    for packing in [json!(true), json!(false), json!("best_fit")] {
        let mut changes = mixture([3.0, 1.0], [None, None]);
        changes["packing"] = packing;
        let endless = DataSettings { epochs: Epochs::Endless, ..settings(&folder, changes) };
        let rows = check_ranks_and_resume(&endless);
        assert!((share(&rows) - 0.75).abs() < 0.02, "{}", share(&rows));
    }
    // With epochs, the mixture ends, and every set is passed as often.
    let finite = settings(&folder, mixture([1.0, 1.0], [Some(1), Some(3)]));
    let rows = check_ranks_and_resume(&finite);
    assert!((share(&rows) - 50.0 / 110.0).abs() < 0.01);
    let mut loader = Loader::new(finite.clone()).unwrap();
    let count = loader.count_epoch(&mut |_| {}).unwrap();
    assert_eq!(all_rows(&mut loader).len() as u64, count.rows_in(1));
    // Other weights are another stream.
    let other = Loader::new(settings(&folder, mixture([1.0, 2.0], [Some(1), Some(3)]))).unwrap();
    let mut first = Loader::new(finite).unwrap();
    match first.restore(&other.state()) {
        Err(DataError::OtherSetting { setting, .. }) => assert_eq!(setting, "data.mixture"),
        other => panic!("{other:?}"),
    }
}
