//! Why a file did not come.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use weightloom_errors::Hint;

/// Why a file did not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FetchError {
    /// There is no such repository, or it does not show itself to us.
    #[error("`{repo}` is not known to {endpoint}")]
    RepoUnknown {
        repo: String,
        endpoint: String,
        /// Whether we said who we are; private ones are hidden.
        token: TokenUse,
    },
    /// The repository has no such branch, tag or commit.
    #[error("`{repo}` has no revision `{revision}`")]
    RevisionUnknown { repo: String, revision: String },
    /// The repository has no such file.
    #[error("`{repo}` has no file `{file}` at revision `{revision}`")]
    FileUnknown { repo: String, revision: String, file: String, nearest: Option<String> },
    /// The server knows no such address.
    #[error("there is nothing at `{url}` (404)")]
    NotFound { url: String },
    /// The owner wants readers to agree to terms first.
    #[error("`{repo}` is gated, and {token}")]
    Gated { repo: String, page: String, token: TokenUse },
    /// The server wants to know who asks, or does not like who does.
    #[error("`{what}` was refused ({status}), and {token}")]
    Refused { what: String, status: u16, token: TokenUse },
    /// It went wrong more often than we try.
    #[error("`{what}` was given up after {attempts} attempts without progress: {fault}")]
    GaveUp {
        what: String,
        /// How often it was tried since the last byte that came.
        attempts: u32,
        fault: Fault,
    },
    /// An answer that trying again does not make better.
    #[error("`{what}`: {fault}")]
    Failed { what: String, fault: Fault },
    /// The server wants a longer pause than we make.
    #[error("`{what}` may only be asked for again in {} s", .wait.as_secs())]
    RateLimited { what: String, wait: Duration },
    /// All bytes came, twice, and they are the wrong ones.
    #[error("`{file}` has hash {found}, not {expected}")]
    WrongHash { file: String, expected: String, found: String },
    /// A name that would leave the folder, or that no file should have.
    #[error("`{name}` is no name for a file: {problem}")]
    FileName { name: String, problem: &'static str },
    /// Not the name of a repository or revision.
    #[error("`{name}` is no name for a {kind}: {problem}")]
    RepoName { name: String, kind: &'static str, problem: &'static str },
    /// A URL that cannot be used.
    #[error("`{url}` cannot be fetched: {problem}")]
    Url { url: String, problem: String },
    /// The list of files of a repository makes no sense.
    #[error("the list of files of `{repo}` cannot be used: {problem}")]
    Listing { repo: String, problem: String },
    /// No file of the repository is wanted.
    #[error("none of the {files} files of `{repo}` is wanted")]
    NothingChosen { repo: String, files: usize },
    /// Several files that each are a whole model.
    #[error("`{repo}` has {} files that each are a model: {}", .files.len(), .files.join(", "))]
    ManyModels { repo: String, files: Vec<String> },
    /// Nothing is in the cache, and we may not ask.
    #[error("`{what}` is not in the cache, and fetching is switched off")]
    NotCached {
        /// The repository with its revision, or the URL.
        what: String,
        cached: Vec<String>,
    },
    /// The cache has some of the files, and we may not ask for the others.
    #[error("`{what}` is not complete in the cache ({} missing), and fetching is switched off", listed(.missing))]
    Incomplete {
        what: String,
        /// The files that are missing or cut off.
        missing: Vec<String>,
    },
    /// The operating system refused.
    #[error("cannot {action} `{path}`: {message}")]
    Io { action: &'static str, path: String, kind: io::ErrorKind, message: String },
    /// A setting that makes no sense.
    #[error("{name} cannot be used: {problem}")]
    Setting { name: &'static str, problem: String },
    /// The observer wanted to stop.
    #[error("the download of `{what}` was stopped")]
    Cancelled { what: String },
}

/// Whether a request said who we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenUse {
    /// A token was sent.
    Sent,
    /// There is none, or it is for another server.
    NotSent,
}

/// What went wrong on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// An HTTP status that means no.
    Status {
        /// The status.
        status: u16,
        /// What the server said to it, if anything.
        said: String,
    },
    /// No byte came for so long.
    Stalled {
        /// How long.
        after: Duration,
    },
    /// Nobody answers there.
    Unreachable {
        /// In the system's words.
        why: String,
    },
    /// The connection broke, or the answer ended too early.
    Cut {
        /// What is known about it.
        why: String,
    },
    /// The server says another length than the file has.
    Length {
        /// The length.
        expected: u64,
        /// The length that the server says.
        claimed: u64,
    },
    /// Ranges were served before, and are not any more.
    RangeIgnored,
    /// The file became another one while it was fetched.
    Changed,
    /// The answer breaks the rules of HTTP, or is not what was asked for.
    Malformed {
        /// Which rule.
        problem: String,
    },
}

impl FetchError {
    pub(super) fn io(action: &'static str, path: &Path, error: &io::Error) -> Self {
        let path = path.display().to_string();
        Self::Io { action, path, kind: error.kind(), message: error.to_string() }
    }
}

/// Up to three names, and how many more there are.
fn listed(names: &[String]) -> String {
    let mut text = names.iter().take(3).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > 3 {
        text.push_str(&format!(" and {} more", names.len() - 3));
    }
    text
}

impl fmt::Display for TokenUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "the token that was sent does not open it",
            Self::NotSent => "no token was sent",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { status, said } if said.is_empty() => write!(f, "the answer was {status}"),
            Self::Status { status, said } => write!(f, "the answer was {status} ({said})"),
            Self::Stalled { after } => write!(f, "nothing came for {:.1} s", after.as_secs_f64()),
            Self::Unreachable { why } => write!(f, "the server cannot be reached: {why}"),
            Self::Cut { why } => write!(f, "the connection broke: {why}"),
            Self::Length { expected, claimed } => {
                write!(f, "the server says {claimed} bytes, but there should be {expected}")
            }
            Self::RangeIgnored => f.write_str("the server stopped serving ranges"),
            Self::Changed => f.write_str("the file changed on the server"),
            Self::Malformed { problem } => write!(f, "the answer makes no sense: {problem}"),
        }
    }
}

impl FetchError {
    /// Whether a machine or a service did not do its part, rather than that
    /// something was asked for that is not there.
    pub fn is_operational(&self) -> bool {
        matches!(
            self,
            Self::GaveUp { .. }
                | Self::Failed { .. }
                | Self::RateLimited { .. }
                | Self::WrongHash { .. }
                | Self::Listing { .. }
                | Self::Io { .. }
        )
    }
}

impl Hint for FetchError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::RepoUnknown { token: TokenUse::NotSent, .. } => {
                "check the name; if the repository is private, set HF_TOKEN".to_owned()
            }
            Self::RepoUnknown { .. } => {
                "check the name, and that the owner of the token may see the repository".to_owned()
            }
            Self::RevisionUnknown { repo, .. } => {
                format!("see the branches and tags of `{repo}`; `main` is the usual one")
            }
            Self::FileUnknown { nearest: Some(name), .. } => format!("did you mean `{name}`?"),
            Self::Gated { page, token: TokenUse::NotSent, .. } => {
                format!("agree to the terms at {page}, then set HF_TOKEN to a token of that account")
            }
            Self::Gated { page, .. } => {
                format!("agree to the terms at {page} with the account that the token belongs to")
            }
            Self::Refused { token: TokenUse::NotSent, .. } => "set HF_TOKEN if this is on the hub".to_owned(),
            Self::Refused { .. } => "check that HF_TOKEN is still valid and may read this".to_owned(),
            Self::GaveUp { fault, .. } | Self::Failed { fault, .. } => return fault.hint(),
            Self::RateLimited { .. } => "wait; with HF_TOKEN set, the hub allows more".to_owned(),
            Self::WrongHash { .. } => {
                "a proxy or mirror serves other bytes; try another HF_ENDPOINT or network".to_owned()
            }
            Self::NothingChosen { .. } => "choose files with a pattern such as `*.safetensors`".to_owned(),
            Self::ManyModels { files, .. } => {
                format!("choose one by name, such as `{}`", files.first().map_or("", String::as_str))
            }
            Self::NotCached { cached, .. } if !cached.is_empty() => {
                format!("in the cache are: {}; or unset HF_HUB_OFFLINE", cached.join(", "))
            }
            Self::NotCached { .. } | Self::Incomplete { .. } => {
                "unset HF_HUB_OFFLINE and WEIGHTLOOM_OFFLINE and try again; only what is missing is fetched"
                    .to_owned()
            }
            Self::Io { kind: io::ErrorKind::StorageFull, .. } => {
                "make room, or choose another HF_HOME; what has arrived is kept".to_owned()
            }
            Self::Io { kind: io::ErrorKind::PermissionDenied, .. } => {
                "check who owns the folder, or choose another HF_HOME".to_owned()
            }
            Self::Io { kind: io::ErrorKind::Unsupported, action: "lock", .. } => {
                "this filesystem has no locks; choose another HF_HOME, or mount it with `flock`".to_owned()
            }
            _ => return None,
        };
        Some(hint)
    }
}

impl Hint for Fault {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Status { status: 429, .. } => "wait; with HF_TOKEN set, the hub allows more",
            Self::Status { status: 500.., .. } => "the server has trouble; try again later",
            Self::Stalled { .. } | Self::Cut { .. } => "try again; what has arrived is kept",
            Self::Unreachable { .. } => {
                "check the network, HF_ENDPOINT and HTTPS_PROXY; without a network set HF_HUB_OFFLINE=1"
            }
            Self::Length { .. } | Self::Malformed { .. } | Self::RangeIgnored => {
                "a proxy or mirror may be in between; try another HF_ENDPOINT or network"
            }
            Self::Changed => "somebody is writing there; wait until it is finished, and try again",
            Self::Status { .. } => return None,
        };
        Some(hint.to_owned())
    }
}
