//! Parallel sizes are accepted exactly if all rules hold; errors suggest sizes
//! that fit.

use crate::setup::models;
use weightloom_errors::Hint;
use weightloom_gang::GangSizes;
use weightloom_nn::{AttentionConfig, DecoderConfig, ExpertsConfig, MlpConfig, PositionConfig};
use weightloom_train::config::{Accelerator, PipelineSchedule};
use weightloom_train::parallel_dims::{BatchSizes, ParallelDimError, ParallelDims};

fn decoder(heads: usize, kv_heads: usize, layers: usize) -> DecoderConfig {
    let base = models::llama();
    DecoderConfig {
        hidden: 8,
        layers,
        attention: AttentionConfig { heads, kv_heads, width: 4, ..base.attention },
        mlp: MlpConfig { inner: 8, ..base.mlp },
        ..base
    }
}

fn with_experts(mut decoder: DecoderConfig, inner: usize) -> DecoderConfig {
    decoder.experts = Some(ExpertsConfig { count: 4, chosen: 1, inner, ..ExpertsConfig::default() });
    decoder
}

fn batch(max_seq_len: usize, global_batch_size: usize, micro_batch_size: Option<usize>) -> BatchSizes {
    BatchSizes { max_seq_len, global_batch_size, micro_batch_size }
}

/// The expected errors by name, from independently written conditions. Rules that
/// involve an invalid number are not checked.
fn expected(
    accelerator: &Accelerator,
    world: usize,
    decoder: &DecoderConfig,
    batch: &BatchSizes,
) -> Vec<&'static str> {
    let Accelerator { dp_replicate, dp_shard, tp, pp, vpp, .. } = *accelerator;
    let mut errors = Vec::new();
    let mut must = |holds: bool, name: &'static str| {
        if !holds {
            errors.push(name);
        }
    };
    for size in
        [world, dp_replicate, tp, pp, vpp, batch.global_batch_size, batch.micro_batch_size.unwrap_or(1)]
    {
        must(size > 0, "zero");
    }
    must(dp_shard == -1 || dp_shard > 0, "shard");
    must(accelerator.cp == 1, "not yet");
    must(accelerator.ep == 1, "not yet");
    let mut dp = None;
    if world > 0 && dp_replicate > 0 && tp > 0 && pp > 0 {
        if dp_shard > 0 {
            must(dp_replicate * dp_shard as usize * tp * pp == world, "product");
            dp = Some(dp_replicate * dp_shard as usize);
        } else if dp_shard == -1 {
            let fits = world.is_multiple_of(dp_replicate * tp * pp);
            must(fits, "product");
            dp = fits.then(|| world / (tp * pp));
        }
    }
    if tp > 0 {
        must(tp <= decoder.attention.heads, "heads");
        must(!accelerator.sequence_parallel || batch.max_seq_len.is_multiple_of(tp), "sequence");
    }
    let learned = decoder.positions == PositionConfig::Learned;
    must(!learned || batch.max_seq_len <= decoder.max_positions, "positions");
    let interleaved = accelerator.pp_schedule == PipelineSchedule::Interleaved;
    must(vpp <= 1 || interleaved, "vpp");
    if pp > 0 && vpp > 0 {
        must(decoder.layers >= pp * vpp, "layers");
        if let Some(split) = &accelerator.layer_split {
            must(split.len() == pp * vpp, "split length");
            must(!split.contains(&0), "split nothing");
            must(split.iter().sum::<usize>() == decoder.layers, "split sum");
        }
    }
    if let Some(dp) = dp.filter(|_| batch.global_batch_size > 0) {
        let (rows, rest) = (batch.global_batch_size / dp, batch.global_batch_size % dp);
        must(rest == 0, "batch");
        let micro = batch.micro_batch_size.unwrap_or(rows);
        if rest == 0 && micro > 0 {
            must(rows.is_multiple_of(micro), "micro");
            if rows.is_multiple_of(micro) && pp > 0 {
                must(!interleaved || (rows / micro).is_multiple_of(pp), "interleaved");
            }
        }
    }
    errors
}

fn name(fault: &ParallelDimError) -> &'static str {
    match fault {
        ParallelDimError::NoRanks | ParallelDimError::Zero { .. } => "zero",
        ParallelDimError::Shard { .. } => "shard",
        ParallelDimError::NotYet { .. } => "not yet",
        ParallelDimError::Product { .. } | ParallelDimError::NothingLeft { .. } => "product",
        ParallelDimError::Heads { .. } => "heads",
        ParallelDimError::Sequence { .. } => "sequence",
        ParallelDimError::Positions { .. } => "positions",
        ParallelDimError::Layers { .. } => "layers",
        ParallelDimError::SplitLength { .. } => "split length",
        ParallelDimError::EmptyStage { .. } => "split nothing",
        ParallelDimError::SplitSum { .. } => "split sum",
        ParallelDimError::NotInterleaved { .. } => "vpp",
        ParallelDimError::Batch { .. } => "batch",
        ParallelDimError::MicroBatch { .. } => "micro",
        ParallelDimError::Interleaved { .. } => "interleaved",
        other => panic!("{other}"),
    }
}

/// Whether the outcome is what the conditions say. Gives whether it was taken.
fn check(accelerator: &Accelerator, world: usize, decoder: &DecoderConfig, batch: &BatchSizes) -> bool {
    let wanted = expected(accelerator, world, decoder, batch);
    match ParallelDims::new(accelerator, world, decoder, batch) {
        Ok(sizes) => {
            assert!(wanted.is_empty(), "{accelerator:?} {world} {batch:?}: {wanted:?}");
            assert_eq!(sizes.dp() * sizes.tp * sizes.pp, world);
            assert_eq!(sizes.micro_batches * sizes.micro_batch_size * sizes.dp(), batch.global_batch_size);
            assert_eq!(sizes.rows_per_rank * sizes.dp(), batch.global_batch_size);
            let mesh = sizes.gang_sizes().mesh(world).unwrap();
            let sizes = [sizes.pp, sizes.dp_replicate, sizes.dp_shard, sizes.tp];
            assert_eq!((0..4).map(|axis| mesh.axis_size(axis)).collect::<Vec<_>>(), sizes);
            true
        }
        Err(errors) => {
            let mut found: Vec<&str> = errors.errors.iter().map(name).collect();
            let mut wanted = wanted;
            found.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{accelerator:?} {world} {batch:?}");
            assert!(errors.errors.iter().all(|fault| fault.hint().is_some_and(|hint| !hint.is_empty())));
            false
        }
    }
}

#[test]
fn small_cases_are_taken_exactly_if_all_conditions_hold() {
    let models = [decoder(4, 2, 4), with_experts(decoder(6, 6, 6), 4), decoder(3, 1, 1)];
    let rows =
        [(4, 8, None), (4, 8, Some(2)), (6, 6, Some(1)), (5, 12, Some(3)), (4, 0, None), (4, 4, Some(0))];
    let splits = [None, Some(vec![2, 2]), Some(vec![4]), Some(vec![1, 0, 3])];
    let (mut taken, mut all) = (0, 0);
    for world in [0, 1, 2, 3, 4, 6, 8] {
        for dp_replicate in 0..3 {
            for dp_shard in [-2, -1, 0, 1, 2, 3] {
                for tp in 0..4 {
                    for pp in 0..4 {
                        for vpp in 0..3 {
                            for (index, pp_schedule) in
                                [PipelineSchedule::GPipe, PipelineSchedule::Interleaved]
                                    .into_iter()
                                    .enumerate()
                            {
                                // Choices of little influence on each other take turns.
                                let turn = world + dp_replicate + tp + pp + vpp + index;
                                let accelerator = Accelerator {
                                    dp_replicate,
                                    dp_shard,
                                    tp,
                                    pp,
                                    vpp,
                                    pp_schedule,
                                    sequence_parallel: turn % 2 == 0,
                                    layer_split: splits[turn % splits.len()].clone(),
                                    ..Accelerator::default()
                                };
                                let whole = Accelerator { layer_split: None, ..accelerator.clone() };
                                for model in &models {
                                    for (length, global, micro) in rows {
                                        let batch = batch(length, global, micro);
                                        for accelerator in [&accelerator, &whole] {
                                            all += 1;
                                            taken += usize::from(check(accelerator, world, model, &batch));
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(taken > 400 && all > 400_000, "{taken} of {all}");
}

#[test]
fn a_run_of_many_ranks_is_resolved() {
    let accelerator = Accelerator {
        dp_replicate: 2,
        tp: 2,
        pp: 2,
        vpp: 2,
        pp_schedule: PipelineSchedule::Interleaved,
        layer_split: Some(vec![1, 3, 3, 1]),
        sequence_parallel: true,
        ..Accelerator::default()
    };
    let sizes = ParallelDims::new(&accelerator, 32, &decoder(8, 4, 8), &batch(64, 64, Some(2))).unwrap();
    assert_eq!((sizes.dp_shard, sizes.dp(), sizes.stages()), (4, 8, 4));
    assert_eq!((sizes.rows_per_rank, sizes.micro_batch_size, sizes.micro_batches), (8, 2, 4));
    assert_eq!(sizes.gang_sizes(), GangSizes { pp: 2, tp: 2, sdp: Some(4) });
}

/// The only fault, and its hint.
fn error_of(
    accelerator: Accelerator,
    world: usize,
    decoder: &DecoderConfig,
    batch: &BatchSizes,
) -> (String, String) {
    let errors = ParallelDims::new(&accelerator, world, decoder, batch).unwrap_err();
    assert_eq!(errors.errors.len(), 1, "{errors}");
    (errors.to_string(), errors.hint().unwrap())
}

#[test]
fn every_error_suggests_sizes_that_fit() {
    let model = || decoder(12, 8, 6);
    let rows = batch(32, 24, None);
    let plain = Accelerator::default;
    let check = |accelerator: Accelerator, world: usize, fault: &str, hint: &str| {
        assert_eq!(error_of(accelerator, world, &model(), &rows), (fault.to_owned(), hint.to_owned()));
    };
    check(plain(), 0, "cannot run on 0 ranks", "set the number of ranks to 1 or more");
    check(
        Accelerator { dp_shard: 0, ..plain() },
        1,
        "invalid `dp_shard`: 0",
        "set dp_shard to 1 or more, or to -1 for all remaining ranks",
    );
    check(Accelerator { ep: 4, ..plain() }, 1, "ep=4 is not supported yet", "set ep to 1, or remove it");
    check(
        Accelerator { dp_shard: 2, tp: 2, ..plain() },
        8,
        "dp_replicate=1 × dp_shard=2 × tp=2 × pp=1 is 4, but there are 8 ranks",
        "set dp_replicate to 2, or set dp_shard to 4, or set tp to 4, or set pp to 2; or start 4 ranks",
    );
    check(
        Accelerator { dp_shard: 3, ..plain() },
        8,
        "dp_replicate=1 × dp_shard=3 × tp=1 × pp=1 is 3, but there are 8 ranks",
        "set dp_shard to 8; or start 3 ranks",
    );
    check(
        Accelerator { tp: 4, pp: 3, ..plain() },
        8,
        "dp_replicate=1 × tp=4 × pp=3 does not divide 8 ranks",
        "set pp to 1, 2",
    );
    check(
        Accelerator { tp: 4, dp_replicate: 3, pp: 5, ..plain() },
        64,
        "dp_replicate=3 × tp=4 × pp=5 does not divide 64 ranks",
        "start 60 or 120 ranks",
    );
    check(
        Accelerator { tp: 13, ..plain() },
        13,
        "tp=13 exceeds the 12 attention heads of the model",
        "set tp to 12 or less",
    );
    check(
        Accelerator { pp: 7, ..plain() },
        7,
        "pp=7 × vpp=1 is 7 stages, but the model has 6 layers",
        "use 1 to 6 stages (pp × vpp)",
    );
    check(
        Accelerator { pp: 2, vpp: 2, ..plain() },
        2,
        "vpp=2 requires the interleaved schedule",
        "set pp_schedule to interleaved, or vpp to 1",
    );
    let split = |split: &[usize]| Accelerator { pp: 2, layer_split: Some(split.to_vec()), ..plain() };
    check(split(&[2, 2, 2]), 2, "layer_split has 3 entries, but pp=2 × vpp=1 is 2 stages", "list 2 numbers");
    check(split(&[6, 0]), 2, "layer_split has no layers for stage 1", "give every stage at least one layer");
    check(
        split(&[3, 4]),
        2,
        "layer_split adds up to 7, but the model has 6 layers",
        "make the entries add up to 6",
    );
    check(
        Accelerator { dp_replicate: 5, ..plain() },
        5,
        "dp_replicate=5 × dp_shard=1 does not divide global_batch_size=24",
        "set global_batch_size to 20 or 25",
    );
}

#[test]
fn model_and_batch_rules_are_checked() {
    let text = |text: (&str, &str)| (text.0.to_owned(), text.1.to_owned());
    let plain = Accelerator::default;
    let tp = |tp| Accelerator { tp, ..plain() };
    // Neither heads nor experts need to be divisible by `tp`.
    let uneven = with_experts(decoder(9, 3, 2), 6);
    assert!(ParallelDims::new(&tp(2), 2, &uneven, &batch(8, 8, None)).is_ok());
    assert!(ParallelDims::new(&tp(4), 4, &uneven, &batch(8, 8, None)).is_ok());
    let shared = Accelerator { sequence_parallel: true, ..tp(4) };
    assert_eq!(
        error_of(shared, 4, &decoder(8, 4, 2), &batch(30, 8, None)),
        text((
            "sequence_parallel requires tp=4 to divide max_seq_len=30",
            "set max_seq_len to 28 or 32, or sequence_parallel to false"
        ))
    );
    let learned = DecoderConfig { positions: PositionConfig::Learned, ..decoder(8, 4, 2) };
    assert_eq!(
        error_of(plain(), 1, &learned, &batch(65, 8, None)),
        text(("max_seq_len=65 exceeds the 64 positions of the model", "set max_seq_len to 64 or less"))
    );
    // Rotary positions have no maximum.
    assert!(ParallelDims::new(&plain(), 1, &decoder(8, 4, 2), &batch(65, 8, None)).is_ok());
    assert_eq!(
        error_of(plain(), 2, &decoder(8, 4, 2), &batch(8, 24, Some(8))),
        text((
            "micro_batch_size=8 does not divide the 12 rows per rank",
            "set micro_batch_size to one of 1, 2, 3, 4, 6, 12"
        ))
    );
    let interleaved = Accelerator { pp: 2, pp_schedule: PipelineSchedule::Interleaved, ..plain() };
    let fault = "the interleaved schedule requires a multiple of pp=2 micro-batches, not 3";
    assert_eq!(
        error_of(interleaved.clone(), 2, &decoder(8, 4, 2), &batch(8, 6, Some(2))),
        text((fault, "set micro_batch_size to one of 1, 3"))
    );
    assert_eq!(
        error_of(interleaved, 4, &decoder(8, 4, 2), &batch(8, 6, Some(1))),
        text((fault, "set global_batch_size to 4 or 8, and micro_batch_size to 1"))
    );
}

#[test]
fn several_errors_are_listed_and_nothing_overflows() {
    let accelerator = Accelerator { tp: 3, cp: 2, dp_shard: 1, ..Accelerator::default() };
    let errors = ParallelDims::new(&accelerator, 4, &decoder(2, 2, 2), &batch(8, 8, None)).unwrap_err();
    let expected = "\
3 parallel sizes do not fit
  cp=2 is not supported yet
    hint: set cp to 1, or remove it
  dp_replicate=1 × dp_shard=1 × tp=3 × pp=1 is 3, but there are 4 ranks
    hint: set tp to 4; or start 3 ranks
  tp=3 exceeds the 2 attention heads of the model
    hint: set tp to 2 or less";
    assert_eq!((errors.to_string().as_str(), errors.hint()), (expected, None));
    let most = usize::MAX;
    let huge = Accelerator {
        dp_replicate: most,
        dp_shard: i64::MAX,
        tp: most,
        pp: most,
        vpp: most,
        layer_split: Some(vec![most, most]),
        ..Accelerator::default()
    };
    let rows = batch(most, most, Some(most));
    let errors = ParallelDims::new(&huge, most, &decoder(most, most, most), &rows).unwrap_err();
    assert!(errors.errors.iter().any(|fault| matches!(fault, ParallelDimError::Product { .. })), "{errors}");
    let auto = Accelerator { dp_shard: -1, ..huge };
    assert!(ParallelDims::new(&auto, most, &decoder(most, most, most), &rows).is_err());
}
