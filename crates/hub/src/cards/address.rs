//! Addresses of models: a card, a path, or a URL.

use std::fmt;
use std::path::{Path, PathBuf};

use weightloom_checkpoint::StorageError;
use weightloom_checkpoint::storage::{Address, percent_decode};
use weightloom_errors::{Hint, name_list, nearest};

use super::store::CardStore;

/// Supported URL schemes.
const SCHEMES: [&str; 7] = ["hf", "s3", "gs", "az", "https", "http", "file"];

/// Address of a model.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelAddress {
    /// A card, by name.
    Card(String),
    /// A folder or a file.
    Path(PathBuf),
    /// A repository on Hugging Face: `hf://org/name[@revision][/sub]`. In a
    /// revision, `/` is written as `%2F`, except in `refs/pr/1`.
    HuggingFace {
        /// `org/name`; some old repositories have no organisation.
        repo: String,
        /// A branch, a tag or a commit.
        revision: Option<String>,
        /// A file or folder in the repository.
        sub: Option<String>,
    },
    /// In an object store: `s3://`, `gs://`, `az://`.
    Object(String),
    /// A web server. The query may be secret and is not printed.
    Http(String),
}

/// An invalid address of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum AddressError {
    #[error("empty model name")]
    Empty,
    #[error("unknown scheme `{scheme}://`")]
    Scheme { scheme: String },
    #[error("invalid address `{address}`: {problem}")]
    Unusable { address: String, problem: &'static str },
    #[error("`{address}` is a web page, not a file")]
    WebPage { address: String, meant: String },
    #[error("cannot find file or folder `{}`", path.display())]
    NoPath { path: PathBuf },
    #[error("cannot find a card, file or folder `{text}`")]
    Unknown { text: String, near: Vec<String> },
    #[error("cannot expand `~` in `{path}`")]
    Home { path: String },
    #[error("cannot resolve the relative path `{path}` without a folder")]
    NoFolder { path: String },
    #[error("conflicting revisions: `{one}`, and `{other}` in the address")]
    TwoRevisions { one: String, other: String },
}

impl Hint for AddressError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Scheme { scheme } => Some(match nearest(scheme, SCHEMES) {
                _ if scheme == "hg" || scheme == "huggingface" => "use hf://org/name".to_owned(),
                Some(near) => format!("did you mean {near}://?"),
                None => "use hf://, s3://, gs://, az://, https://, http://, file:// or a path".to_owned(),
            }),
            Self::WebPage { meant, .. } => Some(format!("use {meant}")),
            Self::Unknown { near, .. } => {
                (!near.is_empty()).then(|| format!("did you mean {}?", name_list(near, 3)))
            }
            Self::Home { .. } | Self::NoFolder { .. } => Some("use an absolute path".to_owned()),
            Self::TwoRevisions { .. } => Some("remove one of them".to_owned()),
            _ => None,
        }
    }
}

impl ModelAddress {
    /// Parses user input. `exists` tests whether a path exists.
    ///
    /// The name of a card takes precedence over a file of the same name; `./name`
    /// is always the file. `org/name` is a file if it exists, else a repository on
    /// Hugging Face.
    pub fn parse(
        text: &str,
        cards: &CardStore,
        exists: &dyn Fn(&Path) -> bool,
    ) -> Result<Self, AddressError> {
        let text = text.trim();
        if let Some(address) = parse_url(text)? {
            return Ok(address);
        }
        if cards.knows(text) {
            return Ok(Self::Card(text.to_owned()));
        }
        let path = PathBuf::from(text);
        if exists(&path) {
            return Ok(Self::Path(path));
        }
        let is_path = text.starts_with(['/', '.']) || text.ends_with('/') || text.contains('\\');
        match text.split_once('/') {
            Some((org, name))
                if !is_path && is_word(org) && is_word(name.split('@').next().unwrap_or(name)) =>
            {
                hugging_face(text, text)
            }
            None if !is_path => Err(AddressError::Unknown { text: text.to_owned(), near: cards.near(text) }),
            _ => Err(AddressError::NoPath { path }),
        }
    }

    /// Parses an address in a card. Relative paths are relative to `folder`.
    pub(super) fn from_card(text: &str, folder: Option<&Path>) -> Result<Self, AddressError> {
        let text = text.trim();
        if let Some(address) = parse_url(text)? {
            return Ok(address);
        }
        match folder {
            _ if Path::new(text).is_absolute() => Ok(Self::Path(PathBuf::from(text))),
            // `components` removes `.`.
            Some(folder) => Ok(Self::Path(folder.join(text).components().collect())),
            None => Err(AddressError::NoFolder { path: text.to_owned() }),
        }
    }
}

/// Parses an address with `://`; `None` if the text has none.
fn parse_url(text: &str) -> Result<Option<ModelAddress>, AddressError> {
    if text.is_empty() || text.contains('\0') {
        return Err(AddressError::Empty);
    }
    if text == "~" || text.starts_with("~/") {
        return Err(AddressError::Home { path: text.to_owned() });
    }
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "hf" {
        return hugging_face(text, rest).map(Some);
    }
    if !SCHEMES.contains(&scheme.as_str()) {
        return Err(AddressError::Scheme { scheme });
    }
    if scheme.starts_with("http")
        && let Some(meant) = repository_page(rest)
    {
        let address = text.split(['?', '#']).next().unwrap_or_default().to_owned();
        return Err(AddressError::WebPage { address, meant });
    }
    match Address::parse(text) {
        Ok(Address::Local { path }) if path.starts_with('/') && !path.contains('\0') => {
            Ok(Some(ModelAddress::Path(PathBuf::from(path))))
        }
        Ok(Address::Local { .. }) => {
            let problem = "expected an absolute path, such as file:///models/x";
            Err(AddressError::Unusable { address: text.to_owned(), problem })
        }
        Ok(Address::Remote(_)) if scheme.starts_with("http") => Ok(Some(ModelAddress::Http(text.to_owned()))),
        Ok(Address::Remote(_)) => Ok(Some(ModelAddress::Object(text.to_owned()))),
        Err(StorageError::Url { url, problem }) => Err(AddressError::Unusable { address: url, problem }),
        Err(_) => Err(AddressError::Scheme { scheme }),
    }
}

fn hugging_face(text: &str, rest: &str) -> Result<ModelAddress, AddressError> {
    let bad = |problem| AddressError::Unusable { address: text.to_owned(), problem };
    if rest.contains(['?', '#']) {
        return Err(bad("queries are not supported"));
    }
    let rest = rest.trim_end_matches('/');
    let mut segments = rest.split('/');
    let first = segments.next().unwrap_or_default();
    if matches!(first, "datasets" | "spaces") {
        return Err(bad("not a model repository"));
    }
    // Old repositories have no organisation.
    let (org, last) = match first.contains('@') {
        true => (None, Some(first)),
        false => match segments.next() {
            Some(second) => (Some(first), Some(second)),
            None => (None, Some(first)),
        },
    };
    let last = last.unwrap_or_default();
    let (name, revision) = match last.split_once('@') {
        Some((name, revision)) => (name, Some(revision)),
        None => (last, None),
    };
    if !is_word(name) || org.is_some_and(|org| !is_word(org)) {
        return Err(bad("expected hf://org/name"));
    }
    let mut sub: Vec<&str> = segments.collect();
    let revision = match revision {
        // The only common revisions with slashes.
        Some("refs") if sub.len() >= 2 && matches!(sub[0], "pr" | "convert") => {
            let rest = sub.split_off(2);
            Some(format!("refs/{}", std::mem::replace(&mut sub, rest).join("/")))
        }
        Some(revision) => {
            let revision = percent_decode(revision).filter(|text| is_revision(text));
            Some(revision.ok_or_else(|| bad("invalid revision"))?)
        }
        None => None,
    };
    if sub.iter().any(|part| matches!(*part, "" | "." | "..") || part.contains(['\\', '\0'])) {
        return Err(bad("invalid component in its path"));
    }
    let repo = org.map_or_else(|| name.to_owned(), |org| format!("{org}/{name}"));
    let sub = (!sub.is_empty()).then(|| sub.join("/"));
    Ok(ModelAddress::HuggingFace { repo, revision, sub })
}

/// The `hf://` address of a repository's web page.
fn repository_page(rest: &str) -> Option<String> {
    let path = rest.split(['?', '#']).next()?.trim_end_matches('/');
    let (host, path) = path.split_once('/')?;
    let parts: Vec<&str> = path.split('/').collect();
    match (host, parts.as_slice()) {
        ("huggingface.co" | "hf.co" | "www.huggingface.co", [org, name]) => {
            Some(format!("hf://{org}/{name}"))
        }
        (
            "huggingface.co" | "hf.co" | "www.huggingface.co",
            [org, name, "tree" | "blob", revision, sub @ ..],
        ) => {
            let sub: String = sub.iter().map(|part| format!("/{part}")).collect();
            Some(format!("hf://{org}/{name}@{revision}{sub}"))
        }
        _ => None,
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(['.', '-'])
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

fn is_revision(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| !c.is_control() && !c.is_whitespace() && !"\\?#@".contains(c))
        && text.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

impl fmt::Display for ModelAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Card(name) => f.write_str(name),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::HuggingFace { repo, revision, sub } => {
                write!(f, "hf://{repo}")?;
                if let Some(revision) = revision {
                    write!(f, "@{}", revision.replace('%', "%25").replace('/', "%2F"))?;
                }
                sub.iter().try_for_each(|sub| write!(f, "/{sub}"))
            }
            Self::Object(url) | Self::Http(url) => match Address::parse(url) {
                Ok(Address::Remote(remote)) => f.write_str(&remote.shown()),
                _ => f.write_str("invalid address"),
            },
        }
    }
}

/// Like `Display`, which leaves out secrets.
impl fmt::Debug for ModelAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Card(_) => "Card",
            Self::Path(_) => "Path",
            Self::HuggingFace { .. } => "HuggingFace",
            Self::Object(_) => "Object",
            Self::Http(_) => "Http",
        };
        write!(f, "{kind}({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cards::CardSource;

    fn parse(text: &str) -> Result<ModelAddress, AddressError> {
        let store = CardStore::new([CardSource::built_in(&[("a.yaml", "name: small\n---\nname: both\n")])]);
        let existing = ["both", "folder", "org/there", "a b/model.gguf", "/abs"];
        ModelAddress::parse(text, &store, &|path| existing.iter().any(|other| Path::new(other) == path))
    }

    fn hub(repo: &str, revision: Option<&str>, sub: Option<&str>) -> Result<ModelAddress, AddressError> {
        let [revision, sub] = [revision, sub].map(|text| text.map(str::to_owned));
        Ok(ModelAddress::HuggingFace { repo: repo.to_owned(), revision, sub })
    }

    #[test]
    fn words_are_cards_and_then_paths() {
        assert_eq!(parse("small"), Ok(ModelAddress::Card("small".to_owned())));
        assert_eq!(parse(" small@ "), Ok(ModelAddress::Card("small@".to_owned())));
        assert_eq!(parse("both"), Ok(ModelAddress::Card("both".to_owned())));
        for path in ["folder", "org/there", "a b/model.gguf", "/abs"] {
            assert_eq!(parse(path), Ok(ModelAddress::Path(path.into())));
        }
        let error = parse("smal").unwrap_err();
        assert_eq!(error, AddressError::Unknown { text: "smal".to_owned(), near: vec!["small".to_owned()] });
        assert_eq!(error.hint().unwrap(), "did you mean `small`?");
        assert!(matches!(parse("small@cluster"), Err(AddressError::Unknown { .. })));
        for path in ["./none", "/none", "a/b/c", "none/", "../x"] {
            assert_eq!(parse(path), Err(AddressError::NoPath { path: path.into() }), "{path}");
        }
    }

    #[test]
    fn a_bare_repository_is_one_on_hugging_face_unless_it_exists() {
        assert_eq!(parse("meta-llama/Llama-3.2-1B"), hub("meta-llama/Llama-3.2-1B", None, None));
        assert_eq!(parse("org/name@v1"), hub("org/name", Some("v1"), None));
        assert_eq!(parse("org/there"), Ok(ModelAddress::Path("org/there".into())));
        for path in ["./org/name", "org/name/", "org/.name", "a/b/c"] {
            assert_eq!(parse(path), Err(AddressError::NoPath { path: path.into() }), "{path}");
        }
        let page = parse("https://huggingface.co/org/name/tree/main/sub?x=1").unwrap_err();
        assert_eq!(page.hint().unwrap(), "use hf://org/name@main/sub");
    }

    #[test]
    fn addresses_of_hugging_face_have_revisions_and_folders() {
        assert_eq!(parse("hf://org/name"), hub("org/name", None, None));
        assert_eq!(parse("HF://org/name/"), hub("org/name", None, None));
        assert_eq!(parse("hf://org/name@v1.0"), hub("org/name", Some("v1.0"), None));
        assert_eq!(parse("hf://org/name@main/a/b.gguf"), hub("org/name", Some("main"), Some("a/b.gguf")));
        assert_eq!(parse("hf://org/name/a b"), hub("org/name", None, Some("a b")));
        assert_eq!(parse("hf://org/name@refs/pr/7/sub"), hub("org/name", Some("refs/pr/7"), Some("sub")));
        assert_eq!(parse("hf://org/name@feature%2Fx"), hub("org/name", Some("feature/x"), None));
        assert_eq!(parse("hf://gpt2"), hub("gpt2", None, None));
        assert_eq!(parse("hf://gpt2@main/x"), hub("gpt2", Some("main"), Some("x")));
        for bad in [
            "hf://",
            "hf:///x",
            "hf://org//x",
            "hf://org/name@",
            "hf://org/name@/x",
            "hf://-/x",
            "hf://org/name/../x",
            "hf://org/name//x",
            "hf://org/name?x",
            "hf://org/name@a%2",
            "hf://org/na me",
            "hf://org/name@a b",
            "hf://datasets/org/name",
            "hf://org/name@..",
            "hf://org/name@a%2F..",
        ] {
            assert!(matches!(parse(bad), Err(AddressError::Unusable { .. })), "{bad} {:?}", parse(bad));
        }
    }

    #[test]
    fn files_are_decoded_and_services_are_checked() {
        assert_eq!(parse("file:///a/b%20c"), Ok(ModelAddress::Path("/a/b c".into())));
        assert_eq!(parse("file://localhost/a"), Ok(ModelAddress::Path("/a".into())));
        assert_eq!(parse("file:///a b"), Ok(ModelAddress::Path("/a b".into())));
        for url in ["s3://bucket/x", "gs://b", "az://c/d"] {
            assert_eq!(parse(url), Ok(ModelAddress::Object(url.to_owned())));
        }
        let signed = "https://host/model.gguf?token=hidden";
        let address = parse(signed).unwrap();
        assert_eq!(address, ModelAddress::Http(signed.to_owned()));
        assert_eq!(format!("{address} {address:?}").matches("hidden").count(), 0);
        for bad in ["file://x/y", "file://", "file:///%zz", "s3://", "s3://b/%2e%2e/x", "http://me:x@host/a"]
        {
            assert!(matches!(parse(bad), Err(AddressError::Unusable { .. })), "{bad} {:?}", parse(bad));
        }
        assert!(parse("hg://org/name").unwrap_err().hint().unwrap().contains("hf://"));
        assert_eq!(parse("htps://x").unwrap_err().hint().unwrap(), "did you mean https://?");
        assert!(matches!(parse("~/models/x"), Err(AddressError::Home { .. })));
        assert!(matches!(parse(" "), Err(AddressError::Empty)));
    }

    proptest! {
        #[test]
        fn any_input_parses_or_fails(text in "((hf|file|s3|http|x)://)?[a-z@/.%~ \\PC]{0,20}") {
            if let Ok(address @ ModelAddress::HuggingFace { .. }) = parse(&text) {
                prop_assert_eq!(parse(&address.to_string()), Ok(address));
            }
        }
    }
}
