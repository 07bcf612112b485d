//! Things that a config selects by name.

use std::fmt;
use std::sync::Arc;

use weightloom_document::Section;
use weightloom_document::schema::Choice;
use weightloom_errors::{Hint, caught, did_you_mean, nearest};

use super::OptionProblem;

/// Things of one kind that a config selects by name, the built-in ones first.
pub(crate) struct Registry<T: ?Sized> {
    /// The kind, for errors: `optimizer`.
    what: &'static str,
    entries: Vec<Entry<T>>,
}

struct Entry<T: ?Sized> {
    name: &'static str,
    summary: &'static str,
    options: Section,
    item: Arc<T>,
}

impl<T: ?Sized> Clone for Entry<T> {
    fn clone(&self) -> Self {
        let Self { name, summary, options, item } = self;
        Self { name: *name, summary: *summary, options: options.clone(), item: Arc::clone(item) }
    }
}

impl<T: ?Sized> Clone for Registry<T> {
    fn clone(&self) -> Self {
        Self { what: self.what, entries: self.entries.clone() }
    }
}

impl<T: ?Sized> fmt::Debug for Registry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(self.what).field(&self.names()).finish()
    }
}

impl<T: ?Sized> Registry<T> {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, entries: Vec::new() }
    }

    /// Adds an item, unless its name or its options could not be written in a
    /// config.
    pub(crate) fn add(
        &mut self,
        (name, summary): (&'static str, &'static str),
        options: impl FnOnce() -> Result<Section, String>,
        item: Arc<T>,
    ) -> Result<(), RegisterError> {
        let fault = |problem| RegisterError { what: self.what, name: name.to_owned(), problem };
        let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        if name.is_empty() || !name.chars().all(fits) {
            return Err(fault(RegisterProblem::Name));
        }
        if self.entries.iter().any(|entry| entry.name == name) {
            return Err(fault(RegisterProblem::Taken));
        }
        let schema = |message: String| fault(RegisterProblem::Options { message });
        let options = caught(options).map_err(|panic| schema(panic.to_string()))?.map_err(schema)?;
        self.entries.push(Entry { name, summary, options, item });
        Ok(())
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.entries.iter().map(|entry| entry.name).collect()
    }

    /// The names with their descriptions, for the schema of a config.
    pub(crate) fn choices(&self) -> Vec<Choice> {
        let choice =
            |entry: &Entry<T>| Choice { name: entry.name.to_owned(), description: entry.summary.to_owned() };
        self.entries.iter().map(choice).collect()
    }

    /// The keys that an item has under `options`.
    pub(crate) fn options(&self, name: &str) -> Option<&Section> {
        self.entries.iter().find(|entry| entry.name == name).map(|entry| &entry.options)
    }

    /// What an item says about its options; nothing if it is not registered. Its panic
    /// is a problem.
    pub(crate) fn problems(
        &self,
        name: &str,
        ask: impl FnOnce(&T) -> Vec<OptionProblem>,
    ) -> Vec<OptionProblem> {
        let Ok(found) = self.find(name) else { return Vec::new() };
        caught(|| ask(found)).unwrap_or_else(|panic| vec![OptionProblem::new("", panic.to_string())])
    }

    pub(crate) fn find(&self, name: &str) -> Result<&T, UnknownName> {
        self.entry(name).map(|item| &**item)
    }

    pub(crate) fn shared(&self, name: &str) -> Result<Arc<T>, UnknownName> {
        self.entry(name).cloned()
    }

    fn entry(&self, name: &str) -> Result<&Arc<T>, UnknownName> {
        let found = self.entries.iter().find(|entry| entry.name == name).map(|entry| &entry.item);
        found.ok_or_else(|| UnknownName {
            what: self.what,
            name: name.to_owned(),
            near: nearest(name, self.names()).map(str::to_owned),
            known: self.names().into_iter().map(str::to_owned).collect(),
        })
    }
}

/// A name that is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{name}`")]
#[allow(missing_docs)]
pub struct UnknownName {
    pub what: &'static str,
    pub name: String,
    pub near: Option<String>,
    pub known: Vec<String>,
}

impl Hint for UnknownName {
    fn hint(&self) -> Option<String> {
        let list = || match self.known.is_empty() {
            true => format!("register it in a program of your own: no {} is built in", self.what),
            false => format!("use one of {}", self.known.join(", ")),
        };
        Some(did_you_mean(self.near.as_deref()).unwrap_or_else(list))
    }
}

/// Why something cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot register the {what} `{name}`: {problem}")]
#[allow(missing_docs)]
pub struct RegisterError {
    pub what: &'static str,
    pub name: String,
    pub problem: RegisterProblem,
}

/// What is wrong with something to register.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RegisterProblem {
    #[error("its name is not in lower_case")]
    Name,
    #[error("the name is taken")]
    Taken,
    #[error("unsupported schema of its options: {message}")]
    Options { message: String },
}

impl Hint for RegisterError {
    fn hint(&self) -> Option<String> {
        let hint = match &self.problem {
            RegisterProblem::Name => "use lower-case letters, digits and `_`",
            RegisterProblem::Taken => "give it another name",
            RegisterProblem::Options { .. } => {
                "derive `Deserialize` and `JsonSchema`, with #[serde(default, deny_unknown_fields)]"
            }
        };
        Some(hint.to_owned())
    }
}
