//! Runs benchmarks and writes the benchmarks page.

#![allow(clippy::print_stderr, reason = "a command-line program")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use weightloom_bench::{JSON_FOLDER, Results, page};

/// Run benchmarks and write the benchmarks page.
#[derive(Parser)]
struct Args {
    /// Benchmarks to run first, such as `tensor`; all saved rows are in the page.
    benches: Vec<String>,
    /// Folder of the saved rows.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench"))]
    rows: PathBuf,
    /// The page to write.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md"))]
    out: PathBuf,
    /// Features of the benchmarks; `mpi_gang` needs `mpi`.
    #[arg(long)]
    features: Option<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    std::fs::create_dir_all(&args.rows)
        .map_err(|error| format!("cannot create `{}`: {error}", args.rows.display()))?;
    let rows = args.rows.canonicalize().map_err(|error| error.to_string())?;
    for bench in &args.benches {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["bench", "-p", "weightloom-bench", "--bench", bench]).env(JSON_FOLDER, &rows);
        if let Some(features) = &args.features {
            command.args(["--features", features]);
        }
        let status = command.status().map_err(|error| format!("cannot start cargo: {error}"))?;
        if !status.success() {
            return Err(format!("the benchmark `{bench}` failed"));
        }
    }
    let results = read_rows(&rows)?;
    if results.is_empty() {
        return Err(format!("no rows in `{}`; name benchmarks to run", rows.display()));
    }
    std::fs::write(&args.out, page::render(&results))
        .map_err(|error| format!("cannot write `{}`: {error}", args.out.display()))?;
    eprintln!("{} benchmarks in {}", results.len(), args.out.display());
    Ok(())
}

/// The saved rows, by name of the benchmark.
fn read_rows(folder: &Path) -> Result<Vec<Results>, String> {
    let failed = |error: std::io::Error| format!("cannot read `{}`: {error}", folder.display());
    let mut results: Vec<Results> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read_to_string(&path).map_err(failed)?;
            let rows = serde_json::from_str(&text)
                .map_err(|error| format!("cannot parse `{}`: {error}", path.display()))?;
            results.push(rows);
        }
    }
    results.sort_by(|a, b| a.bench.cmp(&b.bench));
    Ok(results)
}
