//! What went wrong at the far end, and which far end it was.

use std::fmt;

/// The kinds of place that are not a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Service {
    /// Amazon S3, and whatever speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
    /// A plain web server, which can only be read.
    Web,
}

impl Service {
    /// What to look at if the service does not know who is asking.
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
            Self::Web => "the server wants a login; download the file and open it from disk",
        }
    }
}

/// What went wrong at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteProblem {
    /// It answered with an HTTP status that means no.
    Status(u16),
    /// It did not answer in time.
    Timeout,
    /// It cannot be reached.
    Unreachable,
    /// The connection broke.
    Cut,
    /// It answered something that makes no sense.
    Malformed,
    /// There are no credentials, nor anybody who gives some out.
    NoCredentials,
    /// Its settings are wrong, so that nobody was asked.
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
            Self::Status(status) => write!(f, "the answer was {status}"),
            Self::Timeout => f.write_str("there was no answer in time"),
            Self::Unreachable => f.write_str("the server cannot be reached"),
            Self::Cut => f.write_str("the connection broke"),
            Self::Malformed => f.write_str("the answer makes no sense"),
            Self::NoCredentials => f.write_str("there are no credentials"),
            Self::Settings => f.write_str("the settings are wrong"),
        }
    }
}
