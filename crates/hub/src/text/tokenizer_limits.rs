//! Limits on what tokenizer files can ask for.
//!
//! Tokenizer files are untrusted. A pipeline that could make a text much longer
//! is rejected when it is read, panics of the library become errors, and so do
//! regular expressions that give up on a text: the library would treat the
//! rest of the text as one piece, and its tokens would be wrong.

use fancy_regex::Regex;
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::{NormalizedString, Normalizer};

use super::caught_panic::catch;
use super::error::TextError;

/// Limit for texts to encode: the library needs about a hundred bytes per byte.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 26;

/// How many times longer all replacements together can make a text.
const MAX_GROWTH: usize = 64;

/// Limit for texts that a pipeline adds: prefixes and suffixes.
const MAX_ADDED_BYTES: usize = 1 << 12;

/// Limit for prefixes and suffixes within a model.
const MAX_AFFIX_BYTES: usize = 256;

/// Limit for steps of a normalizer or decoder.
const MAX_STEPS: usize = 64;

/// Texts without a longer run of one kind of character exhaust no sensible
/// pattern: backtracking is limited to a million steps.
const LONG_RUN: usize = 1000;

/// The pattern of byte-level pre-tokenizers, from GPT-2.
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Checks a tokenizer's pipeline, and returns the patterns that split or
/// replace text.
pub(super) fn check(library: &tokenizers::Tokenizer) -> Result<Vec<Regex>, TextError> {
    let failed = |error: serde_json::Error| TextError::invalid("tokenizer.json", &error);
    let normalizer = serde_json::to_value(library.get_normalizer()).map_err(failed)?;
    let pre_tokenizer = serde_json::to_value(library.get_pre_tokenizer()).map_err(failed)?;
    let decoder = serde_json::to_value(library.get_decoder()).map_err(failed)?;
    for (part, steps) in [("normalizer", &normalizer), ("decoder", &decoder)] {
        check_growth(part, steps)?;
    }
    // The models put these at every character or word.
    let affixes = match library.get_model() {
        ModelWrapper::BPE(model) => [&model.continuing_subword_prefix, &model.end_of_word_suffix],
        ModelWrapper::WordPiece(model) => {
            if model.continuing_subword_prefix.len() > MAX_AFFIX_BYTES {
                return Err(TextError::Growth { part: "model" });
            }
            [&None, &None]
        }
        _ => [&None, &None],
    };
    if affixes.into_iter().flatten().any(|affix| affix.len() > MAX_AFFIX_BYTES) {
        return Err(TextError::Growth { part: "model" });
    }
    let mut patterns = Vec::new();
    for part in [&normalizer, &pre_tokenizer] {
        for step in steps(part) {
            let pattern = match step["type"].as_str() {
                Some("ByteLevel") if step["use_regex"] != Value::Bool(false) => Some(BYTE_LEVEL),
                _ => step["pattern"]["Regex"].as_str(),
            };
            if let Some(pattern) = pattern {
                patterns
                    .push(Regex::new(pattern).map_err(|error| TextError::invalid("tokenizer.json", &error))?);
            }
        }
    }
    Ok(patterns)
}

/// Makes sure that no pattern gives up on a text.
pub(super) fn check_patterns(
    library: &tokenizers::Tokenizer,
    patterns: &[Regex],
    text: &str,
) -> Result<(), TextError> {
    if patterns.is_empty() || !has_long_run(text) {
        return Ok(());
    }
    let mut normalized = NormalizedString::from(text);
    if let Some(normalizer) = library.get_normalizer() {
        guarded(|| normalizer.normalize(&mut normalized))?;
    }
    for pattern in patterns {
        if let Some(Err(error)) = pattern.find_iter(normalized.get()).find(Result::is_err) {
            return Err(TextError::Pattern {
                pattern: pattern.as_str().to_owned(),
                message: error.to_string(),
            });
        }
    }
    Ok(())
}

/// Runs a part of the library. It panics on some invalid files.
pub(super) fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TextError> {
    match catch(run) {
        Some(result) => result.map_err(|error| TextError::Encode { message: error.to_string() }),
        None => Err(TextError::Panicked),
    }
}

/// Whether a run of spaces, letters or other characters is long.
fn has_long_run(text: &str) -> bool {
    if text.len() < LONG_RUN {
        return false;
    }
    let kind = |char: char| match char {
        char if char.is_whitespace() => 0,
        char if char.is_alphanumeric() => 1,
        _ => 2,
    };
    let (mut run, mut last) = (0, 3);
    text.chars().any(|char| {
        let kind = kind(char);
        run = if kind == last { run + 1 } else { 1 };
        last = kind;
        run >= LONG_RUN
    })
}

/// The steps of a normalizer, pre-tokenizer or decoder.
fn steps(part: &Value) -> Vec<&Value> {
    let inner = ["normalizers", "pretokenizers", "decoders"].into_iter().find_map(|key| part[key].as_array());
    match inner {
        Some(inner) => inner.iter().flat_map(steps).collect(),
        None => vec![part],
    }
}

/// Limits how much longer the steps can make a text.
fn check_growth(part: &'static str, value: &Value) -> Result<(), TextError> {
    let steps = steps(value);
    if steps.len() > MAX_STEPS {
        return Err(TextError::ManySteps { part, steps: steps.len(), limit: MAX_STEPS });
    }
    let (mut growth, mut added) = (1_usize, 0_usize);
    let length = |step: &Value, key: &str| step[key].as_str().map_or(0, str::len);
    for step in steps {
        match step["type"].as_str().unwrap_or_default() {
            "Replace" => {
                let content = length(step, "content");
                growth = growth.saturating_mul(match step["pattern"]["String"].as_str() {
                    Some(pattern) => content.div_ceil(pattern.len().max(1)).max(1),
                    // Can match nothing between any two characters.
                    None => content + 1,
                });
            }
            "Prepend" => added = added.saturating_add(length(step, "prepend").saturating_mul(growth)),
            "Precompiled" => {
                growth = growth.saturating_mul(longest_mapped(step["precompiled_charsmap"].as_str()));
            }
            // Other decoders add at most a prefix or a delimiter per token.
            _ => {
                for key in ["prefix", "suffix", "pad_token", "word_delimiter_token"] {
                    added = added.max(length(step, key));
                }
            }
        }
    }
    if growth > MAX_GROWTH || added > MAX_ADDED_BYTES {
        return Err(TextError::Growth { part });
    }
    Ok(())
}

/// The growth by a precompiled map of characters: the length of its longest
/// entry relative to those of Unicode, which the map usually contains.
fn longest_mapped(base64: Option<&str>) -> usize {
    /// Longest compatibility decomposition, of one character.
    const UNICODE: usize = 36;
    let bytes = decode_base64(base64.unwrap_or_default());
    let trie =
        bytes.get(..4).map_or(0, |size| size.iter().rev().fold(0, |all, &byte| all << 8 | usize::from(byte)));
    let mapped = bytes.get(trie.saturating_add(4)..).unwrap_or_default();
    mapped.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0).div_ceil(UNICODE).max(1)
}

fn decode_base64(text: &str) -> Vec<u8> {
    let (mut out, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for byte in text.bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn growing_pipelines_are_rejected() {
        let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let twice = replace(json!({"String": "a"}), "aa");
        let fine = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, replace(json!({"String": " "}), "▁"), {"type": "NFKC"},
            replace(json!({"Regex": " {2,}"}), "▁"),
        ]});
        check_growth("normalizer", &fine).unwrap();
        for bad in [
            json!({"type": "Sequence", "normalizers": vec![twice.clone(); 7]}),
            json!({"type": "Sequence", "normalizers": vec![replace(json!({"String": "a"}), "a"); 65]}),
            json!({"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": vec![twice; 40]}]}),
            replace(json!({"Regex": ""}), &"x".repeat(64)),
            replace(json!({"String": "x"}), &"x".repeat(65)),
            json!({"type": "Prepend", "prepend": "x".repeat(5000)}),
            json!({"type": "CTC", "pad_token": "x", "word_delimiter_token": "x".repeat(5000), "cleanup": true}),
        ] {
            assert!(check_growth("normalizer", &bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn base64_is_decoded() {
        assert_eq!(decode_base64("aGVsbG8gd29ybGQ="), b"hello world");
        // A trie of 0 bytes, and an entry of 77 bytes.
        let blob = format!("AAAAAHh4{}", "eHh4".repeat(25));
        assert_eq!(longest_mapped(Some(&blob)), 3);
        assert_eq!(longest_mapped(None), 1);
    }

    #[test]
    fn runs_are_found() {
        assert!(!has_long_run(&"a ".repeat(5000)));
        assert!(has_long_run(&format!("x{}y", " ".repeat(1000))));
        assert!(has_long_run(&"1".repeat(2000)));
    }
}
