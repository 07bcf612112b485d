//! Errors of model specs.

use weightloom_checkpoint::KeyError;
use weightloom_errors::{Hint, did_you_mean};
use weightloom_hub::{ConfigError, FamilyError, YamlFamilyError};

use super::name::NameProblem;

/// A model spec that cannot be found or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SpecError {
    #[error("invalid model spec name `{name}`: {problem}")]
    Name { name: String, problem: NameProblem },
    #[error("duplicate model spec `{name}`")]
    Twice { name: String },
    #[error(
        "unknown model spec `{name}`\n  built in: {}\n  registered: {}\n  searched: {}",
        listed(built_in),
        listed(registered),
        folders(name, searched)
    )]
    Unknown {
        name: String,
        near: Vec<String>,
        built_in: Vec<String>,
        registered: Vec<String>,
        searched: Vec<String>,
        namesake: Option<Namesake>,
    },
    #[error(transparent)]
    YamlFamily(#[from] YamlFamilyError),
    #[error(transparent)]
    Family(#[from] FamilyError),
    #[error("invalid {about}")]
    Config { about: String, source: ConfigError },
    #[error("cannot use `model.arch: {arch}` with `model.name: {spec}`: it is an arch of `{family}`")]
    OtherArch { spec: String, arch: String, family: String, archs: Vec<String> },
    #[error("`{key}` of `{spec}` is unknown: neither `model.arch` nor `model.weights_path` is set")]
    NoSize { spec: String, key: String, archs: Vec<String> },
    #[error("the weights have the model type `{found}`, but `{spec}` reads {}", listed(reads))]
    OtherModel { spec: String, found: String, reads: Vec<String> },
    #[error("`{pattern}` in `model.tp_plan` matches no parameter")]
    NoParameter { pattern: String, near: Option<String> },
    #[error("`model.tp_plan` shards dim {dim} of `{pattern}`, but `{parameter}` has {ndim} dims")]
    NoDim { pattern: String, parameter: String, dim: usize, ndim: usize },
    #[error("`{one}` and `{other}` in `model.tp_plan` have different dims for `{parameter}`")]
    Overlap { parameter: String, one: String, other: String },
    #[error("cannot split {layers} layers into {stages} stages")]
    Stages { layers: usize, stages: usize },
    #[error("`layer_split` has {found} entries for {stages} stages")]
    SplitLength { found: usize, stages: usize },
    #[error("`layer_split` adds up to {found}, but the model has {layers} layers")]
    SplitSum { found: usize, layers: usize },
    #[error("`layer_split` has no layers for stage {stage}")]
    EmptyStage { stage: usize },
    #[error(transparent)]
    Keys(#[from] KeyError),
}

/// A card or an arch that has the name of an unknown spec.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Namesake {
    Card { family: Option<String> },
    Arch { family: String },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn folders(name: &str, searched: &[String]) -> String {
    match (searched.is_empty(), name.contains('.')) {
        (false, _) => searched.join(", "),
        (true, true) => "none, because the model path is empty".to_owned(),
        (true, false) => "none, because a name without a dot is built in".to_owned(),
    }
}

fn own_model_hint(name: &str) -> String {
    let name = if name.contains('.') { name } else { "my_org.my_model" };
    let file = name.replace('.', "/");
    format!(
        "to add a model, describe it in {file}/model.yaml in a folder of the model path (--model-path or \
         WEIGHTLOOM_MODEL_PATH), or register a spec in code, and name it {name}"
    )
}

impl Hint for SpecError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Name { problem: NameProblem::Slash, .. } => {
                "name the spec, such as llama or my_org.my_model, and set `model.weights_path` to the weights"
                    .to_owned()
            }
            Self::Name { .. } => {
                "use a built-in name such as llama, or a dotted path such as my_org.my_model".to_owned()
            }
            Self::Twice { .. } => "rename one of them, for example to my_org.my_model".to_owned(),
            Self::Unknown { name, namesake: Some(namesake), .. } => {
                let (what, key, family) = match namesake {
                    Namesake::Card { family } => ("a card", "weights_path", family.as_deref()),
                    Namesake::Arch { family } => ("an arch", "arch", Some(family.as_str())),
                };
                let family = family.map_or_else(|| "its family".to_owned(), |family| format!("`{family}`"));
                format!("`{name}` is {what}: set `model.name` to {family} and `model.{key}` to `{name}`")
            }
            Self::Unknown { name, near, .. } if near.is_empty() => own_model_hint(name),
            Self::Unknown { name, near, .. } => {
                let near: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
                format!("did you mean {}? {}", near.join(" or "), own_model_hint(name))
            }
            Self::OtherArch { family, archs, .. } if archs.is_empty() => {
                format!("set `model.name: {family}`")
            }
            Self::OtherArch { family, archs, .. } => {
                format!("set `model.name: {family}`, or `model.arch` to one of {}", archs.join(", "))
            }
            Self::NoSize { archs, .. } if archs.is_empty() => {
                "set `model.weights_path`, or the missing keys in `model.config_overrides`".to_owned()
            }
            Self::NoSize { archs, .. } => {
                format!("set `model.weights_path`, or `model.arch` to one of {}", archs.join(", "))
            }
            Self::OtherModel { found, .. } => {
                format!("set `model.name` to the spec that reads `{found}`, or use other weights")
            }
            Self::NoParameter { near, .. } => return did_you_mean(near.as_deref()),
            Self::NoDim { ndim: 0, .. } => "remove it".to_owned(),
            Self::NoDim { ndim, .. } => format!("use a dim from 0 to {}", ndim - 1),
            Self::Overlap { .. } => "remove one of them".to_owned(),
            Self::Stages { layers, .. } => format!("use 1 to {layers} stages (pp × vpp)"),
            Self::SplitLength { stages, .. } => format!("list {stages} numbers"),
            Self::SplitSum { layers, .. } => format!("make the entries add up to {layers}"),
            Self::EmptyStage { .. } => "give every stage at least one layer".to_owned(),
            Self::YamlFamily(error) => return error.hint(),
            Self::Family(error) => return error.hint(),
            Self::Config { source, .. } => return source.hint(),
            Self::Keys(error) => return error.hint(),
        })
    }
}
