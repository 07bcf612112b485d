//! What can be wrong with a spec, or with finding one.

use weightloom_checkpoint::KeyError;
use weightloom_errors::Hint;
use weightloom_hub::{ConfigError, FamilyError, YamlFamilyError};

use super::name::NameFault;

/// Why there is no spec, or why it cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SpecError {
    /// Something that is no name.
    #[error("`{name}` is no name of a model spec: {fault}")]
    Name { name: String, fault: NameFault },
    /// Two specs of one name.
    #[error("there is a model spec `{name}` already")]
    Twice { name: String },
    /// No spec of that name.
    #[error(
        "there is no model spec `{name}`\n  built in: {}\n  registered: {}\n  searched: {}",
        listed(built_in),
        listed(registered),
        places(name, searched)
    )]
    Unknown {
        name: String,
        near: Vec<String>,
        built_in: Vec<String>,
        registered: Vec<String>,
        searched: Vec<String>,
        namesake: Option<Namesake>,
    },
    /// A description that was found, or a place that could not be looked at.
    #[error(transparent)]
    YamlFamily(#[from] YamlFamilyError),
    /// An arch that the family does not have.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// A configuration.
    #[error("{about}: {source}")]
    Config { about: String, source: ConfigError },
    /// Nothing says how large the model is.
    #[error("neither an arch nor weights are given, so the `{key}` of `{spec}` is not known")]
    NoSize { spec: String, key: String, archs: Vec<String> },
    /// Weights of another kind of model.
    #[error("the weights are of type `{found}`, but `{spec}` reads {}", listed(reads))]
    OtherModel { spec: String, found: String, reads: Vec<String> },
    /// A plan for a parameter that there is not.
    #[error("`model.tp_plan` is about `{pattern}`, but the model has no such parameter")]
    NoParameter { pattern: String, near: Option<String> },
    /// A plan for a dim that a parameter does not have.
    #[error("`model.tp_plan` shares dim {dim} of `{pattern}`, but `{parameter}` has {ndim}")]
    NoDim { pattern: String, parameter: String, dim: usize, ndim: usize },
    /// Two patterns that say different things about one parameter.
    #[error("`model.tp_plan` has two dims for `{parameter}`: by `{one}` and by `{other}`")]
    Overlap { parameter: String, one: String, other: String },
    /// More stages than layers, or none.
    #[error("{layers} layers cannot be cut into {stages} stages")]
    Stages { layers: usize, stages: usize },
    /// A split with another number of stages.
    #[error("`layer_split` has {found} numbers, but there are {stages} stages")]
    SplitLength { found: usize, stages: usize },
    /// A split with another number of layers.
    #[error("the numbers of `layer_split` add up to {found}, but there are {layers} layers")]
    SplitSum { found: usize, layers: usize },
    /// A stage without layers.
    #[error("`layer_split` leaves nothing for stage {stage}")]
    SplitNothing { stage: usize },
    /// Names that cannot be translated.
    #[error(transparent)]
    Keys(#[from] KeyError),
}

/// What else has a name that no spec has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Namesake {
    /// A card.
    Card {
        /// Its family, if it says one.
        family: Option<String>,
    },
    /// An arch.
    Arch {
        /// Its family.
        family: String,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn places(name: &str, searched: &[String]) -> String {
    match (searched.is_empty(), name.contains('.')) {
        (false, _) => searched.join(", "),
        (true, true) => "no folder, because the model path is empty".to_owned(),
        (true, false) => "no folder, because a name without a dot is built in".to_owned(),
    }
}

/// How a model of one's own gets a spec.
fn own_model(name: &str) -> String {
    let name = if name.contains('.') { name } else { "my_org.my_model" };
    let file = name.replace('.', "/");
    format!(
        "for a model of your own, describe it in {file}/model.yaml in a folder of the model path \
         (--model-path or WEIGHTLOOM_MODEL_PATH) or register a spec in code, and call it {name}"
    )
}

impl Hint for SpecError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Name { fault: NameFault::Slash, .. } => {
                "name the spec here, such as llama or my_org.my_model, and set model.weights_path to where \
                 the weights are"
                    .to_owned()
            }
            Self::Name { .. } => "write a built-in name such as llama, or folders with dots between: \
                                  my_org.my_model"
                .to_owned(),
            Self::Twice { .. } => "give one of them another name, such as my_org.my_model".to_owned(),
            Self::Unknown { name, namesake: Some(namesake), .. } => match namesake {
                Namesake::Card { family: Some(family) } => {
                    format!("this is a card: set model.name to {family}, and model.weights_path to {name}")
                }
                Namesake::Card { family: None } => {
                    format!("this is a card: set model.name to its family, and model.weights_path to {name}")
                }
                Namesake::Arch { family } => {
                    format!("this is an arch: set model.name to {family}, and model.arch to {name}")
                }
            },
            Self::Unknown { name, near, .. } if near.is_empty() => own_model(name),
            Self::Unknown { name, near, .. } => {
                let near: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
                format!("write {}; {}", near.join(" or "), own_model(name))
            }
            Self::YamlFamily(error) => return error.hint(),
            Self::Family(error) => return error.hint(),
            Self::Config { source, .. } => return source.hint(),
            Self::NoSize { archs, .. } if archs.is_empty() => {
                "set model.weights_path, or the keys in model.config_overrides".to_owned()
            }
            Self::NoSize { archs, .. } => {
                format!("set model.weights_path, or model.arch to one of {}", archs.join(", "))
            }
            Self::OtherModel { found, .. } => {
                format!("set model.name to the spec that reads `{found}`, or give other weights")
            }
            Self::NoParameter { near, .. } => format!("write `{}`", near.as_ref()?),
            Self::NoDim { ndim: 0, .. } => "leave it out".to_owned(),
            Self::NoDim { ndim, .. } => format!("write 0 to {}", ndim - 1),
            Self::Overlap { .. } => "leave one of them out".to_owned(),
            Self::Stages { layers, .. } => format!("pp × vpp can be 1 to {layers}"),
            Self::SplitLength { stages, .. } => format!("give {stages} numbers"),
            Self::SplitSum { layers, .. } => format!("let them add up to {layers}"),
            Self::SplitNothing { .. } => "give every stage a layer".to_owned(),
            Self::Keys(error) => return error.hint(),
        })
    }
}
