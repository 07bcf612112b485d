//! Options of object storage.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use weightloom_http::{MinSpeed, RetryPolicy};

/// Options of object storage. The defaults suit checkpoints in a cloud.
///
/// Credentials, regions and endpoints come from the environment variables that
/// the services' own tools use (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectOptions {
    /// Bytes per part of a long read.
    pub read_part: usize,
    /// Bytes per part of a long upload. Services require at least 5 MiB.
    pub write_part: usize,
    /// Parallel parts of one read.
    pub reads: usize,
    /// Parallel parts of one upload; one more is held in memory.
    pub writes: usize,
    /// Retries of one request.
    pub retry: RetryPolicy,
    /// Limit for one request.
    pub timeout: Duration,
    /// Environment variables to override, by name.
    pub settings: BTreeMap<String, String>,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        Self {
            read_part: 8 << 20,
            write_part: 16 << 20,
            reads: 8,
            writes: 4,
            retry: RetryPolicy {
                max_retries: 8,
                initial_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(10),
                max_retry_after: Duration::MAX,
                max_elapsed: Duration::from_secs(180),
                min_speed: MinSpeed::default(),
            },
            timeout: Duration::from_secs(60),
            settings: BTreeMap::new(),
        }
    }
}

// By hand: values of settings may be secrets.
impl fmt::Debug for ObjectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectOptions")
            .field("read_part", &self.read_part)
            .field("write_part", &self.write_part)
            .field("reads", &self.reads)
            .field("writes", &self.writes)
            .field("retry", &self.retry)
            .field("timeout", &self.timeout)
            .field("settings", &self.settings.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_settings_are_never_printed() {
        let mut options = ObjectOptions::default();
        options.settings.insert("AWS_SECRET_ACCESS_KEY".to_owned(), "hidden".to_owned());
        let shown = format!("{options:?}");
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hidden"), "{shown}");
    }
}
