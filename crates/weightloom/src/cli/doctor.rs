//! `weightloom doctor`.

mod folders;
mod hardware;
mod mpi;

use std::process::ExitCode;

use serde::Serialize;

use weightloom::App;

use super::failure::Failure;
use super::output::{Output, table};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Not found, but only some features need it.
    Missing,
    /// Broken, and Weightloom needs it.
    Failed,
}

/// A check.
#[derive(Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    found: String,
    /// How to fix it.
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, found: found.into(), fix: None }
    }

    fn missing(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status: Status::Missing, found: found.into(), fix: Some(fix.into()) }
    }

    fn failed(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status: Status::Failed, found: found.into(), fix: Some(fix.into()) }
    }
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    checks: Vec<Check>,
}

pub(super) fn run(app: &App, output: Output) -> Result<ExitCode, Failure> {
    let mut checks = vec![
        Check::ok("version", format!("{} {}", app.program(), app.program_version())),
        Check::ok("platform", format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)),
    ];
    checks.extend(hardware::checks());
    checks.extend(mpi::checks());
    checks.extend(folders::checks());
    let failed = checks.iter().any(|check| check.status == Status::Failed);
    let report = Report { version: env!("CARGO_PKG_VERSION"), checks };
    output.show(&report, text)?;
    Ok(ExitCode::from(u8::from(failed)))
}

fn text(report: &Report) -> String {
    let mut table = table(&["", "what", "found"], &[]);
    for check in &report.checks {
        let mark = match check.status {
            Status::Ok => "ok",
            Status::Missing => "-",
            Status::Failed => "FAILED",
        };
        table.add_row([mark, check.name, &check.found]);
    }
    let fixes: Vec<String> = report
        .checks
        .iter()
        .filter_map(|check| Some(format!("  {}: {}", check.name, check.fix.as_ref()?)))
        .collect();
    match fixes.is_empty() {
        true => table.to_string(),
        false => format!("{table}\nTo fix:\n{}", fixes.join("\n")),
    }
}
