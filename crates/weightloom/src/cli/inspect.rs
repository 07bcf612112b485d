//! `weightloom inspect`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::checkpoint::{TensorEntry, TensorStats, stats};

use super::failure::Failure;
use super::located::open_checkpoint;
use super::output::{Output, bytes, counted};
use super::progress::Progress;

#[derive(Args)]
pub(super) struct InspectArgs {
    /// Checkpoint: file, folder, run, card, org/name or URL (s3://, gs://, az://, http://).
    #[arg(value_hint = ValueHint::AnyPath)]
    path: String,

    /// Compute minimum, maximum, mean and the number of NaN and infinite elements.
    #[arg(long)]
    stats: bool,

    /// List every tensor instead of grouping similar layers.
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Inspected {
    format: String,
    files: Vec<File>,
    parameters: u64,
    bytes: u64,
    stored_bytes: u64,
    metadata: BTreeMap<String, String>,
    tensors: BTreeMap<String, Tensor>,
    other: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct File {
    name: String,
    length: u64,
}

#[derive(Serialize)]
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
    stored_bytes: u64,
    /// The number of stored parts.
    tiles: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    quantisation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<TensorStats>,
}

pub(super) fn run(args: &InspectArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let source = open_checkpoint(registry, &args.path, output)?;
    let mut measured = match args.stats {
        true => stats(&source, &Progress::new(output))?,
        false => BTreeMap::new(),
    };
    let index = &source.index;
    let tensors: BTreeMap<String, Tensor> = index
        .tensors()
        .iter()
        .map(|(name, entry)| (name.clone(), described(entry, measured.remove(name))))
        .collect();
    let inspected = Inspected {
        format: index.format().to_string(),
        files: index
            .files()
            .iter()
            .map(|file| File { name: file.name.clone(), length: file.length })
            .collect(),
        parameters: index.tensors().values().map(|entry| entry.shape.volume() as u64).sum(),
        bytes: index.bytes(),
        stored_bytes: index.tensors().values().map(TensorEntry::stored_bytes).sum(),
        metadata: index.metadata().clone(),
        tensors,
        other: index.blobs().iter().map(|(name, blob)| (name.clone(), blob.length)).collect(),
    };
    output.show(&inspected, |inspected| text(inspected, if args.all { Alike::Each } else { Alike::Once }))
}

fn described(entry: &TensorEntry, stats: Option<TensorStats>) -> Tensor {
    Tensor {
        dtype: entry.dtype.to_string(),
        shape: entry.shape.to_vec(),
        bytes: entry.bytes(),
        stored_bytes: entry.stored_bytes(),
        tiles: entry.tiles.len(),
        quantisation: entry.tiles.first().and_then(|tile| tile.codec.name()),
        stats,
    }
}

/// How layers that are alike are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alike {
    Each,
    Once,
}

fn text(inspected: &Inspected, alike: Alike) -> String {
    let mut out = String::new();
    let Inspected { format, files, parameters, bytes: total, stored_bytes, .. } = inspected;
    let stored =
        if stored_bytes == total { String::new() } else { format!(", {} stored", bytes(*stored_bytes)) };
    let _ = writeln!(
        out,
        "{format}: {}, {} parameters, {}{stored}, {}",
        counted(inspected.tensors.len(), "tensor"),
        grouped(*parameters),
        bytes(*total),
        counted(files.len(), "file"),
    );
    let mut root = Node::default();
    for (name, tensor) in &inspected.tensors {
        root.insert(name, tensor);
    }
    root.print(&mut out, "", alike);
    if !inspected.other.is_empty() {
        let _ = writeln!(out, "other:");
        for (name, length) in &inspected.other {
            let _ = writeln!(out, "  {name}  {}", bytes(*length));
        }
    }
    if !inspected.metadata.is_empty() {
        let _ = writeln!(out, "metadata:");
        for (name, value) in &inspected.metadata {
            let line = value.lines().next().unwrap_or_default();
            let short: String = line.chars().take(96).collect();
            let more = if short.len() < value.len() { " …" } else { "" };
            let _ = writeln!(out, "  {name}: {short}{more}");
        }
    }
    out.trim_end().to_owned()
}

/// A number in groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A part of the names, and what is below it.
#[derive(Default)]
struct Node<'a> {
    children: BTreeMap<Part, Node<'a>>,
    tensor: Option<&'a Tensor>,
}

/// A part of a name. Numbers come in their own order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Name(String),
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl<'a> Node<'a> {
    fn insert(&mut self, name: &str, tensor: &'a Tensor) {
        let mut node = self;
        for part in name.split('.') {
            // `007` is a name, not a number, or it would not come back.
            let number = part.parse().ok().filter(|number: &u64| number.to_string() == part);
            let part = number.map_or_else(|| Part::Name(part.to_owned()), Part::Number);
            node = node.children.entry(part).or_default();
        }
        node.tensor = Some(tensor);
    }

    /// All that is below, without values: equal for layers that are alike.
    fn form(&self) -> String {
        let own = self.tensor.map(|tensor| {
            format!("{} {:?} {} {:?}", tensor.dtype, tensor.shape, tensor.tiles, tensor.quantisation)
        });
        let children = self.children.iter().map(|(part, child)| format!("{part}({})", child.form()));
        format!("{own:?}{}", children.collect::<String>())
    }

    fn has_stats(&self) -> bool {
        self.tensor.is_some_and(|tensor| tensor.stats.is_some())
            || self.children.values().any(Self::has_stats)
    }

    fn print(&self, out: &mut String, indent: &str, alike: Alike) {
        let children: Vec<(&Part, &Node<'_>)> = self.children.iter().collect();
        let mut at = 0;
        while at < children.len() {
            let (part, child) = children[at];
            let mut end = at + 1;
            let numbered = matches!(part, Part::Number(_)) && alike == Alike::Once && !child.has_stats();
            if numbered {
                let form = child.form();
                while end < children.len()
                    && matches!(children[end].0, Part::Number(_))
                    && children[end].1.form() == form
                {
                    end += 1;
                }
            }
            let label = match end - at {
                1 => part.to_string(),
                count => format!("{part} … {} (× {count})", children[end - 1].0),
            };
            child.print_as(out, indent, label, alike);
            at = end;
        }
    }

    fn print_as(&self, out: &mut String, indent: &str, mut label: String, alike: Alike) {
        // A chain without branches is one line.
        let mut node = self;
        while let (None, 1, Some((part, child))) =
            (node.tensor, node.children.len(), node.children.iter().next())
        {
            if matches!(part, Part::Number(_)) || label.ends_with(')') {
                break;
            }
            let _ = write!(label, ".{part}");
            node = child;
        }
        match node.tensor {
            None => {
                let _ = writeln!(out, "{indent}{label}");
            }
            Some(tensor) => {
                let _ = write!(
                    out,
                    "{indent}{label}  {} {}  {}",
                    tensor.dtype,
                    shape(&tensor.shape),
                    bytes(tensor.bytes)
                );
                if let Some(quantisation) = &tensor.quantisation {
                    let _ = write!(out, "  {quantisation}, {} stored", bytes(tensor.stored_bytes));
                }
                if tensor.tiles != 1 {
                    let _ = write!(out, "  {} tiles", tensor.tiles);
                }
                if let Some(stats) = &tensor.stats {
                    let number = |x: Option<f64>| x.map_or_else(|| "–".to_owned(), |x| format!("{x:.4e}"));
                    let _ = write!(
                        out,
                        "  min {} max {} mean {}",
                        number(stats.min),
                        number(stats.max),
                        number(stats.mean)
                    );
                    if stats.nan > 0 {
                        let _ = write!(out, "  {} NaN", grouped(stats.nan));
                    }
                    if stats.infinite > 0 {
                        let _ = write!(out, "  {} infinite", grouped(stats.infinite));
                    }
                }
                out.push('\n');
            }
        }
        node.print(out, &format!("{indent}  "), alike);
    }
}

fn shape(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}
