//! Where keys stand in a YAML text.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// The line of a key, with those around it, or else of the nearest one that is
/// there.
pub(super) fn line_of(text: &str, path: &[&str]) -> Option<u64> {
    let tree: Written = serde_saphyr::from_str(text).ok()?;
    let (mut inner, mut line) = (&tree, None);
    for part in path {
        let Some((key, value)) = inner.entries.iter().find(|(key, _)| key.value == *part) else { break };
        (inner, line) = (value, Some(key.referenced.line()));
    }
    line
}

/// The line of a word, as key or as value, somewhere below a key of the text.
pub(super) fn line_of_word(text: &str, below: &str, word: &str) -> Option<u64> {
    let tree: Written = serde_saphyr::from_str(text).ok()?;
    let (_, value) = tree.entries.iter().find(|(key, _)| key.value == below)?;
    value.find(word)
}

/// What of a text says where something stands.
#[derive(Default)]
struct Written {
    entries: Vec<(Spanned<String>, Written)>,
    items: Vec<Written>,
    word: Option<Spanned<String>>,
}

impl Written {
    fn find(&self, word: &str) -> Option<u64> {
        let own = self.word.iter().filter(|found| found.value == word).map(|found| found.referenced.line());
        let keys = self.entries.iter().filter_map(|(key, value)| {
            if key.value == word { Some(key.referenced.line()) } else { value.find(word) }
        });
        own.chain(keys).chain(self.items.iter().filter_map(|item| item.find(word))).next()
    }
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The place of a word is known from around it.
        let spanned = Spanned::<Inner>::deserialize(deserializer)?;
        let mut written = spanned.value.written;
        let place = (spanned.referenced, spanned.defined);
        written.word = spanned.value.word.map(|word| Spanned::new(word, place.0, place.1));
        Ok(written)
    }
}

#[derive(Default)]
struct Inner {
    written: Written,
    word: Option<String>,
}

impl<'de> Deserialize<'de> for Inner {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InnerVisitor)
    }
}

struct InnerVisitor;

impl<'de> Visitor<'de> for InnerVisitor {
    type Value = Inner;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Inner, E> {
        Ok(Inner::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Inner, E> {
        Ok(Inner::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Inner, E> {
        Ok(Inner::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Inner, E> {
        Ok(Inner::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Inner, E> {
        Ok(Inner::default())
    }

    fn visit_str<E>(self, word: &str) -> Result<Inner, E> {
        Ok(Inner { word: Some(word.to_owned()), ..Inner::default() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Inner, A::Error> {
        let mut items = Vec::new();
        while let Some(value) = values.next_element()? {
            items.push(value);
        }
        Ok(Inner { written: Written { items, ..Written::default() }, word: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Inner, A::Error> {
        let mut entries = Vec::new();
        while let Some(pair) = pairs.next_entry()? {
            entries.push(pair);
        }
        Ok(Inner { written: Written { entries, ..Written::default() }, word: None })
    }
}
