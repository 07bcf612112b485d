//! How to talk to a service.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How to talk to a service. The defaults suit checkpoints in a cloud.
///
/// Credentials, regions and endpoints come from the environment variables that
/// the services' own tools use (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectOptions {
    /// Longer reads are cut into pieces of this many bytes, which travel at
    /// the same time.
    pub read_part: usize,
    /// Longer files are written in pieces of this many bytes. Services want 5
    /// MiB or more.
    pub write_part: usize,
    /// How many pieces of one read travel at the same time.
    pub reads: usize,
    /// How many pieces of one file are being written at the same time; as many
    /// and one more are in memory.
    pub writes: usize,
    /// How often one request is repeated.
    pub retries: u32,
    /// How long after a request first failed it is still repeated.
    pub retry_for: Duration,
    /// The wait before the first repetition; it doubles from then on.
    pub first_wait: Duration,
    /// The longest wait between repetitions.
    pub longest_wait: Duration,
    /// How long one request may take.
    pub timeout: Duration,
    /// Settings that go before the environment: its variables, by name.
    pub settings: BTreeMap<String, String>,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        Self {
            read_part: 8 << 20,
            write_part: 16 << 20,
            reads: 8,
            writes: 4,
            retries: 8,
            retry_for: Duration::from_secs(180),
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            settings: BTreeMap::new(),
        }
    }
}

// Settings may be secrets: their names are shown, what they are is not.
impl fmt::Debug for ObjectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectOptions")
            .field("read_part", &self.read_part)
            .field("write_part", &self.write_part)
            .field("reads", &self.reads)
            .field("writes", &self.writes)
            .field("retries", &self.retries)
            .field("retry_for", &self.retry_for)
            .field("timeout", &self.timeout)
            .field("settings", &self.settings.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_settings_are_is_not_shown() {
        let mut options = ObjectOptions::default();
        options.settings.insert("AWS_SECRET_ACCESS_KEY".to_owned(), "hidden".to_owned());
        let shown = format!("{options:?}");
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hidden"), "{shown}");
    }
}
