//! A dry run of a training, for people.

use weightloom::errors::Hint as _;
use weightloom::train::config::ConfigWarning;
use weightloom::train::dry_run::{
    DataReport, DryRun, Effect, FitReport, GpuFit, RankReport, Remedy, TimeReport,
};

use super::data::summary_lines;
use super::models::short;
use super::output::{Output, bytes, counted, table};

/// What a run would do, as text.
pub(super) fn render(run: &DryRun) -> String {
    let sections = [
        head(run),
        warnings(run),
        fit(run),
        gpus(run),
        memory(run),
        stages(run),
        traffic(run),
        pipeline(run),
        foot(run),
    ];
    sections.into_iter().filter(|section| !section.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Warns on stderr if the run does not fit, where results are printed as JSON: the text
/// says so.
pub(super) fn warn_if_too_large(run: &DryRun, output: Output) {
    let prints_json = output.is_json() && output.listener.is_none();
    if let Some(fit) = run.fit.as_ref().filter(|fit| !fit.fits && prints_json) {
        output.warning(&fact(fit));
    }
}

/// Whether a run fits.
fn fact(fit: &FitReport) -> String {
    let FitReport { memory, needed, fits, .. } = fit;
    let (needed, device) = (bytes(*needed), &memory.device);
    let free = match memory.ranks {
        1 => format!("{} free on {device}", bytes(memory.free)),
        ranks => format!(
            "{} that each of {ranks} ranks has of {} free on {device}",
            bytes(memory.of_rank()),
            bytes(memory.free)
        ),
    };
    match fits {
        true => format!("a rank needs {needed} of the {free}"),
        false => format!("a rank needs {needed}, more than the {free}"),
    }
}

fn fit(run: &DryRun) -> String {
    let Some(fit) = &run.fit else { return String::new() };
    let fact = fact(fit);
    if fit.fits {
        return format!("\nIt fits: {fact}.");
    }
    let mut lines = vec![format!("\nIt does not fit: {fact}.")];
    if let Some(least) = fit.least {
        lines.push(format!("No change that was tried makes it fit: the smallest needs {}.", bytes(least)));
    }
    if !fit.remedies.is_empty() {
        lines.push("Changes that make it fit:".to_owned());
    }
    for Remedy { overrides, ranks, needed, effect } in &fit.remedies {
        let ranks = if *ranks == run.mesh.world { String::new() } else { format!("--ranks {ranks} ") };
        let effect = match effect {
            Effect::Nothing => "computes the same",
            Effect::AdapterOnly => "trains only an adapter",
            Effect::ShorterRows => "truncates rows",
        };
        lines.push(format!("  {ranks}{}  ({}; {effect})", overrides.join(" "), bytes(*needed)));
    }
    lines.join("\n")
}

/// Values of the config that are surely wrong.
fn warnings(run: &DryRun) -> String {
    let line = |warning: &ConfigWarning| {
        let fix = warning.hint().map_or_else(String::new, |hint| format!("; {hint}"));
        format!("\nwarning: {warning}{fix}")
    };
    run.warnings.iter().map(line).collect()
}

/// Whether it fits on common GPUs.
fn gpus(run: &DryRun) -> String {
    let line = |GpuFit { gigabytes, needed, fits, remedy }: &GpuFit| {
        let answer = match (fits, remedy) {
            (true, _) => "fits".to_owned(),
            (false, None) => format!("too small: {} are needed", bytes(*needed)),
            (false, Some(Remedy { overrides, ranks, .. })) if *ranks == run.mesh.world => {
                format!("fits with {}", overrides.join(" "))
            }
            (false, Some(Remedy { overrides, ranks, .. })) => {
                format!("fits with {}", [&[format!("--ranks {ranks}")], &overrides[..]].concat().join(" "))
            }
        };
        format!("\n  {gigabytes} GB: {answer}")
    };
    match run.gpus.is_empty() {
        true => String::new(),
        false => format!("\nOn GPUs, one for each rank:{}", run.gpus.iter().map(line).collect::<String>()),
    }
}

/// A number of operations in the unit that suits it.
fn flops(count: f64) -> String {
    const UNITS: [(f64, &str); 7] =
        [(1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let unit = UNITS.iter().find(|(size, _)| count >= *size);
    unit.map_or_else(|| format!("{count:.0} flop"), |(size, name)| format!("{:.1} {name}flop", count / size))
}

fn head(run: &DryRun) -> String {
    let (mesh, batch) = (&run.mesh, &run.batch);
    format!(
        "{} parameters, {} of them trained, on {}: pp {} × rdp {} × sdp {} × tp {}\n\
         A step is {} of {} tokens; each data-parallel rank has {}, {} at a time.\n\
         It takes {}, at most {} on a rank.",
        short(run.parameters),
        short(run.trainable_parameters),
        counted(mesh.world, "rank"),
        mesh.pp,
        mesh.rdp,
        mesh.sdp,
        mesh.tp,
        counted(batch.rows, "row"),
        batch.tokens_of_row,
        batch.rows_of_rank,
        batch.rows_at_once,
        flops(run.flops.per_step),
        flops(run.flops.most_of_a_rank as f64),
    )
}

/// Places of the pipeline that differ in nothing that is shown become one row.
fn folded<R: PartialEq>(run: &DryRun, row: impl Fn(&RankReport) -> R) -> Vec<(String, R)> {
    let mut rows: Vec<(usize, usize, R)> = Vec::new();
    for rank in &run.ranks {
        let shown = row(rank);
        match rows.last_mut() {
            Some((_, last, before)) if *before == shown => *last = rank.pp_rank,
            _ => rows.push((rank.pp_rank, rank.pp_rank, shown)),
        }
    }
    let named = |(first, last, row)| {
        let places = if first == last { format!("{first}") } else { format!("{first}–{last}") };
        (places, row)
    };
    rows.into_iter().map(named).collect()
}

fn memory(run: &DryRun) -> String {
    // Without a pipeline, one micro-batch is in flight.
    let has_pipeline = run.mesh.pp > 1;
    let heads =
        ["pp", "parameters", "gradients", "optimizer", "activations", "kept weights", "temporary", "peak"];
    let in_flight = has_pipeline.then_some("in flight");
    let heads: Vec<&str> = heads.into_iter().chain(in_flight).collect();
    let mut rows = table(&heads, &[1, 2, 3, 4, 5, 6, 7, 8][..heads.len() - 1]);
    let of_rank = |rank: &RankReport| {
        let memory = &rank.memory;
        let sizes = [
            memory.parameters,
            memory.gradients,
            memory.optimizer,
            memory.activations,
            memory.kept_weights,
            memory.working,
            memory.peak,
        ];
        let in_flight = has_pipeline.then(|| memory.in_flight.to_string());
        sizes.into_iter().map(bytes).chain(in_flight).collect::<Vec<String>>()
    };
    for (places, row) in folded(run, of_rank) {
        rows.add_row([places].into_iter().chain(row));
    }
    format!("\nMemory of the rank that holds most, at its peak\n{rows}")
}

fn stages(run: &DryRun) -> String {
    let heads =
        ["stage", "layers", "parameters", "forward", "backward", "kept for backward", "gathered", "sent"];
    let mut rows = table(&heads, &[0, 2, 3, 4, 5, 6, 7]);
    let mut all: Vec<_> = run.ranks.iter().flat_map(|rank| &rank.stages).collect();
    all.sort_by_key(|stage| stage.number);
    let last = all.len().saturating_sub(1);
    for stage in all {
        rows.add_row([
            stage.number.to_string(),
            format!("{}–{}", stage.first_layer, (stage.first_layer + stage.layers).saturating_sub(1)),
            short(stage.parameters),
            flops(stage.forward_flops as f64),
            flops(stage.backward_flops as f64),
            bytes(stage.activations + stage.kept_weights),
            bytes(stage.gathered),
            bytes(if stage.number == last { 0 } else { stage.message }),
        ]);
    }
    format!("\nStages on one rank, for one micro-batch\n{rows}")
}

fn traffic(run: &DryRun) -> String {
    let Some(most) =
        run.ranks.iter().max_by_key(|rank| rank.by_axis.iter().map(|axis| axis.bytes).sum::<u64>())
    else {
        return String::new();
    };
    if most.traffic.is_empty() {
        return "\nNothing is sent.".to_owned();
    }
    let mut rows = table(&["axis", "collective", "for", "pass", "times", "bytes"], &[4, 5]);
    for item in &most.traffic {
        rows.add_row([
            item.axis.clone(),
            item.collective.clone(),
            item.cause.clone(),
            item.pass.clone(),
            item.count.to_string(),
            bytes(item.bytes),
        ]);
    }
    for axis in &most.by_axis {
        rows.add_row([
            axis.axis.clone(),
            "total".to_owned(),
            String::new(),
            String::new(),
            axis.count.to_string(),
            bytes(axis.bytes),
        ]);
    }
    format!("\nReceived in a step by rank {}, which receives most\n{rows}", most.rank)
}

fn pipeline(run: &DryRun) -> String {
    let pipeline = &run.pipeline;
    if run.mesh.pp == 1 {
        return String::new();
    }
    format!(
        "\n{} and {}; ranks wait {:.0}% of the time\n{}",
        counted(pipeline.stages, "stage"),
        counted(pipeline.micro_batches, "micro-batch").replace("batchs", "batches"),
        pipeline.overall_bubble * 100.0,
        pipeline.drawing.trim_end(),
    )
}

fn foot(run: &DryRun) -> String {
    let checkpoint = &run.checkpoint;
    let data = match &run.data {
        DataReport::NotAvailable => "The data or the tokenizer is not available locally.".to_owned(),
        DataReport::Failed { reason } => format!("The data cannot be used: {reason}"),
        DataReport::Order { steps, digest, summary } => {
            let order = format!("Digest of the data of the first {steps} steps: {digest}");
            let lines = summary.iter().flat_map(|summary| summary_lines(summary));
            lines.chain([order]).collect::<Vec<_>>().join("\n")
        }
    };
    let time = run.time.as_ref().map_or_else(
        || "Set `train.logging.peak_tflops` for an estimate of the time from flops.".to_owned(),
        time,
    );
    format!(
        "\nA checkpoint is {} in {}, {} of it the model; {} in {}. A rank writes at most {}, on average {}.\n{time}\n{data}",
        bytes(checkpoint.bytes),
        counted(checkpoint.files, "file"),
        bytes(checkpoint.model_bytes),
        counted(checkpoint.tensors, "tensor"),
        counted(usize::try_from(checkpoint.items).unwrap_or(usize::MAX), "part"),
        bytes(checkpoint.most_of_a_rank),
        bytes(checkpoint.mean_of_ranks as u64),
    )
}

/// The time at the peak, which no run reaches.
fn time(time: &TimeReport) -> String {
    let step = duration(time.seconds_per_step);
    match (time.steps, time.seconds) {
        (Some(steps), Some(seconds)) => format!(
            "At the peak of the hardware, {} take at least {} ({step} each), from their flops.",
            counted(usize::try_from(steps).unwrap_or(usize::MAX), "step"),
            duration(seconds)
        ),
        _ => format!("At the peak of the hardware, a step takes at least {step}, from its flops."),
    }
}

fn duration(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.3} s") } else { super::train::duration(seconds) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use serde_json::json;
    use weightloom::gang::GangSizes;
    use weightloom::nn::{Parallel, Stage};
    use weightloom::train::Extensions;
    use weightloom::train::config::Config;
    use weightloom::train::dry_run::{self, DryRunSettings};
    use weightloom::{Folders, Registry};

    use super::*;

    fn rendered(pp: usize, tp: usize, sdp: usize, world: usize, arch: &str) -> String {
        let hub = Registry::standard().hub(&|_| None, &Folders::default());
        let family = hub.families.get("llama").unwrap();
        let definition = family.definition(&family.maybe_arch_config(arch).unwrap()).unwrap();
        let config: Config = serde_json::from_value(json!({
            "model": { "name": "llama", "arch": arch },
            "data": { "type": "dummy", "max_seq_len": 8192 },
            "train": {
                "global_batch_size": 4 * world / pp / tp * pp,
                "micro_batch_size": 1,
                "precision": "bf16",
                "gradient_checkpointing": "full",
            },
        }))
        .unwrap();
        let stages: Vec<Stage> =
            (0..pp).map(|stage| Stage::one_of(definition.layers(), stage, pp).unwrap()).collect();
        let settings = DryRunSettings {
            config: &config,
            definition: &*definition,
            parallel: &Parallel::default(),
            stages: &stages,
            sizes: GangSizes { pp, tp, sdp: Some(sdp) },
            world,
            data: None,
            extensions: &Extensions::standard(),
        };
        render(&dry_run::run(&settings).unwrap())
    }

    #[test]
    fn everything_is_told() {
        let text = rendered(16, 8, 16, 16_384, "llama3_1_405b");
        for part in [
            "406 B parameters, 406 B of them trained, on 16384 ranks: pp 16 × rdp 8 × sdp 16 × tp 8",
            "Memory of the rank that holds most",
            "all-gather",
            "16 stages and 64 micro-batches",
            "rank 15 |",
            "A checkpoint is 4.4 TiB in 1143 files",
            "The data or the tokenizer is not available locally",
        ] {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
        // Places that are alike are one row, so that text does not grow with
        // ranks: what is kept differs, what is sent does not.
        assert!(text.lines().count() < 120, "{text}");
    }

    #[test]
    fn one_rank_sends_nothing_and_has_no_pipeline() {
        let text = rendered(1, 1, 1, 1, "llama3_2_1b");
        assert!(text.contains("Nothing is sent."), "{text}");
        assert!(!text.contains("micro-batches; ranks wait"), "{text}");
    }

    #[test]
    fn operations_read_naturally() {
        assert_eq!(flops(12.0), "12 flop");
        assert_eq!(flops(2.5e12), "2.5 Tflop");
        assert_eq!(flops(5.4e22), "54.0 Zflop");
    }
}
