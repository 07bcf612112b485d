//! Signatures of checkpoints: a fingerprint finds damage, a signature finds
//! forgers.
//!
//! A signature lists the files of a folder with their lengths and SHA-256
//! hashes, and is signed with Ed25519. It is a file of the folder,
//! `weightloom.sig`, which other programs ignore. Keys are PEM files, as
//! `openssl genpkey -algorithm ed25519` writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use ring::digest::{Context, SHA256};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use weightloom_errors::Hint;

use crate::observer::Observer;
use crate::storage::{Storage, StorageError};

/// The file of a signature.
pub const SIGNATURE_FILE: &str = "weightloom.sig";

/// The longest signature that is read.
const MAX_SIGNATURE: u64 = 64 << 20;

/// The version that is written.
const VERSION: u32 = 1;

/// Bytes that are hashed at once.
const CHUNK: usize = 4 << 20;

/// The DER encoding of an Ed25519 public key begins with this (RFC 8410).
const PUBLIC_KEY_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Why a checkpoint cannot be signed, or its signature not be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SignatureError {
    #[error("cannot read the key: expected a PEM file with an Ed25519 {kind} key")]
    Key { kind: &'static str },
    #[error("the checkpoint in {location} is not signed")]
    Unsigned { location: String },
    #[error("cannot read `{SIGNATURE_FILE}`: {message}")]
    Malformed { message: String },
    #[error("the checkpoint is signed with the key {found}, not with {expected}")]
    OtherKey { found: String, expected: PublicKey },
    #[error("the signature does not match its list of files")]
    Forged,
    #[error("`{file}` is not the file that was signed")]
    Changed { file: String },
    #[error("`{file}` is signed, but missing")]
    Missing { file: String },
    #[error("`{file}` is not signed")]
    Added { file: String },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Hint for SignatureError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Key { kind: "private" } => {
                "create one with `openssl genpkey -algorithm ed25519 -out key.pem`"
            }
            Self::Key { .. } => "extract it with `openssl pkey -in key.pem -pubout -out public.pem`",
            Self::Unsigned { .. } => "sign it with `weightloom sign`, or verify it without a key",
            Self::OtherKey { .. } => "use the public key of whom you trust to have signed it",
            Self::Storage(error) => return error.hint(),
            Self::Malformed { .. }
            | Self::Forged
            | Self::Changed { .. }
            | Self::Missing { .. }
            | Self::Added { .. } => {
                "get the checkpoint again from whom you trust; it was changed after it was signed"
            }
        };
        Some(hint.to_owned())
    }
}

/// A private key.
#[derive(Debug)]
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Reads a PEM file with a private key (PKCS #8).
    pub fn from_pem(text: &str) -> Result<Self, SignatureError> {
        let malformed = SignatureError::Key { kind: "private" };
        let der = pem(text, "PRIVATE KEY").ok_or_else(|| malformed.clone())?;
        // OpenSSL leaves out the public key, which the checked form requires.
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map(Self).map_err(|_| malformed)
    }

    /// The public key that belongs to it.
    pub fn public_key(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(bytes)
    }
}

/// A public key. Displays as hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Reads a PEM file with a public key.
    pub fn from_pem(text: &str) -> Result<Self, SignatureError> {
        let key =
            pem(text, "PUBLIC KEY").and_then(|der| der.strip_prefix(&PUBLIC_KEY_PREFIX)?.try_into().ok());
        key.map(Self).ok_or(SignatureError::Key { kind: "public" })
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// What a signature covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedFiles {
    /// Number of files.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// The key that signed them.
    pub key: PublicKey,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    version: u32,
    key: String,
    signature: String,
    files: BTreeMap<String, SignedFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedFile {
    length: u64,
    sha256: String,
}

impl Signature {
    /// The bytes that are signed.
    fn statement(&self) -> Vec<u8> {
        let mut text = format!("weightloom signature {}\n", self.version);
        for (name, file) in &self.files {
            // Quoted, so that a name cannot look like another line.
            let name = serde_json::Value::from(name.as_str());
            let _ = writeln!(text, "{} {} {name}", file.sha256, file.length);
        }
        text.into_bytes()
    }
}

/// Signs the files of a folder as they are, and writes the signature beside
/// them. Folders inside are not covered.
pub fn sign(
    storage: &dyn Storage,
    key: &SigningKey,
    observer: &dyn Observer,
) -> Result<SignedFiles, SignatureError> {
    let listed: Vec<_> = storage.list()?.into_iter().filter(|file| file.name != SIGNATURE_FILE).collect();
    let bytes = listed.iter().map(|file| file.length).sum();
    observer.begin("signing", bytes);
    let mut files = BTreeMap::new();
    for file in listed {
        let sha256 = sha256_of(storage, &file.name, file.length, observer)?;
        files.insert(file.name, SignedFile { length: file.length, sha256 });
    }
    let public = key.public_key();
    let mut signature =
        Signature { version: VERSION, key: public.to_string(), signature: String::new(), files };
    signature.signature = hex(key.0.sign(&signature.statement()).as_ref());
    let json = serde_json::to_vec_pretty(&signature)
        .map_err(|error| SignatureError::Malformed { message: error.to_string() })?;
    storage.put(SIGNATURE_FILE, &json)?;
    Ok(SignedFiles { files: signature.files.len(), bytes, key: public })
}

/// Checks that a folder holds exactly the files that the owner of a key signed.
pub fn verify_signature(
    storage: &dyn Storage,
    key: &PublicKey,
    observer: &dyn Observer,
) -> Result<SignedFiles, SignatureError> {
    let json = match storage.read_all(SIGNATURE_FILE, MAX_SIGNATURE) {
        Err(StorageError::Missing { .. }) => {
            return Err(SignatureError::Unsigned { location: storage.location() });
        }
        other => other?,
    };
    let malformed = |message: &str| SignatureError::Malformed { message: message.to_owned() };
    let signature: Signature =
        serde_json::from_slice(&json).map_err(|error| malformed(&error.to_string()))?;
    if signature.version != VERSION {
        return Err(malformed(&format!("unknown version {}", signature.version)));
    }
    let signed = unhex(&signature.signature).ok_or_else(|| malformed("invalid hexadecimal digits"))?;
    if UnparsedPublicKey::new(&ED25519, key.0).verify(&signature.statement(), &signed).is_err() {
        // What the file says about its key is a hint for people, and nothing more.
        let found = unhex(&signature.key).filter(|bytes| bytes.len() == 32).map(|bytes| hex(&bytes));
        return Err(match found.filter(|found| *found != key.to_string()) {
            Some(found) => SignatureError::OtherKey { found, expected: *key },
            None => SignatureError::Forged,
        });
    }
    let listed = storage.list()?;
    let names: BTreeSet<&str> = listed.iter().map(|file| file.name.as_str()).collect();
    if let Some(file) = signature.files.keys().find(|name| !names.contains(name.as_str())) {
        return Err(SignatureError::Missing { file: file.clone() });
    }
    let bytes = signature.files.values().map(|file| file.length).fold(0, u64::saturating_add);
    observer.begin("verifying the signature", bytes);
    for file in listed.into_iter().filter(|file| file.name != SIGNATURE_FILE) {
        let Some(signed) = signature.files.get(&file.name) else {
            return Err(SignatureError::Added { file: file.name });
        };
        if file.length != signed.length
            || sha256_of(storage, &file.name, file.length, observer)? != signed.sha256
        {
            return Err(SignatureError::Changed { file: file.name });
        }
    }
    Ok(SignedFiles { files: signature.files.len(), bytes, key: *key })
}

fn sha256_of(
    storage: &dyn Storage,
    name: &str,
    length: u64,
    observer: &dyn Observer,
) -> Result<String, StorageError> {
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; CHUNK.min(length as usize)];
    let mut offset = 0;
    while offset < length {
        let part = buffer.len().min((length - offset) as usize);
        storage.read_at(name, offset, &mut buffer[..part])?;
        context.update(&buffer[..part]);
        offset += part as u64;
        observer.advance(part as u64);
    }
    Ok(hex(context.finish().as_ref()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

/// The contents of a PEM block (RFC 7468).
fn pem(text: &str, label: &str) -> Option<Vec<u8>> {
    let rest = text.split_once(&format!("-----BEGIN {label}-----"))?.1;
    let body = rest.split_once(&format!("-----END {label}-----"))?.0;
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for byte in body.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xff_ffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}
