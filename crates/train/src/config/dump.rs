//! Writing a config as YAML.

use weightloom_document::variables;
use weightloom_document::{Content, Node};

use super::Config;

/// Writes a config as YAML with every key. Reading it returns the same config,
/// whatever environment variables are set.
pub fn dump(config: &Config) -> String {
    const PLAIN: &str = "a config consists of maps, lists and scalars";
    let text = serde_saphyr::to_string(config).expect(PLAIN);
    if !text.contains("${env:") {
        return text;
    }
    // Variables are expanded in values only.
    let mut node = Node::parse(&text).expect(PLAIN);
    escape(&mut node);
    serde_saphyr::to_string(&node).expect(PLAIN)
}

fn escape(node: &mut Node) {
    match &mut node.content {
        Content::String { text, .. } => *text = variables::escape(text),
        Content::List(list) => list.iter_mut().for_each(escape),
        Content::Map(map) => map.iter_mut().for_each(|entry| escape(&mut entry.value)),
        _ => {}
    }
}
