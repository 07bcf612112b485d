//! `sign` and `verify --key`, as a user sees them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::checkpoints::copy;

// A key that protects nothing, in parts, since scanners look for private keys.
pub const PRIVATE: &str = concat!(
    "-----BEGIN ",
    "PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIEESqgKh7ow0+V5FvA9vHyVHPpFrKBBA4EYS72Asj/K2\n-----END ",
    "PRIVATE KEY-----\n"
);
pub const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAbDr4NKji+aGFe+DQ5IPgN6rA2ueN9DzNS9ac/lR/r2c=
-----END PUBLIC KEY-----
";

/// Exit code and all that was printed.
fn run(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = Command::new(assert_cmd::cargo::cargo_bin("weightloom"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

#[test]
fn a_signature_finds_forgers() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/fixtures");
    copy(&fixtures.join("gguf/llama.safetensors"), &folder.join("llama.safetensors"));
    fs::write(folder.join("key.pem"), PRIVATE).unwrap();
    fs::write(folder.join("public.pem"), PUBLIC).unwrap();
    assert_eq!(run(folder, &["convert", "llama.safetensors", "model", "--to", "native"]).0, 0);
    let (code, text) = run(folder, &["verify", "model", "--key", "public.pem"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("is not signed\nhint: sign it"), "{text}");
    let (code, text) = run(folder, &["sign", "model", "--key", "key.pem"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("model: signed 2 files, "), "{text}");
    let (code, text) = run(folder, &["verify", "model", "--key", "public.pem"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("; signed with the key 6c3af834a8e2f9a1"), "{text}");
    fs::write(folder.join("model/config.json"), "{}").unwrap();
    let (code, text) = run(folder, &["verify", "model", "--key", "public.pem"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("`config.json` is not signed"), "{text}");
    // Without a key, the signature is not looked at.
    assert_eq!(run(folder, &["verify", "model"]).0, 0);
    for arguments in [
        ["sign", "model", "--key", "public.pem"],
        ["verify", "model", "--key", "key.pem"],
        ["sign", "llama.safetensors", "--key", "key.pem"],
        ["verify", "llama.safetensors", "--key", "public.pem"],
        ["sign", "model", "--key", "missing.pem"],
    ] {
        let (code, text) = run(folder, &arguments);
        assert_eq!(code, 2, "{arguments:?}: {text}");
        assert!(text.contains("\nhint: "), "{arguments:?}: {text}");
    }
}
