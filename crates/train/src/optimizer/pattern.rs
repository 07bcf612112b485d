//! Patterns of parameter names.
//!
//! A pattern matches the leading components of a name, and so everything inside
//! a module: `model.layers.0` is all of layer 0. `*` matches any component, or
//! any letters within one: `model.layers.*.mlp`,
//! `model.layers.*.self_attn.*_proj`. It never matches a dot.

use std::collections::BTreeSet;

use weightloom_errors::{Hint, nearest};

/// An invalid pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PatternError {
    #[error("`{pattern}` in `{key}` has an empty component")]
    EmptyComponent { key: &'static str, pattern: String },
    #[error("`{pattern}` in `{key}` matches no parameter")]
    Unmatched { key: &'static str, pattern: String, near: Option<String> },
}

impl Hint for PatternError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::EmptyComponent { .. } => "use `*` for any component".to_owned(),
            Self::Unmatched { near: Some(near), .. } => format!("did you mean `{near}`?"),
            Self::Unmatched { near: None, .. } => {
                "start with the first component of a name, as in `model.layers.*.mlp`".to_owned()
            }
        })
    }
}

/// A set of patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patterns {
    key: &'static str,
    patterns: Vec<String>,
    anchor: Anchor,
}

/// Where in a name a pattern may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    /// At the first component.
    Start,
    /// At any component.
    Anywhere,
}

impl Patterns {
    /// The patterns of a config key.
    pub fn new(key: &'static str, patterns: &[String]) -> Result<Self, PatternError> {
        match patterns.iter().find(|pattern| pattern.split('.').any(str::is_empty)) {
            Some(pattern) => Err(PatternError::EmptyComponent { key, pattern: pattern.clone() }),
            None => Ok(Self { key, patterns: patterns.to_vec(), anchor: Anchor::Start }),
        }
    }

    /// The patterns of a config key, which may begin at any component of a name, such
    /// as `lora_B` and `layers.0`.
    pub fn anywhere(key: &'static str, patterns: &[String]) -> Result<Self, PatternError> {
        Ok(Self { anchor: Anchor::Anywhere, ..Self::new(key, patterns)? })
    }

    /// Whether any pattern matches a parameter.
    pub fn matches(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| self.anchor.matches(pattern, name))
    }

    /// Checks that each pattern matches a parameter.
    pub fn check<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<(), PatternError> {
        let names: Vec<&str> = names.into_iter().collect();
        for pattern in &self.patterns {
            if !names.iter().any(|name| self.anchor.matches(pattern, name)) {
                let near = near(pattern, &names);
                return Err(PatternError::Unmatched { key: self.key, pattern: pattern.clone(), near });
            }
        }
        Ok(())
    }
}

impl Anchor {
    fn matches(self, pattern: &str, name: &str) -> bool {
        if self == Self::Start {
            return is_prefix_match(pattern, name);
        }
        let starts = std::iter::once(0).chain(name.match_indices('.').map(|(dot, _)| dot + 1));
        starts.into_iter().any(|start| is_prefix_match(pattern, &name[start..]))
    }
}

fn is_prefix_match(pattern: &str, name: &str) -> bool {
    let mut parts = name.split('.');
    pattern.split('.').all(|wanted| parts.next().is_some_and(|part| component_matches(wanted, part)))
}

/// Whether a component matches, with `*` for any letters. Greedy matching with
/// backtracking to the last star is enough.
fn component_matches(pattern: &str, part: &str) -> bool {
    let (pattern, part) = (pattern.as_bytes(), part.as_bytes());
    let (mut at, mut place) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while place < part.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(wanted) if *wanted == part[place] => {
                at += 1;
                place += 1;
            }
            _ => {
                let Some((star_at, begun)) = star else { return false };
                star = Some((star_at, begun + 1));
                at = star_at + 1;
                place = begun + 1;
            }
        }
    }
    pattern[at..].iter().all(|rest| *rest == b'*')
}

/// The likely intended pattern: completes one that lacks its first components,
/// and corrects a misspelled one.
fn near(pattern: &str, names: &[&str]) -> Option<String> {
    let wanted: Vec<&str> = pattern.split('.').collect();
    let mut candidates = BTreeSet::new();
    for name in names {
        let parts: Vec<&str> = name.split('.').collect();
        for start in 1..parts.len() {
            let below = parts[start..].join(".");
            if is_prefix_match(pattern, &below) {
                // A pattern rarely means a single layer.
                let before = parts[..start].iter().map(|part| if is_number(part) { "*" } else { part });
                return Some(before.chain(wanted.iter().copied()).collect::<Vec<_>>().join("."));
            }
        }
        let kept = |(wanted, part): (&&'_ str, &&'_ str)| {
            if component_matches(wanted, part) { (*wanted).to_owned() } else { (*part).to_owned() }
        };
        if parts.len() >= wanted.len() {
            candidates.insert(wanted.iter().zip(&parts).map(kept).collect::<Vec<_>>().join("."));
        }
    }
    nearest(pattern, candidates.iter().map(String::as_str)).map(str::to_owned)
}

fn is_number(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_may_begin_at_any_component_where_a_key_says_so() {
        let patterns = |pattern: &str| Patterns::anywhere("lr_scale", &[pattern.to_owned()]).unwrap();
        for pattern in ["q_proj", "model.layers.0", "layers.*.self_attn", "weight", "self_*"] {
            assert!(patterns(pattern).matches("model.layers.0.self_attn.q_proj.weight"), "{pattern}");
        }
        for pattern in ["proj", "layers.1", "q_proj.bias", "ayers"] {
            assert!(!patterns(pattern).matches("model.layers.0.self_attn.q_proj.weight"), "{pattern}");
        }
        let error = patterns("q_prj").check(NAMES).unwrap_err();
        assert_eq!(error.to_string(), "`q_prj` in `lr_scale` matches no parameter");
    }

    const NAMES: [&str; 6] = [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    ];

    fn matched(patterns: &[&str]) -> Vec<usize> {
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let patterns = Patterns::new("freeze", &patterns).unwrap();
        (0..NAMES.len()).filter(|number| patterns.matches(NAMES[*number])).collect()
    }

    #[test]
    fn a_pattern_matches_everything_inside_a_module() {
        assert_eq!(matched(&[]), [0usize; 0]);
        assert_eq!(matched(&["model"]), [0, 1, 2, 3, 4]);
        assert_eq!(matched(&["model.layers.0"]), [1, 2]);
        assert_eq!(matched(&["model.layers.*.self_attn"]), [1, 3]);
        assert_eq!(matched(&["model.layers.*.*.*_proj"]), [1, 2, 3]);
        assert_eq!(matched(&["model.layers.*.*.q*j"]), [1, 3]);
        assert_eq!(matched(&["*.norm", "lm_head.weight"]), [4, 5]);
        assert_eq!(matched(&["lm_head.weight.more"]), [0usize; 0]);
        assert_eq!(matched(&["lm"]), [0usize; 0]);
        assert_eq!(matched(&["norm"]), [0usize; 0]);
    }

    #[test]
    fn an_empty_component_is_an_error() {
        for pattern in ["", ".", "model.", ".model", "a..b"] {
            let error = Patterns::new("freeze", &[pattern.to_owned()]).unwrap_err();
            assert_eq!(error, PatternError::EmptyComponent { key: "freeze", pattern: pattern.to_owned() });
            assert_eq!(error.hint().unwrap(), "use `*` for any component");
        }
    }

    #[test]
    fn an_unmatched_pattern_suggests_the_nearest_name() {
        let near = |pattern: &str| {
            let patterns = Patterns::new("freeze", &["lm_head".to_owned(), pattern.to_owned()]).unwrap();
            match patterns.check(NAMES).unwrap_err() {
                PatternError::Unmatched { key: "freeze", pattern: found, near } if found == pattern => near,
                other => panic!("{other}"),
            }
        };
        assert_eq!(near("model.embed_token").as_deref(), Some("model.embed_tokens"));
        assert_eq!(near("model.layers.*.self_atn").as_deref(), Some("model.layers.*.self_attn"));
        assert_eq!(near("q_proj").as_deref(), Some("model.layers.*.self_attn.q_proj"));
        assert_eq!(near("layers.*.mlp").as_deref(), Some("model.layers.*.mlp"));
        assert_eq!(near("vision_tower"), None);
        let error = Patterns::new("freeze", &["vision_tower".to_owned()]).unwrap().check(NAMES).unwrap_err();
        assert!(error.hint().unwrap().starts_with("start with the first component"));
        assert_eq!(error.to_string(), "`vision_tower` in `freeze` matches no parameter");
    }

    /// Exhaustive reference.
    fn matches_exhaustively(pattern: &[u8], part: &[u8]) -> bool {
        match pattern.split_first() {
            None => part.is_empty(),
            Some((b'*', rest)) => (0..=part.len()).any(|taken| matches_exhaustively(rest, &part[taken..])),
            Some((wanted, rest)) => part.first() == Some(wanted) && matches_exhaustively(rest, &part[1..]),
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_exhaustive_reference(pattern in "[ab*]{0,7}", part in "[ab]{0,9}") {
            prop_assert_eq!(component_matches(&pattern, &part), matches_exhaustively(pattern.as_bytes(), part.as_bytes()));
        }

        #[test]
        fn suggestions_match_a_parameter(pattern in "(model|layers|[0-2*]|q_proj|mlp|nrm)(\\.(model|layers|[0-2*]|q_proj|mlp|nrm)){0,3}") {
            let patterns = Patterns::new("freeze", &[pattern]).unwrap();
            if let Err(PatternError::Unmatched { near: Some(near), .. }) = patterns.check(NAMES) {
                prop_assert!(Patterns::new("freeze", &[near]).unwrap().check(NAMES).is_ok());
            }
        }
    }
}
