//! `weightloom diff`.

use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::checkpoint::{Comparison, Difference, compare};

use super::failure::Failure;
use super::located::open_checkpoint;
use super::output::{Output, counted, table};
use super::progress::Progress;
use super::table::shortened;

/// Characters of a name in the summary.
const MAX_NAME: usize = 64;

#[derive(Args)]
pub(super) struct DiffArgs {
    /// Checkpoint: file, folder, run, card, org/name or URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    first: String,

    /// Another checkpoint, in any format.
    #[arg(value_hint = ValueHint::AnyPath)]
    second: String,

    /// List every tensor that differs.
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Diff {
    identical: bool,
    #[serde(flatten)]
    comparison: Comparison,
}

pub(super) fn run(args: &DiffArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let open = |path: &str| open_checkpoint(registry, path, output).map_err(|failure| failure.about(path));
    let (first, second) = (open(&args.first)?, open(&args.second)?);
    let comparison = compare(&first, &second, &Progress::new(output))?;
    let diff = Diff { identical: comparison.is_identical(), comparison };
    output.show(&diff, if args.all { listing } else { summary })?;
    Ok(if diff.identical { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// How many tensors are identical, and how the others differ.
fn summary(diff: &Diff) -> String {
    let Comparison { only_first, only_second, both, other } = &diff.comparison;
    let (mut same, mut shapes, mut dtypes) = (0, 0, 0);
    let mut values = Vec::new();
    for (name, difference) in both {
        match difference {
            Difference::Identical => same += 1,
            Difference::Shape { .. } => shapes += 1,
            Difference::Values { different: 0, .. } => dtypes += 1,
            Difference::Values { max_abs, .. } => values.push((name, *max_abs)),
        }
    }
    if diff.identical {
        return format!("identical: {}", counted(same, "tensor"));
    }
    let all = both.len() + only_first.len() + only_second.len();
    let mut lines = vec![format!("{same} of {} are identical", counted(all, "tensor"))];
    let mut say = |count: usize, what: &str| {
        if count > 0 {
            lines.push(format!("  {count} {what}"));
        }
    };
    say(values.len(), "with other values");
    say(dtypes, "with another dtype, or another sign of zero, and the same values");
    say(shapes, "with another shape");
    say(only_first.len(), "only in the first");
    say(only_second.len(), "only in the second");
    say(other.len(), "other entries differ");
    if let Some((name, most)) = values.iter().max_by(|one, other| one.1.total_cmp(&other.1)) {
        lines.push(format!("largest difference: {most:.3e} in `{}`", shortened(name, MAX_NAME)));
    }
    lines.join("\n")
}

/// Every difference, and the summary.
fn listing(diff: &Diff) -> String {
    if diff.identical {
        return summary(diff);
    }
    let Comparison { only_first, only_second, both, other } = &diff.comparison;
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
    format!("{table}\n{}", summary(diff))
}
