//! The forward pass with and without a cache.

use serde_json::json;
use weightloom_nn::{Cache, ForwardArgs, Input, Model, Sequence};

use crate::tiny::{bits, config_with, decoder, logits, parts, to_vec};

const TOKENS: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];

#[test]
fn logits_have_the_right_shape_and_depend_on_earlier_tokens_only() {
    let decoder = decoder();
    let all = logits(&decoder, &[&TOKENS], None);
    assert_eq!(all.len(), TOKENS.len() * 29);
    assert!(all.iter().all(|logit| logit.is_finite()));
    let mut changed = TOKENS;
    changed[4] = 6;
    let other = logits(&decoder, &[&changed], None);
    assert_eq!(bits(&all[..4 * 29]), bits(&other[..4 * 29]), "attention is causal");
    for position in 4..TOKENS.len() {
        let row = position * 29..(position + 1) * 29;
        assert_ne!(bits(&all[row.clone()]), bits(&other[row]), "position {position} sees position 4");
    }
}

#[test]
fn a_cache_gives_the_same_bits_as_one_pass() {
    for changes in [
        json!({}),
        json!({"positions": "learned"}),
        json!({"attention": {"heads": 4, "kv_heads": 1, "width": 4, "window": {"size": 3}}}),
        json!({"residual": "around", "norm": {"kind": "layer", "eps": 1e-5}}),
        json!({"experts": {"count": 4, "chosen": 2, "inner": 8}}),
    ] {
        let decoder = parts(config_with(&changes)).build().unwrap();
        let whole = logits(&decoder, &[&TOKENS], None);
        // A prompt at once, then two tokens, then one at a time.
        let mut cache = Cache::new(1, 1);
        let mut stepwise = Vec::new();
        for chunk in [&TOKENS[..3], &TOKENS[3..5], &TOKENS[5..6], &TOKENS[6..]] {
            let input = Input::Tokens(decoder.tokens(&[chunk]).unwrap());
            let args = ForwardArgs { cache: Some(&mut cache), ..ForwardArgs::default() };
            let hidden = decoder.forward(input, args).unwrap();
            stepwise.extend(to_vec(&decoder.logits(&hidden, None).unwrap()));
        }
        assert_eq!(cache.lengths(), [TOKENS.len()]);
        assert_eq!(bits(&whole), bits(&stepwise), "{changes}");
    }
}

#[test]
fn a_truncated_and_repeated_cache_continues_from_the_shared_prefix() {
    let decoder = decoder();
    let mut cache = Cache::new(1, 16);
    let input = Input::Tokens(decoder.tokens(&[&TOKENS[..5]]).unwrap());
    decoder.forward(input, ForwardArgs { cache: Some(&mut cache), ..ForwardArgs::default() }).unwrap();
    cache.truncate(3);
    let mut cache = cache.repeated(2).unwrap();
    let input = Input::Tokens(decoder.tokens(&[&[8], &[20]]).unwrap());
    let args = ForwardArgs { cache: Some(&mut cache), ..ForwardArgs::default() };
    let hidden = decoder.forward(input, args).unwrap();
    let found = to_vec(&decoder.logits(&hidden, None).unwrap());
    for (row, next) in [8, 20].into_iter().enumerate() {
        let tokens = [TOKENS[0], TOKENS[1], TOKENS[2], next];
        let expected = logits(&decoder, &[&tokens], None);
        assert_eq!(bits(&found[row * 29..(row + 1) * 29]), bits(&expected[3 * 29..]), "row {row}");
    }
}

#[test]
fn padding_and_batching_do_not_change_a_row() {
    let decoder = decoder();
    let rows: [&[u32]; 3] = [&TOKENS, &TOKENS[..2], &[28, 0, 11, 6]];
    let lengths = rows.map(<[u32]>::len);
    let input = Input::Tokens(decoder.tokens(&rows).unwrap());
    let args = ForwardArgs { lengths: Some(&lengths), ..ForwardArgs::default() };
    let hidden = decoder.forward(input, args).unwrap();
    for (row, tokens) in rows.iter().enumerate() {
        let positions: Vec<(usize, usize)> = (0..tokens.len()).map(|position| (row, position)).collect();
        let selected = decoder.select_positions(&hidden, &positions).unwrap();
        let found = to_vec(&decoder.logits(&selected, None).unwrap());
        assert_eq!(bits(&found), bits(&logits(&decoder, &[tokens], None)), "row {row}");
    }
}

#[test]
fn a_prefix_tree_computes_shared_prefixes_once_with_the_same_bits() {
    let decoder = decoder();
    let (mut long, mut other) = (TOKENS.to_vec(), TOKENS.to_vec());
    long.push(7);
    other.extend([8, 9]);
    let sequences = [&TOKENS[..], &long, &other].map(|tokens| Sequence { tokens, adapter: 0 });
    let output = decoder.forward_sequences(&sequences, &[None]).unwrap();
    assert_eq!(output.token_count(), TOKENS.len() + 1 + 2);
    for (number, sequence) in sequences.iter().enumerate() {
        let positions: Vec<(usize, usize)> = (0..sequence.tokens.len()).map(|at| (number, at)).collect();
        let found = to_vec(&output.logits(&positions).unwrap());
        assert_eq!(bits(&found), bits(&logits(&decoder, &[sequence.tokens], None)), "sequence {number}");
    }
}

/// Tokens of documents in one row attend to their own document, from position 0.
#[test]
fn packed_documents_have_the_bits_of_documents_alone() {
    let documents: [&[u32]; 4] = [&TOKENS, &[8], &[20, 3, 3, 7, 1], &TOKENS[..2]];
    let row: Vec<u32> = documents.concat();
    let starts: Vec<i64> = [0i64; 7].into_iter().chain([7]).chain([8; 5]).chain([13; 2]).collect();
    for changes in [
        json!({}),
        json!({"positions": "learned"}),
        json!({"positions": {"rope": {"theta": 100.0, "turned": 2}}}),
        json!({"attention": {"heads": 4, "kv_heads": 1, "width": 4, "window": {"size": 3}}}),
        json!({"residual": "around", "norm": {"kind": "layer", "eps": 1e-5}}),
        json!({"experts": {"count": 4, "chosen": 2, "inner": 8}}),
    ] {
        let decoder = parts(config_with(&changes)).build().unwrap();
        let packed = |starts: Option<&[i64]>| {
            let input = Input::Tokens(decoder.tokens(&[&row]).unwrap());
            let documents = starts.map(|starts| decoder.batch(starts, 1).unwrap());
            let args = ForwardArgs { documents, ..ForwardArgs::default() };
            to_vec(&decoder.logits(&decoder.forward(input, args).unwrap(), None).unwrap())
        };
        let found = packed(Some(&starts));
        let alone: Vec<f32> = documents.iter().flat_map(|tokens| logits(&decoder, &[tokens], None)).collect();
        assert_eq!(bits(&found), bits(&alone), "{changes}");
        let mixed = packed(None);
        assert_eq!(bits(&mixed[..7 * 29]), bits(&alone[..7 * 29]), "{changes}: the first document");
        assert_ne!(bits(&mixed[7 * 29..]), bits(&alone[7 * 29..]), "{changes}: later ones see the first");
    }
}

#[test]
fn wrong_document_starts_are_refused() {
    let decoder = decoder();
    let forward = |starts: &[i64], cache: Option<&mut Cache>| {
        let input = Input::Tokens(decoder.tokens(&[&TOKENS]).unwrap());
        let documents = Some(decoder.batch(starts, 1).unwrap());
        decoder.forward(input, ForwardArgs { documents, cache, ..ForwardArgs::default() }).unwrap_err()
    };
    let error = forward(&[0; 3], None).to_string();
    assert_eq!(error, "cannot pack rows by document starts of 1x3 i64: expected 1x7 i64");
    let error = forward(&[0; 7], Some(&mut Cache::new(1, 8))).to_string();
    assert_eq!(error, "cannot append packed rows to a cache");
    assert!(forward(&[0, 0, 1, 1, 1, 1, 1], None).to_string().contains("index 1 at position 2"));
}
