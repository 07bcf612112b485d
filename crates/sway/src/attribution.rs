//! Attributes the change to layers.
//!
//! The change is measured with the whole adapter, and again with one group of
//! layers left as in the base. The share of a group is what is lost without it,
//! given all others. Groups that do the same work hide one another, and groups
//! that need each other count twice: shares need not add up to 1.

use serde::{Deserialize, Serialize};

use crate::answer_store::{AnswerStore, Missing};
use crate::backend::{Backend, Capability};
use crate::cache::Cache;
use crate::error::{BackendError, QueryError};
use crate::numbers::bootstrap::interval;
use crate::numbers::mean;
use crate::prompt::Prompt;
use crate::question::{Query, Question};
use crate::runner::{Observer, answer_all};
use crate::view::View;

/// The most groups of layers.
const MOST_GROUPS: usize = 12;

/// The share of one group of layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerShare {
    /// The name of the group, such as `layers 3–5`.
    pub name: String,
    /// Prefixes of the names of its modules.
    pub modules: Vec<String>,
    /// The divergence from the base without the group.
    pub divergence: f64,
    /// The share of the effect that is lost without the group; negative if the
    /// group counteracts the rest.
    pub share: f64,
    /// 95 % confidence interval of the share, over prompts.
    pub ci_95: Option<[f64; 2]>,
}

/// The part of the evidence with the shares of layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerShares {
    /// Groups of layers, from the first to the last.
    pub layers: Vec<LayerShare>,
    /// The attention and feed-forward parts of all layers.
    pub parts: Vec<LayerShare>,
}

/// The attribution of the whole change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attribution {
    /// Mean Jensen-Shannon divergence of the next token between the base and the
    /// fine-tuned model, in nats.
    pub divergence: f64,
    /// The shares of layers.
    pub shares: LayerShares,
}

/// Attributes the change to layers, over prompts. Returns nothing if the backend
/// cannot disable modules of the adapter, or without a change.
pub fn attribute(
    prompts: &[Prompt],
    seed: u64,
    backend: &mut dyn Backend,
    cache: Option<&mut Cache>,
    observer: &mut dyn Observer,
) -> Result<Result<Option<Attribution>, QueryError>, BackendError> {
    let able = &backend.description().capabilities;
    let layers = backend.layers();
    if !able.contains(&Capability::Attributable)
        || !able.contains(&Capability::FullVocabulary)
        || layers.is_empty()
        || prompts.is_empty()
    {
        return Ok(Ok(None));
    }
    let groups = groups(&layers);
    let parts = parts(&layers);
    let mut views = vec![View::Tuned];
    views.extend(groups.iter().chain(&parts).map(Group::view));
    let questions: Vec<Question> = prompts
        .iter()
        .flat_map(|prompt| {
            views.iter().map(|view| {
                Question::new(view, Query::Divergence { prompt: prompt.clone(), from: View::Base })
            })
        })
        .collect();
    let answers = answer_all(&questions, backend, cache, observer)?;
    let distances = |view: &View| {
        AnswerStore::all(prompts.iter().map(|prompt| answers.divergence(view, &View::Base, prompt)))
    };
    let measured = |view: &View| -> Result<Vec<f64>, QueryError> {
        match distances(view) {
            Ok(found) => Ok(found.into_iter().map(|divergence| divergence.js).collect()),
            Err(Missing::Failed(error)) => Err(error),
            Err(Missing::Pending) => {
                Err(QueryError::Failed { message: format!("no answer came from {view}") })
            }
        }
    };
    Ok((|| {
        let whole = measured(&View::Tuned)?;
        let divergence = mean(&whole).unwrap_or(0.0);
        // Without a change there are no shares.
        if divergence <= f64::from(f32::EPSILON) {
            return Ok(None);
        }
        let share = |group: &Group| -> Result<LayerShare, QueryError> {
            Ok(group.share(&whole, &measured(&group.view())?, seed))
        };
        Ok(Some(Attribution {
            divergence,
            shares: LayerShares {
                layers: groups.iter().map(share).collect::<Result<_, _>>()?,
                parts: parts.iter().map(share).collect::<Result<_, _>>()?,
            },
        }))
    })())
}

/// Modules that are disabled together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    name: String,
    modules: Vec<String>,
}

impl Group {
    fn view(&self) -> View {
        View::Without { modules: self.modules.clone() }
    }

    fn share(&self, whole: &[f64], without: &[f64], seed: u64) -> LayerShare {
        let share_of = |places: &[usize]| {
            let sum = |values: &[f64]| places.iter().map(|place| values[*place]).sum::<f64>();
            let whole = sum(whole);
            if whole > 0.0 { 1.0 - sum(without) / whole } else { 0.0 }
        };
        let all: Vec<usize> = (0..whole.len()).collect();
        LayerShare {
            name: self.name.clone(),
            modules: self.modules.clone(),
            divergence: mean(without).unwrap_or(0.0),
            share: share_of(&all),
            ci_95: interval(whole.len(), seed, share_of),
        }
    }
}

/// Neighbouring layers, in groups of nearly equal size.
fn groups(layers: &[String]) -> Vec<Group> {
    let count = layers.len().min(MOST_GROUPS);
    (0..count)
        .map(|group| {
            let (first, end) = (group * layers.len() / count, (group + 1) * layers.len() / count);
            let name = match end - first {
                1 => format!("layer {first}"),
                _ => format!("layers {first}–{}", end - 1),
            };
            Group { name, modules: layers[first..end].to_vec() }
        })
        .collect()
}

/// The attention modules, and the feed-forward modules, of all layers.
fn parts(layers: &[String]) -> Vec<Group> {
    [("attention", "self_attn"), ("feed-forward", "mlp")]
        .map(|(name, module)| Group {
            name: name.to_owned(),
            modules: layers.iter().map(|layer| format!("{layer}.{module}")).collect(),
        })
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(count: usize) -> Vec<String> {
        (0..count).map(|layer| format!("model.layers.{layer}")).collect()
    }

    #[test]
    fn groups_contain_every_layer_once_and_in_order() {
        for count in 0..80 {
            let groups = groups(&layers(count));
            assert_eq!(groups.len(), count.min(MOST_GROUPS));
            let all: Vec<String> = groups.iter().flat_map(|group| group.modules.clone()).collect();
            assert_eq!(all, layers(count));
            let sizes = groups.iter().map(|group| group.modules.len());
            assert!(sizes.clone().max().unwrap_or(0) <= sizes.min().unwrap_or(0) + 1);
        }
        assert_eq!(groups(&layers(30))[0].name, "layers 0–1");
        assert_eq!(groups(&layers(2))[1].name, "layer 1");
    }

    #[test]
    fn a_share_is_what_is_lost() {
        let group = Group { name: "g".to_owned(), modules: Vec::new() };
        let share = group.share(&[0.2, 0.2, 0.2, 0.2], &[0.05, 0.05, 0.05, 0.05], 0);
        assert!((share.share - 0.75).abs() < 1e-12);
        let [low, high] = share.ci_95.unwrap();
        assert!((low - 0.75).abs() < 1e-12 && (high - 0.75).abs() < 1e-12);
        // A group that counteracts the others has a negative share.
        assert!(group.share(&[0.1, 0.1], &[0.2, 0.2], 0).share < 0.0);
        assert_eq!(group.share(&[0.0], &[0.0], 0).share, 0.0);
    }
}
