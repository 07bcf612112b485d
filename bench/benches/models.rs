//! Listing, loading, scoring, decoding and time to first token, against
//! transformers and safetensors.
//!
//! Every measurement runs in a separate process, ours and theirs in alternation.
//! Set `WEIGHTLOOM_PEER_PYTHON` to a Python with transformers,
//! `WEIGHTLOOM_BENCH_SMALL` and `WEIGHTLOOM_BENCH_LARGE` to Hugging Face folders
//! of models (SmolLM2-135M, and one of the size of Llama-3.2-1B in bf16), and
//! `WEIGHTLOOM_BINARY` to the built command. Arguments after `--` select cases:
//! list, load, score, decode, first.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use weightloom_bench::{Against, Goal, Report, json_f64, json_output, median_f64, peak_memory, seconds};
use weightloom_checkpoint::storage::ReadMode;
use weightloom_gang::{GangOptions, GangSizes, Gangs, threads};
use weightloom_hub::cards::CardStore;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{Families, Hub, Model, ModelLoadOptions, iter_parameters};
use weightloom_layout::DType;
use weightloom_nn::{self as nn, ForwardArgs, GenerateRequest, Generation, Input};
use weightloom_tensor::no_grad;

const ROUNDS: usize = 3;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--bench")).collect();
    if let [own, case, folder, dtype] = words.as_slice()
        && own == "ours"
    {
        return ours(case, Path::new(folder), dtype);
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    let (small, large) = (folder("WEIGHTLOOM_BENCH_SMALL"), folder("WEIGHTLOOM_BENCH_LARGE"));
    let mut report = Report::new("models");
    if wanted("list") {
        list(&mut report);
    }
    if let Some(large) = large.filter(|_| wanted("load")) {
        load(&mut report, &large);
    }
    if let Some(small) = small {
        for (dtype, theirs) in [("f32", "float32"), ("bf16", "bfloat16")] {
            for (case, goal) in [("score", 1.2), ("decode", 1.5)] {
                if wanted(case) {
                    speed(&mut report, &small, case, [dtype, theirs], goal);
                }
            }
        }
        if wanted("first") {
            first_token(&mut report, &small);
        }
    }
    report.finish();
}

/// Runs one measurement and prints it as a line of JSON.
#[expect(clippy::print_stdout, reason = "the output of a measuring process")]
fn ours(case: &str, folder: &Path, dtype: &str) {
    let mut families = Families::new();
    weightloom_models::register(&mut families).expect("families differ in name");
    let hub = Hub::new(CardStore::new([]), families, Ok(FetchSettings::in_folders("none", "none")));
    let dtype: DType = dtype.parse().expect("a dtype");
    let before = peak_memory();
    let begin = Instant::now();
    let model = hub.open(&folder.display().to_string(), &()).expect("a model");
    let options = ModelLoadOptions { dtype: Some(dtype), ..ModelLoadOptions::default() };
    let answer = match case {
        "load" | "map" => {
            let way = (case == "map").then_some(ReadMode::Mapped);
            let loaded = model.load(&ModelLoadOptions { read_mode: way, ..options }, &()).expect("loaded");
            let seconds = begin.elapsed().as_secs_f64();
            let weights: usize = loaded
                .model
                .parameters()
                .iter()
                .map(|(_, value)| value.shape().volume() * dtype.size())
                .sum();
            let touched = touch(&*loaded.model);
            json!({"seconds": seconds, "touched": seconds + touched, "peak": peak_memory() - before, "weights": weights})
        }
        "rank" => rank(&model, begin),
        "score" => {
            let decoder = model.load(&options, &()).expect("loaded").model;
            let tokens = prompt(&*decoder, 256);
            json!({"rate": 256.0 / median(5, || score(&*decoder, &tokens))})
        }
        _ => {
            let decoder = model.load(&options, &()).expect("loaded").model;
            let tokens = prompt(&*decoder, 32);
            let first = median(3, || decode(&*decoder, &tokens, 1));
            let all = median(3, || decode(&*decoder, &tokens, 64));
            json!({"rate": 64.0 / all, "steady": 63.0 / (all - first)})
        }
    };
    println!("{answer}");
}

/// Time to read a byte of each page of every parameter, in seconds.
fn touch(decoder: &dyn nn::Model) -> f64 {
    let begin = Instant::now();
    for (_, value) in decoder.parameters() {
        let sum = value
            .to_local()
            .read_host(|bytes| bytes.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>());
        std::hint::black_box(sum.expect("host memory"));
    }
    begin.elapsed().as_secs_f64()
}

/// One rank of eight reads its shards, alone.
fn rank(model: &Model, begin: Instant) -> Value {
    let config = model.definition().expect("a decoder");
    let keys = model.keys().expect("keys");
    let parallel = model.family().parallel();
    let all = threads::run(8, GangOptions::default(), |root| {
        let first = root.rank() == 0;
        let gangs = Some(Gangs::new(root, &GangSizes { tp: 8, ..GangSizes::default() }).expect("gangs"));
        if !first {
            return (0, Vec::new());
        }
        let options = ModelLoadOptions { gangs, ..ModelLoadOptions::default() };
        let parts =
            iter_parameters(model.source(), &*config, &keys, &parallel, &options, &()).expect("parts");
        let parts: Vec<_> = parts.map(|part| part.expect("read").1).collect();
        (parts.iter().map(|part| part.shape().volume() * part.dtype().size()).sum::<usize>(), parts)
    });
    let bytes = all.expect("no rank panics")[0].0;
    json!({"seconds": begin.elapsed().as_secs_f64(), "bytes": bytes, "peak": peak_memory()})
}

fn prompt(decoder: &dyn nn::Model, length: usize) -> Vec<u32> {
    (0..length).map(|place| ((7919 * place + 13) % decoder.definition().vocabulary()) as u32).collect()
}

/// Logits of all positions.
fn score(decoder: &dyn nn::Model, tokens: &[u32]) {
    no_grad(|| {
        let input = Input::Tokens(decoder.tokens(&[tokens]).expect("tokens"));
        let hidden = decoder.forward(input, ForwardArgs::default()).expect("hidden");
        std::hint::black_box(decoder.logits(&hidden, None.into()).expect("logits"));
    });
}

fn decode(decoder: &dyn nn::Model, tokens: &[u32], count: usize) {
    let request = GenerateRequest {
        prompts: vec![tokens.to_vec()],
        max_new_tokens: count,
        ..GenerateRequest::default()
    };
    std::hint::black_box(Generation::new(decoder, None, request).expect("a request").run().expect("written"));
}

/// Median seconds of `runs` runs after a warm-up.
fn median(runs: usize, work: impl Fn()) -> f64 {
    work();
    let time = || {
        let begin = Instant::now();
        work();
        begin.elapsed().as_secs_f64()
    };
    median_f64((0..runs).map(|_| time()).collect())
}

fn ask_ours(case: &str, folder: &Path, dtype: &str) -> Value {
    let own = std::env::current_exe().expect("this program");
    json_output(Command::new(own).args(["ours", case]).arg(folder).arg(dtype).env("WEIGHTLOOM_THREADS", "2"))
}

fn ask_theirs(case: &str, folder: &Path, dtype: &str) -> Option<Value> {
    let python = std::env::var_os("WEIGHTLOOM_PEER_PYTHON")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/models_transformers.py");
    let mut command = Command::new(python);
    command.arg(script).arg(case).arg(folder).args(["--dtype", dtype, "--runs", "3"]);
    Some(json_output(command.env("HF_HUB_OFFLINE", "1")))
}

fn list(report: &mut Report) {
    let Some(binary) = std::env::var_os("WEIGHTLOOM_BINARY") else { return };
    let time = || {
        let begin = Instant::now();
        let output = Command::new(&binary).args(["models", "list"]).output().expect("the command starts");
        assert!(output.status.success());
        begin.elapsed().as_secs_f64()
    };
    time();
    let measured = median_f64((0..21).map(|_| time()).collect());
    let own = seconds(measured);
    report.compare("models list", Against::Limit, [&own, "30 ms"], measured / 0.03, Goal::AtMost(1.0));
    let published = Against::peer("fairseq2 (published)");
    report.compare("models list", published, [&own, "4.6 s"], measured / 4.6, Goal::Lower);
}

fn load(report: &mut Report, folder: &Path) {
    let (mut read, mut mapped, mut rank, mut theirs, mut file) = (vec![], vec![], vec![], vec![], vec![]);
    let mut again = Vec::new();
    for _ in 0..ROUNDS {
        read.push(ask_ours("load", folder, "bf16"));
        // A virtual machine may have returned memory to its host, and huge pages
        // are expensive to get back. A second load finds the memory allocated.
        again.push(ask_ours("load", folder, "bf16"));
        theirs.extend(ask_theirs("load", folder, "bfloat16"));
        mapped.push(ask_ours("map", folder, "bf16"));
        file.extend(ask_theirs("read", folder, "bfloat16"));
        rank.push(ask_ours("rank", folder, "bf16"));
    }
    let of = |all: &[Value], path: &str| median_f64(all.iter().map(|value| json_f64(value, path)).collect());
    let mut faster = |what: &str, peer: &str, ours: f64, theirs: f64| {
        let figures = [&*seconds(ours), &*seconds(theirs)];
        report.compare(what, Against::peer(peer), figures, theirs / ours, Goal::AtLeast(2.0));
    };
    if !theirs.is_empty() {
        let (ours, touched) = (of(&mapped, "/seconds"), of(&theirs, "/touched_seconds"));
        faster("load, mapped", "from_pretrained", ours, of(&theirs, "/seconds"));
        faster("load, mapped and touched", "from_pretrained", of(&mapped, "/touched"), touched);
        faster("load, read", "from_pretrained, touched", of(&read, "/seconds"), touched);
        faster("load, read into warm memory", "from_pretrained, touched", of(&again, "/seconds"), touched);
        let copied = of(&file, "/copied_seconds");
        faster("load, mapped", "safetensors load_file", ours, of(&file, "/seconds"));
        faster("load, read", "safetensors load_file, copied", of(&read, "/seconds"), copied);
        faster(
            "load, read into warm memory",
            "safetensors load_file, copied",
            of(&again, "/seconds"),
            copied,
        );
    }
    let (peak, weights) = (of(&read, "/peak"), of(&read, "/weights"));
    let gigabytes = |bytes: f64| format!("{:.3} GB", bytes / 1e9);
    let figures = [&*gigabytes(peak), &*gigabytes(weights)];
    let against = Against::floor("weights");
    report.compare("peak memory of a load", against, figures, peak / weights, Goal::AtMost(1.05));
    let (alone, bytes) = (of(&rank, "/seconds"), of(&rank, "/bytes"));
    let published = Against::peer("fairseq2 (published)");
    report.compare("load, one rank of tp=8", published, [&seconds(alone), "77 s"], alone / 77.0, Goal::Lower);
    let eighth = weights / 8.0;
    let figures = [&*gigabytes(bytes), &*gigabytes(eighth)];
    let against = Against::floor("an eighth of the weights");
    report.compare("bytes read by one rank of tp=8", against, figures, bytes / eighth, Goal::AtMost(1.02));
}

fn speed(report: &mut Report, folder: &Path, case: &str, [dtype, theirs]: [&str; 2], goal: f64) {
    let (mut own, mut beside, mut steady) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        own.push(json_f64(&ask_ours(case, folder, dtype), "/rate"));
        if let Some(answer) = ask_theirs(case, folder, theirs) {
            beside.push(json_f64(&answer, "/tokens_per_second"));
            steady.push(json_f64(&answer, "/bare_tokens_per_second"));
        }
    }
    let ours = median_f64(own);
    let rate = |value: f64| format!("{value:.1} tokens/s");
    if beside.is_empty() {
        report.figure(&format!("{case} in {dtype}"), &rate(ours));
        return;
    }
    let beside = median_f64(beside);
    let what = format!("{case} in {dtype}");
    let figures = [&*rate(ours), &*rate(beside)];
    report.compare(&what, Against::peer("transformers"), figures, ours / beside, Goal::AtLeast(goal));
    let bare = median_f64(steady);
    if bare.is_finite() {
        let against = Against::peer("transformers without `generate`");
        report.compare(&what, against, [&rate(ours), &rate(bare)], ours / bare, Goal::Higher);
    }
}

fn first_token(report: &mut Report, folder: &Path) {
    let Some(binary) = std::env::var_os("WEIGHTLOOM_BINARY") else { return };
    let (mut own, mut beside) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let mut command = Command::new(&binary);
        command.arg("generate").arg(folder).args([
            "Once upon a time",
            "--max-new-tokens",
            "1",
            "--dtype",
            "bf16",
        ]);
        assert!(command.output().expect("the command starts").status.success());
        own.push(begin.elapsed().as_secs_f64());
        beside.extend(
            ask_theirs("first-token", folder, "bfloat16")
                .map(|answer| json_f64(&answer, "/stages/first_token")),
        );
    }
    let own = median_f64(own);
    if !beside.is_empty() {
        let beside = median_f64(beside);
        let figures = [&*seconds(own), &*seconds(beside)];
        let (what, against) = ("process start to first token", Against::peer("transformers"));
        report.compare(what, against, figures, own / beside, Goal::AtMost(0.1));
    }
}
