//! Line numbers of keys in a YAML text.

use weightloom_document::{Content, Entry, Mark, Node, Rejected};

/// The line of a nested key, or of its nearest existing parent.
pub(super) fn line_of(text: &str, path: &[&str]) -> Option<u64> {
    let (mut inner, mut line) = (read(text)?, None);
    for part in path {
        let Some(entry) = entry(inner, part) else { break };
        line = line_at(entry.mark);
        inner = entry.value;
    }
    line
}

/// The line of a word, as key or value, inside a top-level key.
pub(super) fn line_of_word(text: &str, inside: &str, word: &str) -> Option<u64> {
    find(&entry(read(text)?, inside)?.value, word)
}

fn read(text: &str) -> Option<Node> {
    Node::parse_rejecting(text, Rejected::DuplicateKeys).ok()
}

fn entry(node: Node, key: &str) -> Option<Entry> {
    let Content::Map(map) = node.content else { return None };
    map.into_iter().find(|entry| entry.key == key)
}

fn find(node: &Node, word: &str) -> Option<u64> {
    match &node.content {
        Content::String { text, .. } => (text == word).then(|| line_at(node.mark))?,
        Content::List(list) => list.iter().find_map(|node| find(node, word)),
        Content::Map(map) => map
            .iter()
            .find_map(|entry| if entry.key == word { line_at(entry.mark) } else { find(&entry.value, word) }),
        _ => None,
    }
}

fn line_at(mark: Mark) -> Option<u64> {
    match mark {
        Mark::At { line, .. } => Some(line),
        Mark::Override(_) | Mark::Default => None,
    }
}
