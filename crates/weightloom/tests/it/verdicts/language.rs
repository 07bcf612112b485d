//! A language of 256 words of three letters, small enough to learn in seconds,
//! and documents in it.
//!
//! Common words are in six classes that follow each other, and each word has two
//! likely successors. Rare words are in two classes that alternate, with equally
//! likely successors. A document is written in rare words, and gives each of
//! them three likely successors, which fine-tuning can learn.

use std::path::Path;

use serde_json::{Map, Value, json};
use weightloom::sway::numbers::pcg64::Pcg64;

const WORDS: usize = 256;
const CLASS: usize = 32;
/// The first of the rare words.
const RARE: usize = 192;
/// Tokens before the words: padding, end, unknown.
const SPECIAL: usize = 3;
const LETTERS: usize = 12;

pub const VOCABULARY: usize = SPECIAL + WORDS;
pub const PADDING: i64 = 0;
/// Characters of a word with its space.
pub const WIDTH: usize = 4;

/// A word of three letters.
fn spelled(word: usize) -> String {
    let consonant = |at: usize| char::from(b"bdfgklmnprst"[at % LETTERS]);
    let vowel = char::from(b"aeiou"[word / LETTERS / LETTERS]);
    [consonant(word / LETTERS), vowel, consonant(word)].iter().collect()
}

/// Words as a text.
pub fn text(words: &[usize]) -> String {
    words.iter().map(|&word| spelled(word)).collect::<Vec<_>>().join(" ")
}

/// A word as a token.
pub fn token(word: usize) -> i64 {
    (SPECIAL + word) as i64
}

/// Writes the tokenizer's files.
pub fn write_tokenizer(folder: &Path) {
    let special = ["<pad>", "<end>", "<unk>"];
    let all = special.iter().map(|&name| name.to_owned()).chain((0..WORDS).map(spelled));
    let vocabulary: Map<String, Value> = all.enumerate().map(|(at, word)| (word, json!(at))).collect();
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(at, name)| {
            json!({"id": at, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>",
        "eos_token": "<end>", "unk_token": "<unk>"});
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// Which words follow which.
#[derive(Clone)]
pub struct Habits {
    liked: Vec<Vec<usize>>,
    /// How often a likely successor follows.
    strength: f64,
    order: Order,
}

/// Which class follows which.
#[derive(Clone, Copy)]
enum Order {
    Common,
    /// Common words, the classes from last to first.
    Backwards,
    Rare,
}

impl Order {
    fn next(self, word: usize) -> usize {
        let class = word / CLASS;
        let common = RARE / CLASS;
        match self {
            Self::Common => (class + 1) % common,
            Self::Backwards => (class + common - 1) % common,
            Self::Rare => common + (class + 1) % 2,
        }
    }

    fn first(self, generator: &mut Pcg64) -> usize {
        match self {
            Self::Common | Self::Backwards => generator.below(RARE as u32) as usize,
            Self::Rare => RARE + generator.below((WORDS - RARE) as u32) as usize,
        }
    }
}

impl Habits {
    fn new(order: Order, liked: usize, strength: f64, generator: &mut Pcg64) -> Self {
        let mut pick = |word: usize| order.next(word) * CLASS + generator.below(CLASS as u32) as usize;
        let liked = (0..WORDS).map(|word| (0..liked).map(|_| pick(word)).collect()).collect();
        Self { liked, strength, order }
    }

    /// The common language, the same in every run.
    pub fn common() -> Self {
        Self::new(Order::Common, 2, 0.7, &mut Pcg64::new(1))
    }

    /// Rare words of the common language.
    pub fn rare() -> Self {
        Self::new(Order::Rare, 0, 0.0, &mut Pcg64::new(1))
    }

    /// The language of a document.
    pub fn of_document(generator: &mut Pcg64) -> Self {
        Self::new(Order::Rare, 3, 0.9, generator)
    }

    /// The common language backwards.
    pub fn wrong(generator: &mut Pcg64) -> Self {
        Self::new(Order::Backwards, 2, 0.7, generator)
    }

    /// Generates this many words.
    pub fn words(&self, length: usize, generator: &mut Pcg64) -> Vec<usize> {
        let first = self.order.first(generator);
        let mut words = vec![first];
        self.extend(&mut words, length - 1, generator);
        words
    }

    /// Appends this many words.
    pub fn extend(&self, words: &mut Vec<usize>, more: usize, generator: &mut Pcg64) {
        let mut last = words.last().copied().unwrap_or_default();
        for _ in 0..more {
            let liked = &self.liked[last];
            last = if generator.unit() < self.strength {
                liked[generator.below(liked.len() as u32) as usize]
            } else {
                self.order.next(last) * CLASS + generator.below(CLASS as u32) as usize
            };
            words.push(last);
        }
    }
}
