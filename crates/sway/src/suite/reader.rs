//! Reading suites with your own probes and backends.

use weightloom_document::variables::Lookup;

use super::SuiteOverrides;
use crate::extensions::Extensions;

/// Reads suites that may name your own probes and backends.
///
/// [`SuiteReader::read`] and [`SuiteReader::read_file`] return a
/// [`Suite`](super::Suite), which keeps the kinds of probes that it was read with;
/// [`Suite::read`](super::Suite::read) does the same with the built-in ones.
pub struct SuiteReader<'a> {
    /// The kinds of probes and backends that a suite may name.
    pub extensions: &'a Extensions,
    /// Settings that override the file.
    pub overrides: SuiteOverrides,
    /// Looks up the home folder, for paths that start with `~`.
    pub variable: Lookup<'a>,
}

impl<'a> SuiteReader<'a> {
    /// A reader without overrides.
    pub fn new(extensions: &'a Extensions, variable: Lookup<'a>) -> Self {
        Self { extensions, overrides: SuiteOverrides::default(), variable }
    }
}
