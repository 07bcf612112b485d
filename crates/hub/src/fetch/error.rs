//! Errors of downloads.

use std::fmt;
use std::io;
use std::time::Duration;

use weightloom_errors::{FileError, Hint, did_you_mean, name_list};
use weightloom_http::TooSlow;

/// Why a file was not downloaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FetchError {
    /// The hub also hides private repositories this way.
    #[error("repository `{repo}` not found on {endpoint}")]
    RepoUnknown { repo: String, endpoint: String, token: TokenUse },
    #[error("repository `{repo}` has no revision `{revision}`")]
    RevisionUnknown { repo: String, revision: String },
    #[error("repository `{repo}` has no file `{file}` at revision `{revision}`")]
    FileUnknown { repo: String, revision: String, file: String, nearest: Option<String> },
    #[error("cannot download `{url}`: not found")]
    NotFound { url: String },
    /// The owner requires readers to accept terms.
    #[error("cannot access gated repository `{repo}`: {token}")]
    Gated { repo: String, page: String, token: TokenUse },
    #[error("access to `{what}` denied with status {status}: {token}")]
    Refused { what: String, status: u16, token: TokenUse },
    #[error("download of `{what}` failed after {attempts} attempts without progress: {reason}")]
    RetriesExhausted {
        what: String,
        /// Since the last byte that arrived.
        attempts: u32,
        reason: TransferError,
    },
    /// A failure that a retry does not fix.
    #[error("cannot download `{what}`: {reason}")]
    Failed { what: String, reason: TransferError },
    #[error(
        "cannot download `{what}`: {needed} bytes are missing, and the disk has {free} bytes of free space"
    )]
    NoSpace { what: String, needed: u64, free: u64 },
    #[error("cannot download `{what}`: the server allows the next request in {} s", .wait.as_secs())]
    RateLimited { what: String, wait: Duration },
    /// The second download had the wrong hash as well.
    #[error("cannot verify `{file}`: its hash is {found}, expected {expected}")]
    WrongHash { file: String, expected: String, found: String },
    #[error("invalid file name `{name}`: {problem}")]
    FileName { name: String, problem: &'static str },
    #[error("invalid {kind} name `{name}`: {problem}")]
    RepoName { name: String, kind: &'static str, problem: &'static str },
    #[error("cannot download `{url}`: {problem}")]
    Url { url: String, problem: String },
    #[error("invalid file list of repository `{repo}`: {problem}")]
    Listing { repo: String, problem: String },
    #[error("none of the {files} files in repository `{repo}` match")]
    NoMatch { repo: String, files: usize },
    #[error("repository `{repo}` contains {} models: {}", .files.len(), name_list(.files, 10))]
    ManyModels { repo: String, files: Vec<String> },
    #[error("cannot download `{what}` in offline mode, and it is not in the cache")]
    NotCached {
        /// The repository with its revision, or the URL.
        what: String,
        cached: Vec<String>,
    },
    #[error("cannot complete `{what}` in offline mode: the cache lacks {}", name_list(.missing, 3))]
    Incomplete {
        what: String,
        /// Missing and truncated files.
        missing: Vec<String>,
    },
    #[error(transparent)]
    File(#[from] FileError),
    #[error("invalid {name}: {problem}")]
    Setting { name: &'static str, problem: String },
    #[error("download of `{what}` cancelled")]
    Cancelled { what: String },
}

/// Whether a request carried a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenUse {
    /// It did.
    Sent,
    /// No token is set, or it belongs to another server.
    NotSent,
}

impl fmt::Display for TokenUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "the token has no access",
            Self::NotSent => "no token was sent",
        })
    }
}

/// Why a transfer was interrupted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TransferError {
    #[error("the server answered {status}{}", in_parentheses(.message))]
    Status {
        status: u16,
        /// From the server; may be empty.
        message: String,
    },
    #[error("no data for {:.1} s", .after.as_secs_f64())]
    Stalled { after: Duration },
    #[error("too slow: {bytes} bytes in {:.1} s", .waited.as_secs_f64())]
    Slow { bytes: u64, waited: Duration },
    #[error("cannot reach the server: {cause}")]
    Unreachable { cause: String },
    #[error("connection lost: {cause}")]
    Interrupted { cause: String },
    #[error("the server reports {claimed} bytes, expected {expected}")]
    Length { expected: u64, claimed: u64 },
    #[error("the server stopped serving byte ranges")]
    RangeIgnored,
    #[error("the file changed on the server")]
    Changed,
    #[error("invalid response: {problem}")]
    Malformed { problem: String },
}

impl From<TooSlow> for TransferError {
    fn from(slow: TooSlow) -> Self {
        Self::Slow { bytes: slow.bytes, waited: slow.waited }
    }
}

fn in_parentheses(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

impl FetchError {
    /// Whether a machine or service failed, rather than the request being
    /// wrong.
    pub fn is_operational(&self) -> bool {
        matches!(
            self,
            Self::RetriesExhausted { .. }
                | Self::Failed { .. }
                | Self::RateLimited { .. }
                | Self::NoSpace { .. }
                | Self::WrongHash { .. }
                | Self::Listing { .. }
                | Self::File(_)
        )
    }
}

impl Hint for FetchError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::RepoUnknown { token: TokenUse::NotSent, .. } => {
                "check the name; for a private repository, set HF_TOKEN".to_owned()
            }
            Self::RepoUnknown { .. } => "check the name and the token's access to the repository".to_owned(),
            Self::RevisionUnknown { .. } => "use a branch, tag or commit; the default is `main`".to_owned(),
            Self::FileUnknown { nearest, .. } => return did_you_mean(nearest.as_deref()),
            Self::Gated { page, token: TokenUse::NotSent, .. } => {
                format!("accept the terms at {page}, then set HF_TOKEN to a token of that account")
            }
            Self::Gated { page, .. } => {
                format!("accept the terms at {page} with the account that owns the token")
            }
            Self::Refused { token: TokenUse::NotSent, .. } => {
                "set HF_TOKEN if the file is on the hub".to_owned()
            }
            Self::Refused { .. } => "check that HF_TOKEN is valid and has read access".to_owned(),
            Self::RetriesExhausted { reason, .. } | Self::Failed { reason, .. } => return reason.hint(),
            Self::RateLimited { .. } => "wait, or set HF_TOKEN for a higher limit on the hub".to_owned(),
            Self::WrongHash { .. } => {
                "a proxy or mirror serves other bytes; try another HF_ENDPOINT or network".to_owned()
            }
            Self::NoSpace { .. } => "free some space, or set HF_HOME to another disk".to_owned(),
            Self::NoMatch { .. } => "choose files with a pattern such as `*.safetensors`".to_owned(),
            Self::ManyModels { files, .. } => {
                format!("choose one by name, such as `{}`", files.first().map_or("", String::as_str))
            }
            Self::NotCached { cached, .. } if !cached.is_empty() => {
                format!("use one of {}, or unset HF_HUB_OFFLINE", name_list(cached, 10))
            }
            Self::NotCached { .. } | Self::Incomplete { .. } => {
                "unset HF_HUB_OFFLINE and WEIGHTLOOM_OFFLINE, and run again; only missing files are downloaded"
                    .to_owned()
            }
            Self::File(file) => match (file.kind, file.action) {
                (io::ErrorKind::StorageFull, _) => {
                    "free some space, or set HF_HOME to another disk; downloaded bytes are kept".to_owned()
                }
                (io::ErrorKind::PermissionDenied, _) => {
                    "check the owner of the folder, or set HF_HOME to another one".to_owned()
                }
                (io::ErrorKind::Unsupported, "lock") => {
                    "this file system has no locks; set HF_HOME to another one, or mount it with `flock`"
                        .to_owned()
                }
                _ => return file.hint(),
            },
            _ => return None,
        };
        Some(hint)
    }
}

impl Hint for TransferError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Status { status: 429, .. } => "wait, or set HF_TOKEN for a higher limit on the hub",
            Self::Status { status: 500.., .. } => "the server has a problem; try again later",
            Self::Stalled { .. } | Self::Slow { .. } | Self::Interrupted { .. } => {
                "try again; downloaded bytes are kept"
            }
            Self::Unreachable { .. } => {
                "check the network, HF_ENDPOINT and HTTPS_PROXY; without a network, set HF_HUB_OFFLINE=1"
            }
            Self::Length { .. } | Self::Malformed { .. } | Self::RangeIgnored => {
                "a proxy or mirror may interfere; try another HF_ENDPOINT or network"
            }
            Self::Changed => "wait until the upload is finished, and try again",
            Self::Status { .. } => return None,
        };
        Some(hint.to_owned())
    }
}
