//! `weightloom diff`.

use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::checkpoint::{Comparison, Difference, Source, compare};

use super::failure::Failure;
use super::output::{Output, counted, table};
use super::progress::Progress;

#[derive(Args)]
pub(super) struct DiffArgs {
    /// Checkpoint: file, folder, or URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    first: String,

    /// Another checkpoint, in any format.
    #[arg(value_hint = ValueHint::AnyPath)]
    second: String,
}

#[derive(Serialize)]
struct Diff {
    identical: bool,
    #[serde(flatten)]
    comparison: Comparison,
}

pub(super) fn run(args: &DiffArgs, output: Output) -> Result<ExitCode, Failure> {
    let open = |path: &str| Source::open_url(path).map_err(|error| Failure::from(error).about(path));
    let (first, second) = (open(&args.first)?, open(&args.second)?);
    let comparison = compare(&first, &second, &Progress::new(output))?;
    let diff = Diff { identical: comparison.is_identical(), comparison };
    output.show(&diff, text)?;
    Ok(if diff.identical { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn text(diff: &Diff) -> String {
    let Comparison { only_first, only_second, both, other } = &diff.comparison;
    let same = both.values().filter(|difference| **difference == Difference::Identical).count();
    if diff.identical {
        return format!("identical: {}", counted(same, "tensor"));
    }
    let mut table = table(&["tensor", "difference", "elements", "max abs", "max rel"], &[2, 3, 4]);
    for name in only_first {
        table.add_row([name.as_str(), "only in the first", "", "", ""]);
    }
    for name in only_second {
        table.add_row([name.as_str(), "only in the second", "", "", ""]);
    }
    for name in other {
        table.add_row([name.as_str(), "bytes", "", "", ""]);
    }
    for (name, difference) in both {
        match difference {
            Difference::Identical => {}
            Difference::Shape { first, second } => {
                table.add_row([name.as_str(), &format!("shape {first} and {second}"), "", "", ""]);
            }
            Difference::Values { first, second, different, max_abs, max_rel } => {
                let what = match (first == second, *different) {
                    (true, _) => "values".to_owned(),
                    (false, 0) => format!("{first} and {second}, same values"),
                    (false, _) => format!("{first} and {second}"),
                };
                let number = |x: f64| format!("{x:.3e}");
                let row = [name.clone(), what, different.to_string(), number(*max_abs), number(*max_rel)];
                table.add_row(row);
            }
        }
    }
    format!("{table}\n{same} of {} tensors are identical", both.len() + only_first.len() + only_second.len())
}
