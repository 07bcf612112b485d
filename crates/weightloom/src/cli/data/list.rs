//! `weightloom data list`: the datasets with cards.

use std::process::ExitCode;

use serde::Serialize;
use weightloom::Registry;
use weightloom::errors::Hint;
use weightloom::hub::cards::{CardError, DatasetCard};

use crate::cli::failure::Failure;
use crate::cli::hub::HubArgs;
use crate::cli::output::{Output, counted, table};

#[derive(Serialize)]
struct Listed {
    datasets: Vec<Row>,
    /// Invalid cards.
    broken: Vec<Broken>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    paths: Vec<String>,
    eval_paths: Vec<String>,
    format: Option<String>,
    separator: Option<String>,
    chat_template: Option<String>,
    license: Option<String>,
    description: Option<String>,
    source: String,
}

#[derive(Serialize)]
struct Broken {
    name: String,
    problem: String,
    hint: Option<String>,
}

impl Row {
    fn new(name: &str, dataset: DatasetCard) -> Self {
        let DatasetCard { card, paths, eval_paths, format, separator, chat_template, .. } = dataset;
        Self {
            name: name.to_owned(),
            paths,
            eval_paths,
            format,
            separator,
            chat_template,
            license: card.license().map(str::to_owned),
            description: card.description().map(str::to_owned),
            source: card.lineage().first().map_or_else(String::new, |origin| origin.source().to_string()),
        }
    }
}

impl Broken {
    fn new(name: &str, error: &CardError) -> Self {
        Self { name: name.to_owned(), problem: error.to_string(), hint: error.hint() }
    }
}

pub(super) fn run(args: &HubArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let hub = args.hub(registry)?;
    let mut listed = Listed { datasets: Vec::new(), broken: Vec::new() };
    for (name, dataset) in hub.cards.datasets() {
        match dataset {
            Ok(dataset) => listed.datasets.push(Row::new(name, dataset)),
            Err(error) => listed.broken.push(Broken::new(name, &error)),
        }
    }
    output.show(&listed, |listed| {
        let mut rows = table(&["dataset", "format", "paths", "evaluation", "license", "from"], &[]);
        for dataset in &listed.datasets {
            let shown = |text: &Option<String>| text.clone().unwrap_or_default();
            rows.add_row([
                dataset.name.clone(),
                shown(&dataset.format),
                dataset.paths.join(", "),
                dataset.eval_paths.join(", "),
                shown(&dataset.license),
                dataset.source.clone(),
            ]);
        }
        let mut text = format!("{rows}\n{}", counted(listed.datasets.len(), "dataset"));
        for broken in &listed.broken {
            text += &format!("\nbroken: {}", broken.problem);
        }
        text
    })
}
