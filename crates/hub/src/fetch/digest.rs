//! Hashes of files.
//!
//! The hub identifies large files by their SHA-256, and small ones like git: by
//! the SHA-1 of `blob`, the length and the bytes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use weightloom_errors::FileError;

use super::error::FetchError;

/// Hash of a file, in lowercase hex digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Digest {
    /// SHA-256 of the bytes.
    Sha256(String),
    /// SHA-1 of the git blob.
    Git(String),
}

impl Digest {
    /// Parses a hash; 64 digits are SHA-256, 40 are git's.
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        match text.len() {
            64 => Some(Self::Sha256(text)),
            40 => Some(Self::Git(text)),
            _ => None,
        }
    }

    /// The digits; also the name of the blob in the cache.
    pub(super) fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::Git(hex) => hex,
        }
    }

    /// Computes a hash of the same kind for a file.
    pub(super) fn same_kind_of_file(&self, path: &Path) -> Result<Self, FetchError> {
        match self {
            Self::Sha256(_) => Self::sha256_of_file(path),
            Self::Git(_) => {
                let length = path.metadata().map_err(FileError::while_trying_to("read", path))?.len();
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {length}\0").as_bytes());
                Ok(Self::Git(finish(context, path)?))
            }
        }
    }

    /// Computes the SHA-256 of a file.
    pub(super) fn sha256_of_file(path: &Path) -> Result<Self, FetchError> {
        Ok(Self::Sha256(sha256_of_file(path)?))
    }
}

/// Computes the SHA-256 of a file, in hex digits.
pub(crate) fn sha256_of_file(path: &Path) -> Result<String, FileError> {
    finish(Context::new(&SHA256), path)
}

/// Computes the SHA-256 of a text, in hex digits.
pub(super) fn sha256_of_text(text: &str) -> String {
    hex(ring::digest::digest(&SHA256, text.as_bytes()).as_ref())
}

fn finish(mut context: Context, path: &Path) -> Result<String, FileError> {
    let failed = FileError::while_trying_to("read", path);
    let mut file = File::open(path).map_err(&failed)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(&failed)? {
            0 => return Ok(hex(context.finish().as_ref())),
            count => context.update(&buffer[..count]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_git_and_sha256sum() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "hello\n").unwrap();
        let git = Digest::from_hex("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        assert_eq!(git.same_kind_of_file(&path).unwrap(), git);
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(Digest::sha256_of_file(&path).unwrap().hex(), sha);
    }

    #[test]
    fn only_hex_of_two_lengths_is_accepted() {
        for text in ["", "abc", "../../etc/passwd", &"g".repeat(40), &"é".repeat(20)] {
            assert_eq!(Digest::from_hex(text), None, "{text}");
        }
    }
}
