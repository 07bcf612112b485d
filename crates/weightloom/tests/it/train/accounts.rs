//! Every document is accounted for: on the terminal, in `metrics.jsonl`, in a dry
//! run, and by `data show`.

use serde_json::{Value, json};

use super::place::Place;

fn chat(roles: [&str; 2], content: &str) -> String {
    let messages: Vec<Value> = roles.iter().map(|role| json!({"role": role, "content": content})).collect();
    format!("{}\n", json!({"messages": messages}))
}

/// Ten conversations: seven are good, of which one is truncated, and two have unknown
/// roles; the answer of one is cut off.
fn chats() -> Place {
    let place = Place::new();
    let lines = chat(["user", "assistant"], "hello").repeat(6)
        + &chat(["human", "gpt"], "hello").repeat(2)
        + &format!(
            "{}\n",
            json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x".repeat(80)}]})
        )
        + &chat(["user", "assistant"], &"y".repeat(80));
    place.write("chats/a.jsonl", lines);
    place.write("chats/notes.log", "a,b\n");
    place
}

const CHATS: [&str; 4] =
    ["data.paths=[chats]", "data.max_seq_len=60", "data.max_dropped=0.5", "train.logging.peak_tflops=0.1"];

/// The dropped documents of a summary, by reason.
fn dropped(summary: &Value) -> Vec<(String, u64)> {
    let list = summary["dropped"].as_array().unwrap().iter();
    list.map(|one| (one["reason"].as_str().unwrap().to_owned(), one["documents"].as_u64().unwrap())).collect()
}

fn check_sums(data: &Value) {
    let number = |key: &str| data[key].as_u64().unwrap();
    let lost: u64 = dropped(data).iter().map(|(_, documents)| documents).sum();
    assert_eq!(number("read"), number("used") + lost, "{data}");
    assert_eq!((number("read"), number("used"), number("truncated")), (10, 7, 1), "{data}");
    assert_eq!(dropped(data), [("unknown_roles".to_owned(), 2), ("answer_cut_off".to_owned(), 1)]);
}

#[test]
fn a_run_starts_with_an_account_of_its_data() {
    for steps in ["train.max_steps=2", "train.max_steps=null"] {
        let place = chats();
        let text = place.run(&[&["train", "run.yaml", steps], &CHATS[..]].concat());
        for part in [
            "data: 10 documents in 1 file; files of other types, not read: 1 .log\n",
            "  used: 7, ",
            "  truncated: 1, by ",
            "  dropped: 3: 2 with unknown roles `gpt`, `human` (first: chats/a.jsonl:7); 1 with answer cut off by \
             `data.max_seq_len` (first: chats/a.jsonl:10)\n",
            "trainable parameters: 12k of 12k (100.00%)\n",
        ] {
            assert!(text.contains(part), "{steps}: no {part:?} in\n{text}");
        }
        let metrics = place.metrics("out");
        assert_eq!((&metrics[0]["event"], &metrics[0]["step"]), (&json!("start"), &json!(0)));
        check_sums(&metrics[0]["data"]);
        assert_eq!(metrics[0]["data"]["skipped_files"], json!({".log": 1}));
        let end = metrics.last().unwrap();
        assert_eq!(end["event"], "end");
        let number = |key: &str| end["data"][key].as_u64().unwrap();
        let lost: u64 = dropped(&end["data"]).iter().map(|(_, documents)| documents).sum();
        assert_eq!(number("read"), number("used") + lost, "{end}");
    }
}

#[test]
fn the_time_is_estimated_from_the_first_steps() {
    let place = Place::new();
    let text = place.run(&["train", "run.yaml", "train.max_steps=5"]);
    assert!(text.contains("for 2 steps, measured over the first 3\n"), "{text}");
    let metrics = place.metrics("out");
    let estimate = metrics.iter().find(|line| line["event"] == "estimate").unwrap();
    assert_eq!((&estimate["step"], &estimate["steps_left"]), (&json!(3), &json!(2)));
    assert!(estimate["seconds_left"].as_f64().unwrap() > 0.0);
}

#[test]
fn too_many_dropped_documents_are_an_error() {
    for steps in ["train.max_steps=2", "train.max_steps=null"] {
        for ranks in ["1", "2"] {
            let place = chats();
            let text = place.run(&[
                "train",
                "run.yaml",
                steps,
                "data.paths=[chats]",
                "data.max_seq_len=60",
                "--ranks",
                ranks,
            ]);
            let expected = "error: cannot train on 3 of 10 documents, a larger share than `data.max_dropped` (0.05): \
                2 with unknown roles `gpt`, `human` (first: chats/a.jsonl:7); 1 with answer cut off by \
                `data.max_seq_len` (first: chats/a.jsonl:10)\n";
            assert!(text.contains("exit code 2") && text.contains(expected), "{text}");
            assert!(text.contains("data.max_dropped: 0.3`"), "{text}");
            assert!(!place.path("out").exists());
        }
    }
}

#[test]
fn files_of_unknown_types_are_not_taken_for_text() {
    let place = Place::new();
    place.write("table.log", "a,b\n1,2\n");
    place.write("script.py", "print(1)\n");
    place.write("noted", "some text to learn\n");
    for (file, reason) in [
        ("table.log", "unsupported file type `.log`"),
        ("script.py", "unsupported file type `.py`"),
        ("noted", "a file without an extension may contain anything"),
    ] {
        let paths = format!("data.paths=[{file}]");
        let text = place.run(&["train", "run.yaml", &paths]);
        assert!(text.contains(&format!("error: cannot read `{file}`: {reason}\n")), "{text}");
        assert!(text.contains("`data.format: text`"), "{text}");
        let output = format!("train.checkpoint.output_dir={}-out", file.replace('.', "-"));
        let ended = place.train(&[&paths, &output, "data.format=text"]);
        assert_eq!(ended["data"]["used"], ended["data"]["read"]);
    }
    place.write("list.json", json!([{"text": "one"}, {"text": "two"}]).to_string());
    let ended = place.train(&["data.paths=[list.json]"]);
    assert_eq!(ended["end"], "finished");
}

#[test]
fn a_dry_run_shows_the_account() {
    let place = chats();
    let dry = [&["train", "run.yaml", "--dry-run"], &CHATS[..]].concat();
    let text = place.run(&dry);
    assert!(text.contains("  dropped: 3: 2 with unknown roles `gpt`, `human`"), "{text}");
    assert!(text.contains("At the peak of the hardware, 2 steps take at least "), "{text}");
    let report = place.json(&dry);
    check_sums(&report["data"]["order"]["summary"]);
    assert_eq!(report["trainable_parameters"], report["parameters"]);
    place.train(&["train.checkpoint.output_dir=base", "train.max_steps=1"]);
    let trained = |targets: &str| {
        let lora = format!("model.lora={{target_modules: {targets}}}");
        let more = [lora.as_str(), "model.weights_path=base"];
        place.json(&[&dry[..], &more].concat())["trainable_parameters"].as_u64().unwrap()
    };
    let named = trained("[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]");
    assert!(named > 0);
    assert_eq!(trained("all-linear"), named);
    let text = place.run(&["train", "run.yaml", "--dry-run", "data.paths=[chats]", "data.max_seq_len=60"]);
    assert!(text.contains("The data cannot be used: cannot train on 3 of 10 documents"), "{text}");
}

#[test]
fn data_show_shows_examples_lengths_and_the_account() {
    let place = chats();
    let show = [&["data", "show", "run.yaml", "-n", "9", "data.shuffle=false"], &CHATS[..]].concat();
    insta::assert_snapshot!(place.run(&show));
    let shown = place.json(&show);
    assert_eq!(shown["examples"].as_array().unwrap().len(), 9);
    let passages = shown["examples"][0]["passages"].as_array().unwrap();
    let trained: String = passages
        .iter()
        .filter(|part| part["trained"] == true)
        .map(|part| part["text"].as_str().unwrap())
        .collect();
    assert!(trained.contains("hello</s>"), "{passages:?}");
    check_sums(&shown["summary"]);
    // Everything that is dropped is shown, whatever is allowed.
    let text = place.run(&["data", "show", "run.yaml", "data.paths=[chats]", "data.max_seq_len=60"]);
    assert!(text.contains("exit code 0") && text.contains("  dropped: 3: "), "{text}");
}

#[test]
fn data_show_helps() {
    insta::assert_snapshot!(Place::new().run(&["data", "show", "--help"]));
}

#[test]
fn samples_and_the_closing_command_follow_the_data() {
    let place = chats();
    let sampled = ["train.eval.samples={prompts: [sheep], max_new_tokens: 2}"];
    let text = place.run(&[&["train", "run.yaml"], &CHATS[..], &sampled].concat());
    assert!(text.contains("'Hello' --chat\n"), "{text}");
    // The sample continues the conversation that the template makes of the prompt.
    let metrics = place.metrics("out");
    let sample = metrics.iter().find_map(|line| line["texts"]["sample/0"].as_str()).unwrap().to_owned();
    let written = |prompt: &str| {
        let model = "./out/checkpoints/step_2";
        let made = place.json(&["generate", model, prompt, "--max-new-tokens", "2"]);
        made["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(sample, format!("sheep{}", written("[user]sheep</s>")));
    place.remove("out");
    let text = place.run(&["train", "run.yaml"]);
    assert!(text.contains("try it: weightloom generate") && !text.contains("--chat"), "{text}");
}
