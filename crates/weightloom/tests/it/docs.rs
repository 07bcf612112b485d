//! Every command and config in README.md and docs/ runs, scaled down. A block that
//! is neither run nor listed here with a reason is an error.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::checkpoints::copy;
use crate::gguf_file::gguf_file;
use crate::signatures::{PRIVATE, PUBLIC};
use crate::train::place::Place;

/// Commands that this test does not run, by their beginning, and why.
const NOT_RUN: [(&str, &str); 12] = [
    ("weightloom train run.yaml --device cuda", "needs a GPU; `scripts/gpu-run` trains on one"),
    ("pip install weightloom", "needs the network; `./test python` installs the wheel"),
    ("weightloom quickstart", "the tests `quickstart` run it"),
    ("cargo run --release -- quickstart", "the tests `quickstart` run it"),
    ("torchrun ", "needs torch; `./test python` runs such scripts"),
    ("python ", "needs the module; `./test python` runs such scripts"),
    ("./test", "runs this test"),
    ("cargo run --release -p weightloom-bench", "takes minutes on a quiet machine"),
    ("openssl ", "another program; the keys it would write are there"),
    (
        "weightloom sway run sway.yaml --allow-programs",
        "needs a program of the reader; tests of sway start one",
    ),
    ("mine ", "a program of the reader; the tests `registry` run one"),
    ("mpirun ", "the tests `mpirun` run it, with the feature `mpi`"),
];

/// Configs that this test does not run, by their page, and why.
const FRAGMENTS: [(&str, &str); 3] = [
    ("sway-backend-protocol.md", "the models of a suite without probes; tests of sway run such a program"),
    ("sway.md", "prompts of a suite without models; the tests `chats` of sway ask with such prompts"),
    ("train.md", "a mixture of three sets; tests of the data loader draw from such mixtures"),
];

/// Commands whose exit code is an answer.
const ANSWERING: [&str; 4] = ["diff", "sway gate", "sway check", "sway compare"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A fenced block of a page.
struct Block {
    language: String,
    line: usize,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = None::<Block>;
    for (number, line) in page.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                let language = language.trim().to_owned();
                open = Some(Block { language, line: number + 1, text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks
}

/// The words of a command, as a shell splits them.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in command.chars() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            _ => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// What the pages assume: models under the names that they use, data, runs.
fn with_names(place: &Place, run: &str) {
    let positions = "model.config_overrides.max_position_embeddings=4096";
    place.train(&["train.checkpoint.output_dir=runs/my-run", positions]);
    let model = place.path("runs/my-run/checkpoints/step_2");
    let card = |name: &str| format!("name: {name}\nmodel_family: llama\ncheckpoint: {}\n", model.display());
    let cards = ["smollm2_135m", "smollm2_135m_instruct"].map(card).join("---\n");
    place.write(".config/weightloom/assets/tiny.yaml", cards);
    let chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"Sheep?\"}, \
                {\"role\": \"assistant\", \"content\": \"Sheep.\"}]}\n";
    place.write("my-chats.jsonl", chat.repeat(8));
    let prompts: String =
        (0..80).map(|number| format!("{{\"prompt\": \"Sheep number {number}\"}}\n")).collect();
    place.write("data.jsonl", prompts);
    place.write("notes.md", "# Sheep\n\nSheep jump over fences.\n\n# Fences\n\nFences are low.\n");
    place.write("run.yaml", run);
    let trained = place.train(&SMALL);
    assert_eq!(trained["end"], "finished");
    let adapter = place.path("runs/my-adapter/checkpoints/step_2");
    for (from, to) in [(&model, "base"), (&model, "my-model"), (&adapter, "my-adapter")] {
        copy(from, &place.path(to));
    }
    place.write("key.pem", PRIVATE);
    place.write("public.pem", PUBLIC);
    place.write("model-Q4_K_M.gguf", gguf_file());
    place.json(&["convert", "base", "checkpoints/dcp", "--to", "dcp"]);
    std::os::unix::fs::symlink(repository().join("examples"), place.path("examples")).unwrap();
    place.write(
        "small.yaml",
        "models: {base: {base: smollm2_135m}, ft: {base: smollm2_135m, adapter: runs/my-adapter}}\n\
         suite: [{name: change, kind: delta_kl, prompts: [One, Two]}]\n",
    );
    for day in ["monday.json", "tuesday.json"] {
        place.json(&["sway", "run", "small.yaml", "--json", day]);
    }
}

/// Overrides that make a training run short.
const SMALL: [&str; 4] = [
    "train.max_steps=2",
    "train.global_batch_size=4",
    "train.checkpoint.save_steps=1",
    "data.max_seq_len=64",
];

/// Runs a command of a page, with options that make it small.
fn run(place: &Place, command: &str, at: &str) {
    let mut arguments = words(command);
    assert_eq!(arguments.remove(0), "weightloom", "{at}: {command}: neither run nor listed in NOT_RUN");
    let is = |word: &str| arguments.iter().any(|argument| argument == word);
    let (first, is_dry) = (arguments[0].clone(), is("--dry-run"));
    if let Some(port) = arguments.iter().position(|argument| argument == "--port") {
        arguments[port + 1] = "0".to_owned();
    }
    match first.as_str() {
        "generate" => arguments.extend(["--max-new-tokens", "4"].map(str::to_owned)),
        "train" if !is_dry => {
            // Each command of a page trains anew.
            let _ = std::fs::remove_dir_all(place.path("runs/my-adapter"));
            arguments.extend(SMALL.map(str::to_owned));
        }
        _ => {}
    }
    if first == "serve" {
        return serve(place, &arguments, at);
    }
    let output = place.command().args(&arguments).output().unwrap();
    let code = output.status.code();
    let [out, error] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let answers = ANSWERING.iter().any(|answering| arguments.join(" ").starts_with(answering));
    assert!(code == Some(0) || answers && code == Some(1), "{at}: {command}: {code:?}\n{out}{error}");
}

/// Starts a server, waits until it is ready, and ends it.
fn serve(place: &Place, arguments: &[String], at: &str) {
    let mut command = place.plain_command();
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _ = server.kill();
    let _ = server.wait();
    assert!(line.starts_with("serving "), "{at}: {line}");
}

/// Runs a config of a page.
fn run_config(place: &Place, page: &str, block: &Block, at: &str) {
    let has = |key: &str| block.text.lines().any(|line| line.starts_with(key));
    if has("model:") && has("train:") {
        // Its commands follow on the page.
        place.write("run.yaml", &block.text);
    } else if has("name:") {
        // Cards, which the commands that follow use.
        place.write(&format!("cards/page-{}.yaml", block.line), &block.text);
        run(place, "weightloom models check --asset-dir cards", at);
    } else if has("models:") && has("suite:") {
        place.write("page.yaml", &block.text);
        run(place, "weightloom sway run page.yaml", at);
    } else {
        let listed = FRAGMENTS.iter().any(|(name, _)| page.ends_with(name));
        assert!(listed, "{at}: a config that is neither run nor listed in FRAGMENTS");
    }
}

#[test]
fn every_command_and_config_of_the_documentation_runs() {
    let root = repository();
    let mut pages = vec![root.join("README.md")];
    for entry in std::fs::read_dir(root.join("docs")).unwrap() {
        pages.extend(
            Some(entry.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "md")),
        );
    }
    pages.sort();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let config = blocks(&readme).into_iter().find(|block| block.language == "yaml").unwrap().text;
    let mut count = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks: Vec<Block> = blocks(&text)
            .into_iter()
            .filter(|block| ["console", "yaml"].contains(&block.language.as_str()))
            .collect();
        if blocks.is_empty() {
            continue;
        }
        let place = Place::new();
        with_names(&place, &config);
        let name = page.file_name().unwrap().to_str().unwrap();
        for block in &blocks {
            let at = format!("{name}:{}", block.line);
            if block.language == "yaml" {
                run_config(&place, name, block, &at);
                continue;
            }
            for command in block.text.lines().filter_map(|line| line.strip_prefix("$ ")) {
                let command = command.split("   #").next().unwrap_or(command).trim();
                if !NOT_RUN.iter().any(|(start, _)| command.starts_with(start)) {
                    run(&place, command, &at);
                    count += 1;
                }
            }
        }
    }
    assert!(count > 25, "{count} commands");
}

#[test]
fn words_are_split_as_a_shell_does() {
    assert_eq!(words("weightloom  a 'b c' --d=1"), ["weightloom", "a", "b c", "--d=1"]);
}
