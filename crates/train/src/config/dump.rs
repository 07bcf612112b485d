//! A configuration as a file.

use weightloom_document::variable::escaped;
use weightloom_document::{Content, Node};

use super::Config;

/// A configuration as YAML, with every key. Reading it gives the same
/// configuration, whatever variables there are.
pub fn dump(config: &Config) -> String {
    const PLAIN: &str = "a configuration is made of maps, lists and plain values";
    let text = serde_saphyr::to_string(config).expect(PLAIN);
    if !text.contains("${env:") {
        return text;
    }
    // Only values are escaped: keys are taken as they are.
    let mut node = Node::parse(&text).expect(PLAIN);
    escape(&mut node);
    serde_saphyr::to_string(&node).expect(PLAIN)
}

fn escape(node: &mut Node) {
    match &mut node.content {
        Content::Text { text, .. } => *text = escaped(text),
        Content::List(list) => list.iter_mut().for_each(escape),
        Content::Map(map) => map.iter_mut().for_each(|entry| escape(&mut entry.value)),
        _ => {}
    }
}
