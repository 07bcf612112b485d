//! Suites and reports of `sway`, which are files from anybody.

use std::path::Path;

use weightloom_sway::{PreparedSuite, Report, Suite};

/// A suite, with the probes that it names.
pub fn suite(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    // In a folder that does not exist, so that no file of this machine is read.
    if let Ok(suite) = Suite::read(text, Path::new("/nowhere/sway.yaml"), &|_| None) {
        let _ = PreparedSuite::new(suite, None);
    }
}

/// A report, rendered in every format.
pub fn report(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(report) = Report::from_json(text, "report.json") {
        let _ = (report.to_json(), report.to_markdown(), report.to_junit(), report.to_html());
        let _ = report.sentence();
    }
}
