//! The kinds of probes that suites may name.

use thiserror::Error;
use weightloom_errors::{Hint, caught, did_you_mean, nearest};

use super::{About, Kind, PREFLIGHT, ProbeKind, kinds};
use crate::extensions::section_of;

/// Fields that every entry of a suite has.
const COMMON: [&str; 5] = ["name", "kind", "enabled", "weight", "chat"];

/// The kinds of probes that suites may name, with those of your own crate.
///
/// A value, not a global list: a caller that reads a suite passes it in, as a part
/// of [`Extensions`](crate::Extensions), and the suite keeps it.
#[derive(Clone, Debug)]
pub struct Probes {
    kinds: Vec<Kind>,
}

/// Kinds are the same if their names are: a name is registered only once.
impl PartialEq for Probes {
    fn eq(&self, other: &Self) -> bool {
        self.kinds.iter().map(Kind::name).eq(other.kinds.iter().map(Kind::name))
    }
}

impl Default for Probes {
    fn default() -> Self {
        Self::standard()
    }
}

impl Probes {
    /// The built-in kinds.
    pub fn standard() -> Self {
        Self { kinds: kinds().to_vec() }
    }

    /// The same kinds and another one.
    pub fn with<T: ProbeKind>(mut self) -> Result<Self, RegisterProbeError> {
        self.register::<T>()?;
        Ok(self)
    }

    /// Adds a kind. What is wrong with it is an error here rather than in the
    /// suites that name it.
    pub fn register<T: ProbeKind>(&mut self) -> Result<(), RegisterProbeError> {
        let kind = Kind::of::<T>();
        let name = kind.name();
        let fault = |problem| RegisterProbeError { kind: name.to_owned(), problem };
        if !is_kind_name(name) {
            return Err(fault(RegisterProbeProblem::Name));
        }
        if name == PREFLIGHT.kind || self.find(name).is_ok() {
            return Err(fault(RegisterProbeProblem::Taken));
        }
        let About { title, summary, question, measure, axis, .. } = kind.about;
        let texts = [
            ("title", title),
            ("summary", summary),
            ("question", question),
            ("measure", measure),
            ("axis", axis),
        ];
        if let Some((text, _)) = texts.into_iter().find(|(_, text)| text.trim().is_empty()) {
            return Err(fault(RegisterProbeProblem::Empty { text }));
        }
        let schema = caught(|| kind.schema())
            .map_err(|panic| fault(RegisterProbeProblem::Fields { message: panic.to_string() }))?;
        let fields =
            section_of(&schema).map_err(|error| fault(RegisterProbeProblem::Fields { message: error.0 }))?;
        if let Some(field) = fields.keys.iter().find(|field| COMMON.contains(&field.name.as_str())) {
            return Err(fault(RegisterProbeProblem::CommonField { field: field.name.clone() }));
        }
        if let Some(field) = fields.keys.iter().find(|field| field.description.trim().is_empty()) {
            return Err(fault(RegisterProbeProblem::Undocumented { field: field.name.clone() }));
        }
        self.kinds.push(kind);
        Ok(())
    }

    /// All kinds: the built-in ones in the order of the documentation, then the
    /// others as they were added.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Finds a kind by name.
    pub fn find(&self, kind: &str) -> Result<&Kind, UnknownKind> {
        let known = || self.kinds.iter().map(Kind::name);
        self.kinds.iter().find(|known| known.name() == kind).ok_or_else(|| UnknownKind {
            kind: kind.to_owned(),
            near: nearest(kind, known()).map(str::to_owned),
            known: known().map(str::to_owned).collect(),
        })
    }
}

/// Whether a name can stand in a suite: `lower_case`, with a letter first.
fn is_kind_name(name: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    name.starts_with(|first: char| first.is_ascii_lowercase()) && name.chars().all(fits)
}

/// A kind that is not registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown probe kind `{kind}`")]
#[allow(missing_docs)]
pub struct UnknownKind {
    pub kind: String,
    pub near: Option<String>,
    pub known: Vec<String>,
}

impl Hint for UnknownKind {
    fn hint(&self) -> Option<String> {
        let list = || format!("use one of {}", self.known.join(", "));
        Some(did_you_mean(self.near.as_deref()).unwrap_or_else(list))
    }
}

/// Why a kind of probe cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot register the probe kind `{kind}`: {problem}")]
#[allow(missing_docs)]
pub struct RegisterProbeError {
    pub kind: String,
    pub problem: RegisterProbeProblem,
}

/// What is wrong with a kind of probe.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RegisterProbeProblem {
    #[error("its name is not in lower_case")]
    Name,
    #[error("another kind has this name")]
    Taken,
    #[error("its `{text}` is empty")]
    Empty { text: &'static str },
    #[error("unsupported schema of its fields: {message}")]
    Fields { message: String },
    #[error("every entry of a suite has a field `{field}`")]
    CommonField { field: String },
    #[error("its field `{field}` has no description")]
    Undocumented { field: String },
}

impl Hint for RegisterProbeError {
    fn hint(&self) -> Option<String> {
        let hint = match &self.problem {
            RegisterProbeProblem::Name => "use lower-case letters, digits and `_`, with a letter first",
            RegisterProbeProblem::Taken => "give `ABOUT.kind` another name",
            RegisterProbeProblem::Empty { text } => return Some(format!("fill in `ABOUT.{text}`")),
            RegisterProbeProblem::Fields { .. } => {
                "derive `Deserialize` and `JsonSchema`, with #[serde(default, deny_unknown_fields)]"
            }
            RegisterProbeProblem::CommonField { .. } => "rename the field",
            RegisterProbeProblem::Undocumented { .. } => "add a doc comment to the field",
        };
        Some(hint.to_owned())
    }
}
