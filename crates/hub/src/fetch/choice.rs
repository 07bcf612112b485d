//! Selection of files in a repository.

use std::collections::BTreeSet;

use weightloom_errors::nearest;

use super::error::FetchError;

/// Selects files in a repository or in a folder of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FileChoice {
    /// The files of a model: one set of weights (safetensors if present, else
    /// torch files, else GGUF), configuration and tokenizer; no subfolders.
    #[default]
    Model,
    /// Every file.
    All,
    /// Files with these names.
    Named(Vec<String>),
    /// Files that match a pattern of `include` and none of `exclude`. `*`
    /// matches any characters, slashes too, `?` one character and `[a-z]` one
    /// of several. An empty `include` matches every file.
    Patterns {
        /// Wanted patterns.
        include: Vec<String>,
        /// Unwanted patterns.
        exclude: Vec<String>,
    },
}

impl FileChoice {
    /// Selects among the names in a folder; keeps their order.
    pub(super) fn select<'n>(
        &self,
        repo: &str,
        revision: &str,
        names: &[&'n str],
    ) -> Result<Vec<&'n str>, FetchError> {
        let selected = match self {
            Self::All => names.to_vec(),
            Self::Named(wanted) => {
                for file in wanted {
                    if !names.contains(&file.as_str()) {
                        let nearest = nearest(file, names.iter().copied()).map(str::to_owned);
                        let (repo, revision) = (repo.to_owned(), revision.to_owned());
                        return Err(FetchError::FileUnknown { repo, revision, file: file.clone(), nearest });
                    }
                }
                names.iter().copied().filter(|name| wanted.iter().any(|wanted| wanted == name)).collect()
            }
            Self::Patterns { include, exclude } => {
                let matches = |patterns: &[String], name: &str| {
                    patterns.iter().any(|pattern| matches_pattern(pattern, name))
                };
                let wanted =
                    |name: &&str| (include.is_empty() || matches(include, name)) && !matches(exclude, name);
                names.iter().copied().filter(wanted).collect()
            }
            Self::Model => model_files(repo, names)?,
        };
        match selected.is_empty() {
            true => Err(FetchError::NoMatch { repo: repo.to_owned(), files: names.len() }),
            false => Ok(selected),
        }
    }
}

/// Whether a file holds weights of the model.
pub(super) fn is_weights(name: &str) -> bool {
    [".safetensors", ".bin", ".pth", ".pt", ".gguf"].iter().any(|ending| name.ends_with(ending))
        && !is_training_state(name)
}

fn model_files<'n>(repo: &str, names: &[&'n str]) -> Result<Vec<&'n str>, FetchError> {
    let own: Vec<&str> =
        names.iter().copied().filter(|name| !name.contains('/') && !is_training_state(name)).collect();
    let ending = |ending: &str| own.iter().copied().filter(|name| name.ends_with(ending)).collect::<Vec<_>>();
    let (safetensors, bins, gguf) = (ending(".safetensors"), ending(".bin"), ending(".gguf"));
    let torch: Vec<&str> = ending(".pth").into_iter().chain(ending(".pt")).collect();
    let weights = if !safetensors.is_empty() {
        without_copies(safetensors)
    } else if !bins.is_empty() {
        bins
    } else if !torch.is_empty() {
        torch
    } else {
        one_gguf(repo, gguf)?
    };
    let weights: BTreeSet<&str> = weights.into_iter().collect();
    let wanted = |name: &&&str| {
        let (name, is_own) = (**name, !name.contains('/'));
        if is_weights(name) {
            return weights.contains(name);
        }
        if let Some(indexed) = name.strip_suffix(".index.json") {
            // Leave out the index of weights that are left out.
            let (stem, kind) = indexed.rsplit_once('.').unwrap_or((indexed, ""));
            return is_own && weights.iter().any(|file| file.starts_with(stem) && file.ends_with(kind));
        }
        let beside = [".json", ".jinja", ".model", ".tiktoken"].iter().any(|ending| name.ends_with(ending))
            || matches!(name, "merges.txt" | "vocab.txt" | "added_tokens.txt");
        (is_own && beside) || (name.starts_with("additional_chat_templates/") && name.ends_with(".jinja"))
    };
    Ok(names.iter().filter(wanted).copied().collect())
}

/// Whether a file is training state rather than a part of the model.
fn is_training_state(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    ["training_args", "optimizer", "scheduler", "rng_state", "scaler"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Leaves out copies of the weights: `consolidated.safetensors` and variants
/// such as `model.fp16.safetensors`.
fn without_copies(names: Vec<&str>) -> Vec<&str> {
    let is_plain = |name: &&str| {
        let stem = name.strip_suffix(".safetensors").unwrap_or(name);
        stem == "model" || stem.starts_with("model-")
    };
    match names.iter().any(is_plain) {
        true => names
            .into_iter()
            .filter(|name| {
                is_plain(name) || !(name.starts_with("model.") || name.starts_with("consolidated"))
            })
            .collect(),
        false => names,
    }
}

/// Accepts one GGUF model, which may be split; several are ambiguous.
fn one_gguf<'n>(repo: &str, names: Vec<&'n str>) -> Result<Vec<&'n str>, FetchError> {
    let stem = |name: &str| match name.rsplit_once("-of-") {
        Some((start, _)) => start.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(),
        None => name.to_owned(),
    };
    let stems: BTreeSet<String> = names.iter().map(|name| stem(name)).collect();
    match stems.len() {
        0 | 1 => Ok(names),
        _ => {
            let files = names.into_iter().map(str::to_owned).collect();
            Err(FetchError::ManyModels { repo: repo.to_owned(), files })
        }
    }
}

/// Matches a name against a shell pattern. The time is at most proportional to
/// the product of the lengths.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The last star, and the end of its match so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
            continue;
        }
        if let Some(next) = match_one(&pattern, p, name[n]) {
            (p, n) = (next, n + 1);
            continue;
        }
        match &mut star {
            Some((at, taken)) => {
                *taken += 1;
                (p, n) = (*at + 1, *taken);
            }
            None => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The next position in the pattern if it matches one character here.
fn match_one(pattern: &[char], at: usize, letter: char) -> Option<usize> {
    match pattern.get(at)? {
        '?' => Some(at + 1),
        '[' => {
            let negated = matches!(pattern.get(at + 1), Some('!' | '^'));
            let start = at + 1 + usize::from(negated);
            // A closing bracket in first position is literal.
            let end = pattern.iter().skip(start + 1).position(|c| *c == ']').map(|found| start + 1 + found);
            let Some(end) = end else {
                return (letter == '[').then_some(at + 1);
            };
            let set = &pattern[start..end];
            let mut found = false;
            let mut i = 0;
            while i < set.len() {
                if i + 2 < set.len() && set[i + 1] == '-' {
                    found |= (set[i]..=set[i + 2]).contains(&letter);
                    i += 3;
                } else {
                    found |= set[i] == letter;
                    i += 1;
                }
            }
            (found != negated).then_some(end + 1)
        }
        plain => (*plain == letter).then_some(at + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(names: &[&str]) -> Vec<String> {
        let selected = FileChoice::Model.select("a/b", "main", names).unwrap();
        selected.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn safetensors_are_preferred_and_duplicates_left_out() {
        let names = [
            ".gitattributes",
            "LICENSE",
            "README.md",
            "additional_chat_templates/tool.jinja",
            "chat_template.jinja",
            "config.json",
            "consolidated.safetensors",
            "figure.png",
            "flax_model.msgpack",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.fp16.safetensors",
            "model.safetensors.index.json",
            "onnx/model.onnx",
            "optimizer.bin",
            "original/consolidated.00.pth",
            "original/params.json",
            "pytorch_model.bin",
            "pytorch_model.bin.index.json",
            "tf_model.h5",
            "tokenizer.json",
            "tokenizer.model",
            "training_args.bin",
            "vocab.txt",
        ];
        assert_eq!(
            model(&names),
            [
                "additional_chat_templates/tool.jinja",
                "chat_template.jinja",
                "config.json",
                "generation_config.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
                "tokenizer.json",
                "tokenizer.model",
                "vocab.txt",
            ]
        );
    }

    #[test]
    fn torch_files_are_the_second_choice() {
        assert_eq!(
            model(&["config.json", "pytorch_model.bin", "pytorch_model.bin.index.json", "training_args.bin"]),
            ["config.json", "pytorch_model.bin", "pytorch_model.bin.index.json"]
        );
        assert_eq!(model(&["consolidated.00.pth", "params.json"]), ["consolidated.00.pth", "params.json"]);
        assert_eq!(
            model(&["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"]),
            ["adapter_config.json", "adapter_model.safetensors"]
        );
    }

    #[test]
    fn one_gguf_is_a_model_and_several_are_ambiguous() {
        assert_eq!(model(&["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]).len(), 2);
        let error = FileChoice::Model.select("a/b", "main", &["m-q4.gguf", "m-q8.gguf"]).unwrap_err();
        assert!(matches!(error, FetchError::ManyModels { ref files, .. } if files.len() == 2), "{error}");
    }

    #[test]
    fn a_misspelled_name_gets_a_suggestion() {
        let choice = FileChoice::Named(vec!["confg.json".to_owned()]);
        let error = choice.select("a/b", "main", &["config.json", "model.safetensors"]).unwrap_err();
        let FetchError::FileUnknown { nearest, .. } = error else { panic!("{error}") };
        assert_eq!(nearest.as_deref(), Some("config.json"));
    }

    #[test]
    fn patterns_match_like_a_shell() {
        for (pattern, name) in [
            ("*.json", "a/config.json"),
            ("model-?????-of-*", "model-00001-of-00002.safetensors"),
            ("*", ""),
            ("[a-c]x[!0-9]", "bxy"),
            ("a[", "a["),
            ("**x*", "aaxaa"),
            ("[]]", "]"),
        ] {
            assert!(matches_pattern(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*.json", "config.jsonl"), ("?", ""), ("", "a"), ("[a-c]", "d"), ("[!a]", "a")]
        {
            assert!(!matches_pattern(pattern, name), "{pattern} {name}");
        }
        let (include, exclude) = (vec!["*.json".to_owned()], vec!["b*".to_owned()]);
        let choice = FileChoice::Patterns { include, exclude };
        assert_eq!(choice.select("r", "main", &["a.json", "b.json", "c.txt"]).unwrap(), ["a.json"]);
        assert!(choice.select("r", "main", &["c.txt"]).is_err());
    }

    proptest! {
        #[test]
        fn a_name_matches_itself_with_parts_replaced_by_stars(
            parts in prop::collection::vec("[a-z/.]{0,4}", 1..6),
            filling in prop::collection::vec("[a-z/.]{0,4}", 6),
        ) {
            let pattern = parts.join("*");
            let name: String = parts.iter().zip(&filling).enumerate()
                .map(|(i, (part, fill))| if i + 1 < parts.len() { format!("{part}{fill}") } else { part.clone() })
                .collect();
            prop_assert!(matches_pattern(&pattern, &name), "{} {}", pattern, name);
        }

        #[test]
        fn no_pattern_panics(pattern in ".{0,12}", name in ".{0,12}") {
            matches_pattern(&pattern, &name);
        }
    }
}
