//! The model inside a training state.
//!
//! Training programs save `{"model": …, "optimizer": …, "step": …}`. Names are
//! flattened to `model.…` and `optimizer.…`, which no model has. This finds the
//! part that is the model by the dicts that the file nests, never by the names in
//! them, because a plain state dict of a Llama has names that begin with `model.`
//! as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use weightloom_errors::Hint;

use crate::error::CheckpointError;
use crate::formats::Source;
use crate::index::{Index, TensorEntry};

/// The metadata key with the paths of flattened names in a DCP folder.
pub(crate) const PATHS: &str = "dcp.paths";

/// What training programs call the model.
const MODELS: [&str; 8] =
    ["model", "state_dict", "model_state_dict", "module", "net", "network", "ema", "model_ema"];

/// Beginnings of what they call everything else.
const OTHERS: [&str; 9] = ["optim", "opt_", "scheduler", "lr_", "scaler", "rng", "loss", "amp", "dataloader"];

/// Prefixes that wrappers add to every name: DDP and `torch.compile`.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// The model of a checkpoint, with its own names.
#[derive(Clone)]
pub struct ModelPart {
    /// The checkpoint with the model's tensors only.
    pub source: Source,
    /// The prefix that was removed from the names; empty for a plain model.
    pub prefix: String,
    /// Entries that are not part of the model.
    pub left_out: Vec<String>,
}

/// Why the model in a checkpoint cannot be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ModelPartError {
    #[error("cannot find the model in the checkpoint: it may be {}", listed(candidates))]
    Ambiguous { candidates: Vec<(String, usize)> },
    #[error("cannot find tensors with the prefix `{prefix}`")]
    NoPrefix { prefix: String, candidates: Vec<(String, usize)> },
}

fn listed(candidates: &[(String, usize)]) -> String {
    let each = |(name, count): &(String, usize)| {
        let tensors = if *count == 1 { "tensor" } else { "tensors" };
        match name.is_empty() {
            true => format!("the {count} {tensors} at the top level"),
            false => format!("`{name}` ({count} {tensors})"),
        }
    };
    candidates.iter().map(each).collect::<Vec<_>>().join(" or ")
}

impl Hint for ModelPartError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Ambiguous { candidates } => {
                let named = candidates.iter().find(|(name, _)| !name.is_empty());
                named.map(|(name, _)| format!("choose one, such as --prefix {name}"))
            }
            Self::NoPrefix { candidates, .. } if candidates.is_empty() => None,
            Self::NoPrefix { candidates, .. } => Some(format!("the checkpoint has {}", listed(candidates))),
        }
    }
}

impl ModelPart {
    /// Finds the model. A checkpoint without nested dicts is the model.
    pub fn find(source: &Source) -> Result<Self, CheckpointError> {
        let own = own_names(&source.index);
        if !own.is_empty() {
            return Self::of_names(source, &own);
        }
        let dicts = nested_dicts(&source.index);
        let mut prefix = String::new();
        while let Some(inner) = choose(&source.index, &dicts, &prefix)? {
            prefix = inner;
        }
        Self::new(source, &prefix, Wrappers::Remove)
    }

    /// The model below a prefix, with or without its final dot; an empty one means
    /// everything, as it is.
    pub fn with_prefix(source: &Source, prefix: &str) -> Result<Self, CheckpointError> {
        let part = Self::new(source, prefix.trim_end_matches('.'), Wrappers::Keep)?;
        if part.source.index.tensors().is_empty() {
            let candidates = children(&source.index, &nested_dicts(&source.index), "");
            return Err(ModelPartError::NoPrefix { prefix: prefix.to_owned(), candidates }.into());
        }
        Ok(part)
    }

    /// The tensors with these names, as they are.
    fn of_names(source: &Source, names: &BTreeSet<String>) -> Result<Self, CheckpointError> {
        let index = &source.index;
        let tensors = index.tensors().iter().filter(|(name, _)| names.contains(*name));
        let tensors = tensors.map(|(name, entry)| (name.clone(), entry.clone())).collect();
        let others = index.tensors().keys().filter(|name| !names.contains(*name));
        let left_out = others.chain(index.values()).cloned().collect();
        let part = Index::new(index.format(), index.files().to_vec(), tensors)?;
        let source = Source { scope: source.scope, ..Source::new(part, Arc::clone(&source.storage)) };
        Ok(Self { source, prefix: String::new(), left_out })
    }

    fn new(source: &Source, prefix: &str, wrappers: Wrappers) -> Result<Self, CheckpointError> {
        let index = &source.index;
        let below = |name: &str| below(name, prefix).map(str::to_owned);
        let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
        let mut left_out = Vec::new();
        for (name, entry) in index.tensors() {
            match below(name) {
                Some(own) => drop(tensors.insert(own, entry.clone())),
                None => left_out.push(name.clone()),
            }
        }
        let mut prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
        let known = if wrappers == Wrappers::Remove { &WRAPPERS[..] } else { &[] };
        while let Some(wrapper) = known.iter().find(|wrapper| wraps(&tensors, wrapper)) {
            let bare = |(name, entry): (String, TensorEntry)| (name[wrapper.len()..].to_owned(), entry);
            tensors = tensors.into_iter().map(bare).collect();
            prefix += wrapper;
        }
        if prefix.is_empty() {
            return Ok(Self { source: source.clone(), prefix, left_out });
        }
        left_out.extend(index.values().cloned());
        let part = Index::new(index.format(), index.files().to_vec(), tensors)?;
        let part = Source { scope: source.scope, ..Source::new(part, Arc::clone(&source.storage)) };
        Ok(Self { source: part, prefix, left_out })
    }
}

/// What happens to the prefixes of wrappers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrappers {
    Remove,
    Keep,
}

/// Whether all names begin with what a wrapper adds.
fn wraps(tensors: &BTreeMap<String, TensorEntry>, wrapper: &str) -> bool {
    !tensors.is_empty() && tensors.keys().all(|name| name.len() > wrapper.len() && name.starts_with(wrapper))
}

/// The rest of a name below a prefix.
fn below<'n>(name: &'n str, prefix: &str) -> Option<&'n str> {
    match prefix.is_empty() {
        true => Some(name),
        false => name.strip_prefix(prefix)?.strip_prefix('.'),
    }
}

/// Names with the words of their paths.
fn paths(index: &Index) -> Vec<(String, Vec<String>)> {
    let paths = index.metadata().get(PATHS).and_then(|paths| serde_json::from_str(paths).ok());
    let Some(Value::Object(paths)) = paths else { return Vec::new() };
    let word = |word: &Value| word.as_str().map_or_else(|| word.to_string(), str::to_owned);
    let words = |path: Value| Some(path.as_array()?.iter().map(word).collect());
    paths.into_iter().filter_map(|(name, path)| Some((name, words(path)?))).collect()
}

/// Tensors of a nested model under their own names, as we write them.
fn own_names(index: &Index) -> BTreeSet<String> {
    let is_own = |name: &str, path: &[String]| path.len() > 1 && path[1..].join(".") == name;
    let found = paths(index).into_iter().filter(|(name, path)| is_own(name, path)).map(|(name, _)| name);
    found.filter(|name| index.tensors().contains_key(name)).collect()
}

/// The dotted names of all dicts inside other dicts.
fn nested_dicts(index: &Index) -> BTreeSet<String> {
    let mut dicts = index.dicts().clone();
    for (_, words) in paths(index) {
        dicts.extend((1..words.len()).map(|end| words[..end].join(".")));
    }
    dicts
}

/// The dicts directly inside another, with their numbers of tensors.
fn children(index: &Index, dicts: &BTreeSet<String>, parent: &str) -> Vec<(String, usize)> {
    let inside: Vec<&String> =
        dicts.iter().filter(|dict| below(dict, parent).is_some_and(|rest| !rest.is_empty())).collect();
    let is_direct = |dict: &str| !inside.iter().any(|other| below(dict, other).is_some());
    let count = |dict: &str| index.tensors().keys().filter(|name| below(name, dict).is_some()).count();
    let counted = inside.iter().filter(|dict| is_direct(dict)).map(|dict| ((*dict).clone(), count(dict)));
    counted.filter(|(_, count)| *count > 0).collect()
}

/// The dict inside another that is the model; `None` if the other is.
fn choose(index: &Index, dicts: &BTreeSet<String>, parent: &str) -> Result<Option<String>, ModelPartError> {
    let children = children(index, dicts, parent);
    let own = |name: &str| below(name, parent).unwrap_or(name).to_ascii_lowercase();
    let other = |name: &str| OTHERS.iter().any(|start| own(name).starts_with(start));
    let mut candidates: Vec<(String, usize)> =
        children.iter().filter(|(name, _)| !other(name)).cloned().collect();
    let known: Vec<(String, usize)> =
        candidates.iter().filter(|(name, _)| MODELS.contains(&own(name).as_str())).cloned().collect();
    // Dicts in what is called a model are its parts, unless they are called so too.
    let is_model = parent.rsplit('.').next().is_some_and(|last| MODELS.contains(&last));
    match known.is_empty() {
        true if is_model => return Ok(None),
        true => {}
        false => candidates = known,
    }
    // Matrices beside the dicts: a state dict with something more in it. Counters
    // and states of random number generators are vectors at most.
    let inside = |name: &str| children.iter().any(|(dict, _)| below(name, dict).is_some());
    let loose = index.tensors().iter().filter(|(name, entry)| {
        below(name, parent).is_some() && !inside(name) && entry.dtype.is_float() && entry.shape.ndim() >= 2
    });
    let loose = loose.count();
    match (candidates.as_slice(), loose) {
        ([], _) => Ok(None),
        (_, 1..) if is_model => Ok(None),
        ([(name, _)], 0) => Ok(Some(name.clone())),
        (_, 0) => Err(ModelPartError::Ambiguous { candidates }),
        _ => {
            candidates.insert(0, (parent.to_owned(), loose));
            Err(ModelPartError::Ambiguous { candidates })
        }
    }
}

#[cfg(test)]
mod tests {
    use weightloom_layout::{DType, Region, Shape};

    use super::*;
    use crate::index::{FileId, Format, StoredFile, Tile};
    use crate::storage::MemoryStorage;

    /// A torch file with these dicts and tensors, of 2 by 2 numbers unless the
    /// name says otherwise.
    fn source(dicts: &[&str], names: &[&str]) -> Source {
        let entry = |name: &str| {
            let shape = Shape::new(if name.ends_with("step") { &[1] } else { &[2, 2] }).unwrap();
            let tile = Tile::contiguous(Region::whole(&shape), FileId(0), 0, DType::F32);
            TensorEntry { dtype: DType::F32, shape, tiles: vec![tile] }
        };
        let tensors = names.iter().map(|name| ((*name).to_owned(), entry(name))).collect();
        let files = vec![StoredFile { name: "state.pt".to_owned(), length: 64 }];
        let index = Index::new(Format::Torch, files, tensors).unwrap();
        let dicts = dicts.iter().map(|name| (*name).to_owned()).collect();
        Source::new(index.with_dicts(dicts), Arc::new(MemoryStorage::default()))
    }

    fn found(dicts: &[&str], names: &[&str]) -> (String, Vec<String>) {
        let part = ModelPart::find(&source(dicts, names)).unwrap();
        (part.prefix, part.source.index.tensors().keys().cloned().collect())
    }

    #[test]
    fn the_model_is_found_by_the_dicts_and_not_by_names() {
        // A plain state dict whose names begin with `model.`.
        let plain = ["lm_head.weight", "model.embed_tokens.weight"];
        assert_eq!(found(&[], &plain), (String::new(), plain.map(str::to_owned).to_vec()));
        let nested = ["model.lm_head.weight", "model.model.embed_tokens.weight", "optimizer.state.0", "step"];
        let bare = plain.map(str::to_owned).to_vec();
        assert_eq!(
            found(&["model", "optimizer", "optimizer.state"], &nested),
            ("model.".to_owned(), bare.clone())
        );
        let lightning = nested.map(|name| name.replacen("model.", "state_dict.", 1));
        let lightning = lightning.each_ref().map(String::as_str);
        assert_eq!(found(&["state_dict"], &lightning[..2]).0, "state_dict.");
        // Below a dict with any name, and wrapped.
        let deep = ["app.model.module._orig_mod.lm_head.weight", "app.optim.exp_avg"];
        assert_eq!(
            found(&["app", "app.model", "app.optim"], &deep),
            ("app.model.module._orig_mod.".to_owned(), vec!["lm_head.weight".to_owned()])
        );
        let wrapped = ["module.lm_head.weight", "module.model.embed_tokens.weight"];
        assert_eq!(found(&[], &wrapped), ("module.".to_owned(), bare));
        // The parts of a model are not models.
        assert_eq!(found(&["model", "model.a", "model.b"], &["model.a.x", "model.b.x"]).0, "model.");
        // A dict of `MODELS` wins over one with an unknown name.
        assert_eq!(found(&["model", "extra"], &["extra.a", "model.a"]).0, "model.");
        let part = ModelPart::find(&source(&["model", "optimizer"], &nested)).unwrap();
        assert_eq!(part.left_out, ["optimizer.state.0", "step"]);
    }

    #[test]
    fn several_models_are_an_error_that_lists_them() {
        let both = source(&["model", "ema"], &["model.a", "model.b", "ema.a"]);
        let Err(error) = ModelPart::find(&both) else { panic!("ambiguous") };
        assert_eq!(
            error.to_string(),
            "cannot find the model in the checkpoint: it may be `ema` (1 tensor) or `model` (2 tensors)"
        );
        assert_eq!(error.hint().unwrap(), "choose one, such as --prefix ema");
        let part = ModelPart::with_prefix(&both, "model").unwrap();
        assert_eq!((part.source.index.tensors().len(), part.left_out), (2, vec!["ema.a".to_owned()]));
        assert_eq!(ModelPart::with_prefix(&both, "ema.").unwrap().source.index.tensors().len(), 1);
        assert_eq!(ModelPart::with_prefix(&both, "").unwrap().source.index.tensors().len(), 3);
        let wrapped = source(&[], &["module.a"]);
        let kept = ModelPart::with_prefix(&wrapped, "").unwrap();
        assert!(kept.prefix.is_empty() && kept.source.index.tensors().contains_key("module.a"));
        let Err(error) = ModelPart::with_prefix(&both, "modl") else { panic!("no such prefix") };
        assert_eq!(error.to_string(), "cannot find tensors with the prefix `modl`");
        assert!(error.hint().unwrap().contains("`model` (2 tensors)"));
        let unknown = source(&["generator", "critic"], &["generator.a", "critic.a"]);
        assert!(ModelPart::find(&unknown).is_err());
        // Matrices beside a dict may be the model as well.
        let loose = source(&["model"], &["model.a", "weight"]);
        let Err(error) = ModelPart::find(&loose) else { panic!("ambiguous") };
        assert!(error.to_string().contains("the 1 tensor at the top level or `model` (1 tensor)"), "{error}");
    }
}
