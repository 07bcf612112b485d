//! Adapters trained on chats: what is recorded, and what follows from it.

use serde_json::{Value, json};

use super::place::Place;

/// Opens the assistant's turn, unlike the tokenizer's template.
const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";

const BASE: &str = "./first/checkpoints/step_1";
const ADAPTER: &str = "out/checkpoints/step_2";

/// A base model trained on text, and an adapter trained on chats.
fn trained() -> Place {
    let place = Place::new();
    place.train(&["train.checkpoint.output_dir=first", "train.max_steps=1"]);
    let chat = |number: usize| {
        json!({"messages": [{"role": "user", "content": format!("count {number}?")},
                            {"role": "assistant", "content": "one, two"}]})
    };
    let chats: String = (0..8).map(|number| format!("{}\n", chat(number))).collect();
    place.write("chats/a.jsonl", &chats);
    place.write("chats.jsonl", &chats);
    place.write("other.jsonl", format!("{}\n{}\n{}\n{}\n", chat(20), chat(21), chat(22), chat(23)));
    place.write("own.jinja", TEMPLATE);
    let weights = format!("model.weights_path={BASE}");
    place.train(&[
        &weights,
        "model.lora={rank: 4, alpha: 8, target_modules: [q_proj, v_proj]}",
        "data.paths=[chats]",
        "data.chat_template=own.jinja",
        "data.packing=false",
        "data.max_seq_len=48",
    ]);
    place
}

fn record(place: &Place, folder: &str) -> Value {
    serde_json::from_slice(&std::fs::read(place.path(folder).join("training_data.json")).unwrap()).unwrap()
}

#[test]
fn what_was_trained_on_chats_is_asked_in_chats() {
    let place = trained();
    assert_eq!(record(&place, BASE)["kinds"], json!(["text"]));
    let found = record(&place, ADAPTER);
    assert_eq!((&found["kinds"], &found["packing"]), (&json!(["chat"]), &json!(false)));
    assert_eq!(found["chat_template"]["source"], json!({"file": "own.jinja"}));
    assert_eq!(found["files"][0]["kind"], "chat");
    let template = std::fs::read_to_string(place.path(ADAPTER).join("chat_template.jinja")).unwrap();
    assert_eq!(template, TEMPLATE);

    let generate = |more: &[&str]| {
        let ask = ["generate", BASE, "count 3?", "--max-new-tokens", "4", "--adapter", ADAPTER];
        let output = place.command().arg("--json").args(ask).args(more).output().unwrap();
        let note = String::from_utf8(output.stderr).unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        (answer["prompt_tokens"].as_u64().unwrap(), answer["tokens"].clone(), note)
    };
    // One token for each byte, and one for each end of a turn.
    let rendered = "<user>count 3?".len() + 1 + "<assistant>".len();
    let (tokens, text, note) = generate(&[]);
    assert_eq!(tokens, rendered as u64);
    assert!(note.contains("using the chat template: the adapter was trained on chats"), "{note}");
    let (tokens, asked, note) = generate(&["--chat"]);
    assert_eq!((tokens, &asked), (rendered as u64, &text));
    assert!(!note.contains("chat template"), "{note}");
    let (tokens, _, note) = generate(&["--no-chat"]);
    assert_eq!((tokens, note.contains("chat template")), ("count 3?".len() as u64, false));
    let (tokens, ..) = generate(&["--system", "Count."]);
    assert_eq!(tokens, (rendered + "<system>Count.".len() + 1) as u64);
    assert!(!generate(&["--quiet"]).2.contains("chat template"));
    // The base was trained on text.
    let plain = place.json(&["generate", BASE, "count 3?", "--max-new-tokens", "4"]);
    assert_eq!(plain["prompt_tokens"], "count 3?".len());
}

#[test]
fn a_suite_of_chats_is_generated_and_judged_in_chats() {
    let place = trained();
    place.json(&["sway", "autogen", "chats/a.jsonl", "--adapter", ADAPTER, "-o", "sway.yaml"]);
    let suite = std::fs::read_to_string(place.path("sway.yaml")).unwrap();
    assert!(suite.contains("# The training record of the adapter names this file"), "{suite}");
    assert!(
        suite.contains("      # line 1\n      - prompt: \"count 0?\"\n        gold: \"one, two\"\n"),
        "{suite}"
    );
    assert!(!suite.contains("messages\\\""), "{suite}");
    let only = ["--only", "next_tokens,other_words", "--no-cache"];
    let report = place.json(&[&["sway", "run", "sway.yaml"], &only[..]].concat());
    let notes = report["backend"]["notes"].to_string();
    let wanted =
        "prompts are rendered with the model's chat template, because the adapter was trained on chats";
    assert!(notes.contains(wanted), "{notes}");
    for record in report["probes"].as_array().unwrap() {
        assert_ne!(record["verdict"], "error", "{record}");
    }
    // A file of the same size may be the same; another was not trained on.
    for (file, said) in
        [("chats.jsonl", "No training record names"), ("other.jsonl", "does not name this file")]
    {
        place.json(&["sway", "autogen", file, "--adapter", ADAPTER, "-o", "other.yaml", "--overwrite"]);
        let suite = std::fs::read_to_string(place.path("other.yaml")).unwrap();
        assert!(suite.contains(said), "{suite}");
    }
}
