//! Names of cards, with an optional environment.

use std::fmt;

/// Name of a card: letters, digits, `.`, `_` and `-`, optionally followed by `@`
/// and an environment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CardName {
    plain: String,
    env: Wanted,
}

/// The environment in a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wanted {
    /// Not specified (`name`).
    Any,
    /// No environment (`name@`).
    Plain,
    /// A specific one (`name@env`).
    Env(String),
}

impl CardName {
    /// Parses a name; `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let (plain, env) = match text.split_once('@') {
            None => (text, Wanted::Any),
            Some((plain, "")) => (plain, Wanted::Plain),
            Some((plain, env)) if is_word(env) => (plain, Wanted::Env(env.to_owned())),
            Some(_) => return None,
        };
        is_word(plain).then(|| Self { plain: plain.to_owned(), env })
    }

    /// The name without an environment.
    pub fn plain(&self) -> &str {
        &self.plain
    }

    /// The environment, if there is one.
    pub fn env(&self) -> Option<&str> {
        match &self.env {
            Wanted::Env(env) => Some(env),
            Wanted::Any | Wanted::Plain => None,
        }
    }

    pub(super) fn wanted(&self) -> &Wanted {
        &self.env
    }
}

impl fmt::Display for CardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.env {
            Wanted::Any => f.write_str(&self.plain),
            Wanted::Plain => write!(f, "{}@", self.plain),
            Wanted::Env(env) => write!(f, "{}@{env}", self.plain),
        }
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(['.', '-'])
        && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_an_environment_or_forbids_them_or_says_nothing() {
        let wanted = |text: &str| CardName::parse(text).map(|name| name.env);
        assert_eq!(wanted("llama-3.1_8b"), Some(Wanted::Any));
        assert_eq!(wanted("x@"), Some(Wanted::Plain));
        assert_eq!(wanted("x@user"), Some(Wanted::Env("user".to_owned())));
        for bad in ["", "@", "@user", "a/b", "a b", ".a", "-a", "a@b@c", "a@b/c", "s3://a", "a\n", "a@-"] {
            assert_eq!(wanted(bad), None, "{bad:?}");
        }
        for good in ["x", "x@", "x@user"] {
            assert_eq!(CardName::parse(good).unwrap().to_string(), good);
        }
    }
}
