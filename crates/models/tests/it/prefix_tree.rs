//! Many texts under many changes at once: each text gets the bits that it gets
//! alone, in every family, with every kind of adapter.

use crate::fixture::{Fixture, Silent, apart, json};
use weightloom_checkpoint::Source;
use weightloom_gang::{GangOptions, GangSizes, Gangs, threads};
use weightloom_hub::{ModelLoadOptions, load_adapter};
use weightloom_nn::{
    Adapter, AdapterRows, AdapterSpec, FinishReason, ForwardArgs, GenerateRequest, Generation, Input, Model,
    NnError, Sequence, group_by_adapter,
};

const FAMILIES: &[&str] = &[
    "llama",
    "llama_yarn",
    "llama_bias",
    "mistral",
    "qwen2_window",
    "qwen3",
    "qwen3_moe",
    "gpt2",
    "gemma",
    "gemma2",
    "mixtral",
    "olmo2",
    "phi",
    "gemma3_text",
    "phi3",
    "deepseek_v2",
    "deepseek_v3",
    "llama4_text",
];

const ADAPTERS: &[&str] =
    &["lora_all", "lora_embedding", "lora_bias", "lora_gpt2", "dora", "modules_to_save", "saved_embedding"];

fn open(case: &str) -> Option<(Fixture, Box<dyn Model>)> {
    // Some families are described by files that other tests read.
    let folder = Fixture::folder_of_all().join(case);
    let serde_json::Value::Object(config) = json(&folder.join("config.json")) else { panic!("no map") };
    crate::fixture::families().of_config(&config).ok()?;
    let fixture = Fixture::open(case);
    let decoder = fixture.load(&ModelLoadOptions::default()).model;
    Some((fixture, decoder))
}

/// Logits of all places of a text that is read alone, as training reads it.
fn alone(decoder: &dyn Model, tokens: &[u32], change: Option<AdapterSpec<'_>>) -> Vec<f32> {
    let input = Input::Tokens(decoder.tokens(&[tokens]).unwrap());
    let hidden =
        decoder.forward(input, ForwardArgs { adapters: change.into(), ..ForwardArgs::default() }).unwrap();
    decoder.logits(&hidden, change.into()).unwrap().full_tensor().unwrap().to_vec().unwrap()
}

/// The same of each of some texts that are read together.
fn together(
    decoder: &dyn Model,
    texts: &[Sequence<'_>],
    changes: &[Option<AdapterSpec<'_>>],
) -> Vec<Vec<f32>> {
    let reading = decoder.forward_sequences(texts, changes).unwrap();
    let logits = |(number, text): (usize, &Sequence<'_>)| {
        let places: Vec<(usize, usize)> = (0..text.tokens.len()).map(|place| (number, place)).collect();
        reading.logits(&places).unwrap().full_tensor().unwrap().to_vec().unwrap()
    };
    texts.iter().enumerate().map(logits).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Texts of many lengths, of which many begin alike.
fn texts(vocabulary: usize, count: usize) -> Vec<Vec<u32>> {
    let token = |text: usize, at: usize| {
        let kind = if at < 9 { text % 3 } else { text };
        ((kind * 7919 + at * 104_729 + 17) % vocabulary) as u32
    };
    (0..count).map(|text| (0..1 + (text * 13) % 29).map(|at| token(text, at)).collect()).collect()
}

#[test]
fn a_text_among_others_gets_the_bits_that_it_gets_alone_in_every_family() {
    let mut opened = 0;
    for case in FAMILIES {
        let Some((_, decoder)) = open(case) else { continue };
        opened += 1;
        let texts = texts(decoder.definition().vocabulary(), 32);
        let given: Vec<Sequence<'_>> = texts.iter().map(|tokens| Sequence { tokens, adapter: 0 }).collect();
        let found = together(&*decoder, &given, &[None]);
        let mut shuffled: Vec<usize> = (0..given.len()).rev().collect();
        shuffled.rotate_left(5);
        let turned: Vec<Sequence<'_>> = shuffled.iter().map(|&text| given[text]).collect();
        let found_turned = together(&*decoder, &turned, &[None]);
        for (text, tokens) in texts.iter().enumerate() {
            let expected = alone(&*decoder, tokens, None);
            assert!(bits(&found[text]) == bits(&expected), "{case}: text {text} of 32");
            let place = shuffled.iter().position(|&other| other == text).unwrap();
            assert!(bits(&found_turned[place]) == bits(&expected), "{case}: text {text} in another order");
            let one = together(&*decoder, &given[text..=text], &[None]);
            assert!(bits(&one[0]) == bits(&expected), "{case}: text {text} by itself");
        }
    }
    assert!(opened >= 8, "only {opened} families could be opened");
}

#[test]
fn what_texts_share_is_read_once() {
    let (_, decoder) = open("llama").unwrap();
    let long: Vec<u32> = (0..20).collect();
    let other: Vec<u32> = (0..15).chain([3, 3]).collect();
    let given = [&long[..], &other, &long].map(|tokens| Sequence { tokens, adapter: 0 });
    assert_eq!(decoder.forward_sequences(&given, &[None]).unwrap().token_count(), 22);
}

fn base_and_adapter(name: &str) -> (Box<dyn Model>, Adapter) {
    let folder = Fixture::folder_of_all().join("adapters").join(name);
    let config = json(&folder.join("adapter_config.json"));
    let base = Fixture::open(config["base_model_name_or_path"].as_str().unwrap());
    let decoder = base.load(&ModelLoadOptions::default()).model;
    let source = Source::open(folder).unwrap();
    let adapter = load_adapter(&source, &*decoder, &*base.family, &base.config, &Silent).unwrap();
    (decoder, adapter)
}

#[test]
fn texts_under_different_changes_get_the_bits_that_they_get_alone() {
    for name in ADAPTERS {
        let (decoder, adapter) = base_and_adapter(name);
        let changes = [
            None,
            Some((&adapter, 1.0)),
            Some((&adapter, 0.5)),
            Some((&adapter, -1.25)),
            Some((&adapter, 0.0)),
        ];
        let texts = texts(decoder.definition().vocabulary(), 32);
        let given: Vec<Sequence<'_>> = texts
            .iter()
            .enumerate()
            .map(|(text, tokens)| Sequence { tokens, adapter: text * 3 % 5 })
            .collect();
        let found = together(&*decoder, &given, &changes);
        for (text, &Sequence { tokens, adapter: change }) in given.iter().enumerate() {
            let expected = alone(&*decoder, tokens, changes[change]);
            assert!(bits(&found[text]) == bits(&expected), "{name}: text {text} with change {change}");
        }
    }
}

#[test]
fn rows_of_one_batch_can_have_different_changes() {
    for name in ADAPTERS {
        let (decoder, adapter) = base_and_adapter(name);
        let all = [None, Some((&adapter, 1.0)), Some((&adapter, 1.0)), Some((&adapter, 0.25)), None];
        for rows in [1, 32] {
            let texts: Vec<Vec<u32>> =
                (0..rows).map(|row| (0..9).map(|at| (row * 11 + at * 5) as u32 % 40).collect()).collect();
            let changes: Vec<Option<AdapterSpec<'_>>> =
                (0..rows).map(|row| all[row * all.len() / rows.max(2)]).collect();
            let groups: Vec<AdapterRows<'_>> = group_by_adapter(changes.iter().copied());
            let given: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
            let input = Input::Tokens(decoder.tokens(&given).unwrap());
            let args = ForwardArgs { adapters: (&groups[..]).into(), ..ForwardArgs::default() };
            let hidden = decoder.forward(input, args).unwrap();
            let logits = decoder.logits(&hidden, (&groups[..]).into()).unwrap();
            let found: Vec<f32> = logits.full_tensor().unwrap().to_vec().unwrap();
            for (row, found) in found.chunks_exact(found.len() / rows).enumerate() {
                let expected = alone(&*decoder, &texts[row], changes[row]);
                assert!(bits(found) == bits(&expected), "{name}: row {row} of {rows}");
            }
        }
    }
}

/// Rows end at different times and leave the batch; what the others write does
/// not depend on it.
#[test]
fn rows_that_are_written_together_write_what_they_write_alone() {
    for name in ["lora_all", "lora_gpt2", "dora", "saved_embedding"] {
        let (decoder, adapter) = base_and_adapter(name);
        let all = [None, Some((&adapter, 1.0)), Some((&adapter, 0.5)), None];
        let prompts = texts(decoder.definition().vocabulary(), 12);
        let changes: Vec<Option<AdapterSpec<'_>>> = (0..12).map(|row| all[row / 3]).collect();
        // Whatever comes often ends rows, some early.
        let request = |prompts: &[Vec<u32>], stop: &[u32]| GenerateRequest {
            prompts: prompts.to_vec(),
            max_new_tokens: 20,
            stop_tokens: stop.to_vec(),
            top_logprobs: Some(3),
            ..GenerateRequest::default()
        };
        let free = Generation::new(
            &*decoder,
            &group_by_adapter(changes.iter().copied())[..],
            request(&prompts, &[]),
        )
        .unwrap()
        .run()
        .unwrap();
        let stop: Vec<u32> = free.iter().step_by(2).enumerate().map(|(at, row)| row.tokens[at * 3]).collect();
        let groups = group_by_adapter(changes.iter().copied());
        let mut found: Vec<Vec<(u32, u64, Option<FinishReason>)>> = vec![Vec::new(); 12];
        let mut writing = Generation::new(&*decoder, &groups[..], request(&prompts, &stop)).unwrap();
        while !writing.is_done() {
            for token in writing.step().unwrap() {
                let bits = token.logprobs.unwrap().chosen.to_bits();
                found[token.row].push((token.id, bits, token.finish));
            }
        }
        let lengths: std::collections::BTreeSet<usize> = found.iter().map(Vec::len).collect();
        assert!(lengths.len() > 2, "{name}: rows end at the same time");
        for (row, found) in found.iter().enumerate() {
            let one = request(&prompts[row..=row], &stop);
            let mut alone = Generation::new(&*decoder, changes[row], one).unwrap();
            let mut expected = Vec::new();
            while !alone.is_done() {
                for token in alone.step().unwrap() {
                    expected.push((token.id, token.logprobs.unwrap().chosen.to_bits(), token.finish));
                }
            }
            assert_eq!(found, &expected, "{name}: row {row}");
        }
    }
}

/// Learned positions end. A row that has used all of them does not hinder one
/// that has not.
#[test]
fn a_row_without_positions_left_ends_and_the_others_go_on() {
    let (_, decoder) = open("gpt2").unwrap();
    let most = decoder.definition().context_length().unwrap();
    let prompts = vec![vec![1; most - 2], vec![2; most - 9], vec![3; 4], vec![4; 5], vec![5; 6], vec![6; 7]];
    let request = GenerateRequest { prompts, max_new_tokens: 12, ..GenerateRequest::default() };
    let rows = Generation::new(&*decoder, None, request).unwrap().run().unwrap();
    let lengths: Vec<usize> = rows.iter().map(|row| row.tokens.len()).collect();
    assert_eq!(lengths, [2, 9, 12, 12, 12, 12]);
}

#[test]
fn shared_models_read_many_texts_as_well() {
    for name in ["lora_all", "dora", "modules_to_save"] {
        let (decoder, adapter) = base_and_adapter(name);
        let texts = texts(decoder.definition().vocabulary(), 8);
        fn changes(adapter: &Adapter) -> [Option<AdapterSpec<'_>>; 3] {
            [None, Some((adapter, 1.0)), Some((adapter, 0.5))]
        }
        let given: Vec<Sequence<'_>> =
            texts.iter().enumerate().map(|(text, tokens)| Sequence { tokens, adapter: text % 3 }).collect();
        let expected = together(&*decoder, &given, &changes(&adapter));
        let folder = Fixture::folder_of_all().join("adapters").join(name);
        let config = json(&folder.join("adapter_config.json"));
        let base = Fixture::open(config["base_model_name_or_path"].as_str().unwrap());
        for sizes in [GangSizes { tp: 2, ..GangSizes::default() }, GangSizes::default()] {
            let found = threads::run(2, GangOptions::default(), |root| {
                let gangs = Some(Gangs::new(root, &sizes).unwrap());
                let decoder = base.load(&ModelLoadOptions { gangs, ..ModelLoadOptions::default() }).model;
                let source = Source::open(&folder).unwrap();
                let adapter = load_adapter(&source, &*decoder, &*base.family, &base.config, &Silent).unwrap();
                together(&*decoder, &given, &changes(&adapter))
            });
            for found in found.unwrap() {
                for (found, expected) in found.iter().zip(&expected) {
                    // Ranks add what one rank sums in one go.
                    let apart = apart(found, expected);
                    assert!(apart <= 1e-4, "{name} with {sizes:?} is {apart} apart");
                }
            }
        }
    }
}

#[test]
fn means_are_those_of_all_hidden_states_of_a_text() {
    let (_, decoder) = open("llama").unwrap();
    let texts = texts(decoder.definition().vocabulary(), 6);
    let given: Vec<Sequence<'_>> = texts.iter().map(|tokens| Sequence { tokens, adapter: 0 }).collect();
    let reading = decoder.forward_sequences(&given, &[None]).unwrap();
    let means: Vec<f32> = reading.mean_hidden(&[4, 1]).unwrap().full_tensor().unwrap().to_vec().unwrap();
    for (mean, text) in means.chunks_exact(decoder.definition().hidden()).zip([4, 1]) {
        let input = Input::Tokens(decoder.tokens(&[&texts[text]]).unwrap());
        let hidden: Vec<f32> =
            decoder.forward(input, ForwardArgs::default()).unwrap().full_tensor().unwrap().to_vec().unwrap();
        for (column, &mean) in mean.iter().enumerate() {
            let rows = hidden.chunks_exact(decoder.definition().hidden());
            let count = rows.len() as f64;
            let expected: f64 = rows.map(|row| f64::from(row[column])).sum::<f64>() / count;
            // Sums of at most 29 numbers of about 1 in single precision.
            assert!((f64::from(mean) - expected).abs() < 1e-5);
        }
    }
    assert_eq!(reading.mean_hidden(&[]).unwrap().shape()[..], [0, decoder.definition().hidden()]);
}

#[test]
fn what_cannot_be_read_is_refused() {
    let (_, decoder) = open("gpt2").unwrap();
    let adapter = Adapter::new();
    let read = |tokens: &[u32], change| {
        decoder.forward_sequences(&[Sequence { tokens, adapter: change }], &[None]).map(|_| ())
    };
    assert_eq!(read(&[], 0), Err(NnError::EmptyPrompt { row: 0 }));
    assert_eq!(read(&[1], 1), Err(NnError::UnknownAdapter { sequence: 0, adapter: 1, count: 1 }));
    assert!(matches!(read(&[1 << 20], 0), Err(NnError::UnknownToken { .. })));
    let most = decoder.definition().context_length().unwrap();
    assert_eq!(read(&vec![1; most + 1], 0), Err(NnError::TooLong { needed: most + 1, available: most }));
    assert_eq!(decoder.forward_sequences(&[], &[None]).map(|_| ()), Err(NnError::EmptyPrompt { row: 0 }));
    let reading = decoder.forward_sequences(&[Sequence { tokens: &[1, 2], adapter: 0 }], &[None]).unwrap();
    let unknown = |sequence, length, position| Err(NnError::UnknownPosition { sequence, length, position });
    assert_eq!(reading.logits(&[(0, 2)]).map(|_| ()), unknown(0, 2, 2));
    assert_eq!(reading.logits(&[(1, 0)]).map(|_| ()), unknown(1, 0, 0));
    let groups = [AdapterRows { rows: 3, adapter: Some((&adapter, 1.0)) }];
    let input = Input::Tokens(decoder.tokens(&[&[1, 2]]).unwrap());
    let args = ForwardArgs { adapters: (&groups[..]).into(), ..ForwardArgs::default() };
    let refused = decoder.forward(input, args).map(|_| ());
    assert_eq!(refused, Err(NnError::AdapterRows { found: 3, expected: 1 }));
}
