//! Remote services and their problems.

use std::fmt;

/// Remote services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Service {
    /// Amazon S3 and compatible services.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
    /// A web server, read-only.
    Web,
}

impl Service {
    /// A hint for failed authentication.
    pub(crate) fn credentials(self) -> &'static str {
        match self {
            Self::S3 => {
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION, and that \
                 they may use this bucket; for a public bucket set AWS_SKIP_SIGNATURE=true"
            }
            Self::Google => {
                "check GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS, and that the account may use \
                 this bucket; for a public bucket set GOOGLE_SKIP_SIGNATURE=true"
            }
            Self::Azure => {
                "check AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY, and \
                 that they may use this container; for a public container set AZURE_SKIP_SIGNATURE=true"
            }
            Self::Web => "download the file and open it from disk; the server requires a login",
        }
    }
}

/// Why a remote request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteProblem {
    /// An HTTP error status.
    Status(u16),
    /// No response in time.
    Timeout,
    /// The connection could not be made.
    Unreachable,
    /// The connection broke.
    Cut,
    /// An unexpected response.
    Malformed,
    /// No credentials were found.
    NoCredentials,
    /// The settings are invalid; no request was sent.
    Settings,
}

impl RemoteProblem {
    /// Whether the service asks for fewer requests.
    pub(crate) fn is_throttling(self) -> bool {
        matches!(self, Self::Status(429 | 503))
    }
}

impl fmt::Display for RemoteProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::Timeout => f.write_str("no response in time"),
            Self::Unreachable => f.write_str("cannot reach the server"),
            Self::Cut => f.write_str("connection lost"),
            Self::Malformed => f.write_str("unexpected response"),
            Self::NoCredentials => f.write_str("no credentials found"),
            Self::Settings => f.write_str("invalid settings"),
        }
    }
}
