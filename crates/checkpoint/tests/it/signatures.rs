//! Signatures: every change after signing is found, and so is another signer.

use std::fs;
use std::path::Path;

use weightloom_checkpoint::{
    ConvertOptions, LocalStorage, PublicKey, SIGNATURE_FILE, SignatureError, SigningKey, Source, Target,
    convert, sign, verify, verify_signature,
};
use weightloom_errors::Hint as _;

// Written by OpenSSL 3: genpkey -algorithm ed25519, and pkey -pubout.
// In parts, since it protects nothing and scanners look for private keys.
const PRIVATE: &str = concat!(
    "-----BEGIN ",
    "PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIEESqgKh7ow0+V5FvA9vHyVHPpFrKBBA4EYS72Asj/K2\n-----END ",
    "PRIVATE KEY-----\n"
);
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAbDr4NKji+aGFe+DQ5IPgN6rA2ueN9DzNS9ac/lR/r2c=
-----END PUBLIC KEY-----
";
const OTHER: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAbDr4NKji+aGFe+DQ5IPgN6rA2ueN9DzNS9ac/lR/r2Y=
-----END PUBLIC KEY-----
";

/// A native checkpoint with a config.
fn checkpoint(folder: &Path) -> LocalStorage {
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[1, 2, 3, 4]].concat();
    fs::write(folder.join("x.safetensors"), bytes).unwrap();
    let source = Source::open(folder.join("x.safetensors")).unwrap();
    let mut options = ConvertOptions::default();
    options.save.assets.insert("config.json".to_owned(), b"{}".to_vec());
    convert(&source, &Target::Folder(folder.join("model")), &options, &()).unwrap();
    LocalStorage::new(folder.join("model"))
}

#[test]
fn a_signed_checkpoint_verifies_and_stays_readable() {
    let folder = tempfile::tempdir().unwrap();
    let storage = checkpoint(folder.path());
    let (private, public) = (SigningKey::from_pem(PRIVATE).unwrap(), PublicKey::from_pem(PUBLIC).unwrap());
    assert_eq!(private.public_key(), public);
    let unsigned = verify_signature(&storage, &public, &()).unwrap_err();
    assert!(matches!(unsigned, SignatureError::Unsigned { .. }) && unsigned.hint().is_some());
    let signed = sign(&storage, &private, &()).unwrap();
    assert_eq!((signed.files, signed.key), (3, public));
    assert_eq!(verify_signature(&storage, &public, &()).unwrap(), signed);
    // Signing again replaces the signature.
    assert_eq!(sign(&storage, &private, &()).unwrap(), signed);
    verify(&Source::open(folder.path().join("model")).unwrap(), &()).unwrap();
}

#[test]
fn every_change_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let storage = checkpoint(folder.path());
    let public = PublicKey::from_pem(PUBLIC).unwrap();
    sign(&storage, &SigningKey::from_pem(PRIVATE).unwrap(), &()).unwrap();
    let model = folder.path().join("model");
    let refused = || verify_signature(&LocalStorage::new(&model), &public, &()).unwrap_err();
    let names: Vec<String> = fs::read_dir(&model)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 4);
    for name in names {
        let path = model.join(&name);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            let result = verify_signature(&LocalStorage::new(&model), &public, &());
            // White space in the signature's file, and the key it names for
            // people, say nothing about the files.
            let harmless = name == SIGNATURE_FILE && result.is_ok();
            assert!(result.is_err() || harmless, "byte {at} of {name}");
            if name != SIGNATURE_FILE {
                assert_eq!(result, Err(SignatureError::Changed { file: name.clone() }));
            }
        }
        fs::remove_file(&path).unwrap();
        match name.as_str() {
            SIGNATURE_FILE => assert!(matches!(refused(), SignatureError::Unsigned { .. })),
            _ => assert_eq!(refused(), SignatureError::Missing { file: name.clone() }),
        }
        fs::write(&path, whole).unwrap();
    }
    fs::write(model.join("chat_template.jinja"), "").unwrap();
    assert_eq!(refused(), SignatureError::Added { file: "chat_template.jinja".to_owned() });
}

#[test]
fn other_keys_and_other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let storage = checkpoint(folder.path());
    sign(&storage, &SigningKey::from_pem(PRIVATE).unwrap(), &()).unwrap();
    let other = PublicKey::from_pem(OTHER).unwrap();
    let error = verify_signature(&storage, &other, &()).unwrap_err();
    assert!(matches!(error, SignatureError::OtherKey { .. }), "{error}");
    for text in ["", PUBLIC, "-----BEGIN CERTIFICATE-----", "\u{1b}[2J"] {
        assert_eq!(SigningKey::from_pem(text).err(), Some(SignatureError::Key { kind: "private" }));
    }
    for text in ["", PRIVATE, "-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----"] {
        let error = PublicKey::from_pem(text).unwrap_err();
        assert_eq!(error, SignatureError::Key { kind: "public" });
        assert!(error.hint().is_some());
    }
}
