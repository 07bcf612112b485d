//! `weightloom models`.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueHint};
use serde::Serialize;
use serde_json::{Map, Value};
use weightloom::Registry;
use weightloom::errors::Hint;
use weightloom::hub::cards::{Card, DatasetCard, Field, ModelAddress, Value as CardValue};
use weightloom::hub::{Hub, ResolvedModel, SharedFamily, YamlFamily, arch_config};
use weightloom::nn::Parallel;

use super::failure::Failure;
use super::hub::HubArgs;
use super::output::{Output, bytes, counted, table};

#[derive(Subcommand)]
pub(super) enum ModelsCommand {
    /// List models with cards.
    #[command(after_help = "Examples:
  weightloom models list
  weightloom models list --family qwen3
  weightloom models list --json | jq -r '.models[].name'")]
    List(ListArgs),

    /// Show the card, configuration, size and sharding of a model.
    #[command(after_help = "Examples:
  weightloom models show llama3_2_1b
  weightloom models show ./my-model
  weightloom models show smollm2_135m_instruct --json | jq .config")]
    Show(ShowArgs),

    /// List the presets of each family.
    #[command(after_help = "Examples:
  weightloom models archs
  weightloom models archs --family llama")]
    Archs(ListArgs),

    /// Check all cards and described models.
    ///
    /// Exits with 1 if one is invalid.
    #[command(after_help = "Examples:
  weightloom models check
  weightloom models check --asset-dir my-cards")]
    Check(HubArgs),
}

#[derive(Args)]
pub(super) struct ListArgs {
    /// List one family only.
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other)]
    family: Option<String>,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Args)]
pub(super) struct ShowArgs {
    /// Card, folder, file, or URL such as hf://org/name.
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    #[command(flatten)]
    hub: HubArgs,
}

pub(super) fn run(command: &ModelsCommand, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    match command {
        ModelsCommand::List(args) => list(args, registry, output),
        ModelsCommand::Show(args) => show(args, registry, output),
        ModelsCommand::Archs(args) => archs(args, registry, output),
        ModelsCommand::Check(args) => check(args, registry, output),
    }
}

#[derive(Serialize)]
struct Listed {
    models: Vec<Row>,
    /// Invalid cards and files.
    broken: Vec<Broken>,
    overridden: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    family: Option<String>,
    arch: Option<String>,
    checkpoint: Option<String>,
    /// The model that the checkpoint is an adapter of.
    #[serde(skip_serializing_if = "Option::is_none")]
    base_model: Option<String>,
    license: Option<String>,
    /// Where to request access, if the model is gated.
    url: Option<String>,
    source: String,
    description: Option<String>,
}

#[derive(Serialize)]
struct Broken {
    what: String,
    problem: String,
    hint: Option<String>,
}

/// The text of a card's field.
fn text_of(card: &Card, field: &str) -> Option<String> {
    card.field(field).and_then(|field| field.value.as_text()).map(str::to_owned)
}

fn row(name: &str, card: &Card) -> Row {
    let source = card.lineage().first().map_or_else(String::new, |origin| origin.source().to_string());
    Row {
        name: name.to_owned(),
        family: text_of(card, "model_family"),
        arch: text_of(card, "model_arch"),
        checkpoint: text_of(card, "checkpoint"),
        base_model: text_of(card, "base_model"),
        license: text_of(card, "license"),
        url: text_of(card, "url"),
        source,
        description: text_of(card, "description"),
    }
}

/// Families and model specs of the program that no card names. Training configs name
/// them as `model.name`.
fn without_cards(registry: &Registry, listed: &[Row], wanted: Option<&str>) -> Vec<Row> {
    let row = |name: &str, family: Option<String>| Row {
        name: name.to_owned(),
        family,
        arch: None,
        checkpoint: None,
        base_model: None,
        license: None,
        url: None,
        source: "program".to_owned(),
        description: None,
    };
    let families = registry.families().iter().map(|family| family.name());
    let has_card = |name: &str| listed.iter().any(|row| row.family.as_deref() == Some(name));
    let families = families.filter(|name| !has_card(name)).map(|name| row(name, Some(name.to_owned())));
    let specs = registry.training().specs.registered();
    let specs = specs.map(|(name, spec)| row(name, spec.family().map(|family| family.name().to_owned())));
    let is_wanted = |row: &Row| wanted.is_none_or(|wanted| row.family.as_deref() == Some(wanted));
    families.chain(specs).filter(is_wanted).collect()
}

/// Checks that the family exists.
fn check_family(hub: &Hub, family: Option<&String>) -> Result<(), Failure> {
    family.map_or(Ok(()), |family| hub.family(family).map(|_| ()).map_err(Failure::from))
}

fn list(args: &ListArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let hub = args.hub.hub(registry)?;
    check_family(&hub, args.family.as_ref())?;
    let mut listed = Listed { models: Vec::new(), broken: Vec::new(), overridden: Vec::new() };
    for (name, card) in hub.cards.cards() {
        match card {
            Ok(card) if card.model_family().is_none() => {}
            Ok(card) if args.family.is_some() && card.model_family() != args.family.as_deref() => {}
            Ok(card) => listed.models.push(row(name, &card)),
            Err(error) => listed.broken.push(Broken {
                what: name.to_owned(),
                problem: error.to_string(),
                hint: error.hint(),
            }),
        }
    }
    listed.models.extend(without_cards(registry, &listed.models, args.family.as_deref()));
    for problem in hub.cards.problems() {
        let hint = problem.hint();
        listed.broken.push(Broken { what: "file".to_owned(), problem: problem.to_string(), hint });
    }
    listed.overridden = hub
        .cards
        .overrides()
        .iter()
        .map(|found| {
            let losers: Vec<String> = found.losers.iter().map(ToString::to_string).collect();
            format!("`{}` of {} is overridden by {}", found.name, losers.join(", "), found.winner)
        })
        .collect();
    output.show(&listed, |listed| {
        let mut rows = table(&["model", "family", "arch", "checkpoint", "license", "from"], &[]);
        for model in &listed.models {
            let shown = |text: &Option<String>| text.clone().unwrap_or_default();
            let license = match &model.url {
                Some(_) => format!("{} (gated)", shown(&model.license)),
                None => shown(&model.license),
            };
            let family = shown(&model.family);
            let checkpoint = match &model.base_model {
                Some(base) => format!("{}, adapter of {base}", shown(&model.checkpoint)),
                None => shown(&model.checkpoint),
            };
            rows.add_row([
                model.name.clone(),
                family,
                shown(&model.arch),
                checkpoint,
                license,
                model.source.clone(),
            ]);
        }
        let mut text = format!("{rows}\n{}", counted(listed.models.len(), "model"));
        for line in &listed.overridden {
            text += &format!("\noverridden: {line}");
        }
        for broken in &listed.broken {
            text += &format!("\nbroken: {}", broken.problem);
        }
        text
    })
}

#[derive(Serialize)]
struct Archs {
    families: Vec<FamilyArchs>,
}

#[derive(Serialize)]
struct FamilyArchs {
    family: String,
    archs: Vec<Arch>,
}

#[derive(Serialize)]
struct Arch {
    name: String,
    parameters: u64,
    layers: usize,
    hidden: usize,
    /// `None` for a model without attention.
    heads: Option<usize>,
    kv_heads: Option<usize>,
    vocabulary: usize,
    positions: Option<usize>,
}

fn number(number: Option<usize>) -> String {
    number.map_or_else(|| "–".to_owned(), |number| number.to_string())
}

fn archs(args: &ListArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let hub = args.hub.hub(registry)?;
    check_family(&hub, args.family.as_ref())?;
    let mut families: Vec<_> = hub.families.iter().cloned().collect();
    for name in YamlFamily::names(&hub.model_path) {
        families.extend(hub.family(&name).ok());
    }
    let mut all = Archs { families: Vec::new() };
    for family in families {
        if args.family.as_ref().is_some_and(|wanted| wanted != family.name()) {
            continue;
        }
        let arch = |name: String| {
            let config = arch_config(&*family, &name).ok()?;
            let definition = family.definition(&config).ok()?;
            Some(Arch {
                parameters: definition.parameter_count(),
                layers: definition.layers(),
                hidden: definition.hidden(),
                heads: definition.heads(),
                kv_heads: definition.kv_heads(),
                vocabulary: definition.vocabulary(),
                positions: definition.context_length(),
                name,
            })
        };
        let mut archs: Vec<Arch> = family.archs().into_iter().filter_map(arch).collect();
        archs.sort_by_key(|arch| arch.parameters);
        all.families.push(FamilyArchs { family: family.name().to_owned(), archs });
    }
    output.show(&all, |all| {
        let heads =
            ["family", "arch", "parameters", "layers", "hidden", "heads", "kv", "vocabulary", "positions"];
        let mut rows = table(&heads, &[2, 3, 4, 5, 6, 7, 8]);
        for family in &all.families {
            for arch in &family.archs {
                rows.add_row([
                    family.family.clone(),
                    arch.name.clone(),
                    short(arch.parameters),
                    arch.layers.to_string(),
                    arch.hidden.to_string(),
                    number(arch.heads),
                    number(arch.kv_heads),
                    arch.vocabulary.to_string(),
                    number(arch.positions),
                ]);
            }
        }
        rows.to_string()
    })
}

/// A short form of a large count.
pub(super) fn short(count: u64) -> String {
    let value = count as f64;
    match count {
        0..1_000_000 => count.to_string(),
        1_000_000..1_000_000_000 => format!("{:.0} M", value / 1e6),
        1_000_000_000..100_000_000_000 => format!("{:.2} B", value / 1e9),
        _ => format!("{:.0} B", value / 1e9),
    }
}

#[derive(Serialize)]
struct Shown {
    name: String,
    family: Option<String>,
    fields: Vec<ShownField>,
    /// Base cards, nearest first.
    lineage: Vec<String>,
    /// Environments in the order of lookup, if there is a card.
    environments: Vec<String>,
    /// The base model of an adapter, whose configuration is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    base_model: Option<String>,
    config: Option<Map<String, Value>>,
    /// The architecture; null if the model does not say.
    decoder: Value,
    parameters: Option<u64>,
    /// Bytes of all parameters by dtype.
    bytes: Option<Map<String, Value>>,
    /// The dims that tensor parallelism shards, by pattern.
    sharding: Option<Parallel>,
    /// Why the configuration is unknown.
    unknown: Option<String>,
}

#[derive(Serialize)]
struct ShownField {
    field: String,
    value: Value,
    card: String,
    /// The environment that the card is for, if any.
    environment: Option<String>,
    source: String,
    file: String,
    line: usize,
}

/// Lists a field; of a config, each key, which may come from another card.
fn list_field(name: &str, field: &Field, fields: &mut Vec<ShownField>) {
    match &field.value {
        CardValue::Map(keys) if !keys.is_empty() => {
            keys.iter().for_each(|(key, field)| list_field(&format!("{name}.{key}"), field, fields));
        }
        value => {
            let origin = &field.origin;
            fields.push(ShownField {
                field: name.to_owned(),
                value: value.to_json(),
                card: origin.card().to_owned(),
                environment: origin.environment().map(str::to_owned),
                source: origin.source().to_string(),
                file: origin.file().display().to_string(),
                line: origin.line(),
            });
        }
    }
}

/// Family and configuration, if a card or local files have them.
fn known_config(hub: &Hub, found: ResolvedModel) -> Result<Option<KnownConfig>, Failure> {
    match (found.known, found.address) {
        (Some(known), _) => Ok(Some(known)),
        (None, Some(ModelAddress::Path(_))) => {
            let model = hub.open(&found.name, &())?;
            Ok(Some((model.family().clone(), model.config().clone())))
        }
        (None, _) => Ok(None),
    }
}

type KnownConfig = (SharedFamily, Map<String, Value>);

fn show(args: &ShowArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let hub = args.hub.hub(registry)?;
    let found = hub.resolve(&args.name)?;
    let mut shown = Shown {
        name: args.name.clone(),
        family: found.card.as_ref().and_then(Card::model_family).map(str::to_owned),
        fields: Vec::new(),
        lineage: Vec::new(),
        environments: Vec::new(),
        base_model: None,
        config: None,
        decoder: Value::Null,
        parameters: None,
        bytes: None,
        sharding: None,
        unknown: None,
    };
    if let Some(card) = &found.card {
        card.fields().for_each(|(name, field)| list_field(name, field, &mut shown.fields));
        shown.environments = hub.cards.environments().to_vec();
        shown.lineage = card.lineage().iter().map(|origin| origin.card().to_owned()).collect();
    }
    let is_near = matches!(found.address, Some(ModelAddress::Path(_)));
    let is_dataset = found.card.as_ref().is_some_and(|card| card.is_dataset() && shown.family.is_none());
    let base = match found.card.as_ref().and_then(Card::base_model) {
        Some(_) if is_near => Some(hub.locate(&args.name, &())?.model),
        _ => None,
    };
    let known = match &base {
        Some(base) => known_config(&hub, hub.resolve(base)?)?,
        None => known_config(&hub, found)?,
    };
    shown.base_model = base;
    if known.is_none() && !is_dataset {
        shown.unknown = Some("unknown configuration: run `weightloom fetch` to download it".to_owned());
    }
    if let Some((family, config)) = known {
        let about = |problem| {
            Failure::from(weightloom::hub::HubError::Config {
                about: format!("model `{}`", args.name),
                problem,
            })
        };
        let definition = family.definition(&config).map_err(about)?;
        let count = definition.parameter_count();
        let sizes = [("f32", 4), ("bf16", 2), ("f8", 1)];
        shown.bytes = Some(
            sizes.into_iter().map(|(name, size)| (name.to_owned(), Value::from(count * size))).collect(),
        );
        shown.family = Some(family.name().to_owned());
        shown.parameters = Some(count);
        shown.sharding = Some(family.parallel().restricted_to(&definition.all_parameters()));
        shown.decoder = definition.to_json();
        shown.config = Some(config);
    }
    output.show(&shown, show_text)
}

fn show_text(shown: &Shown) -> String {
    let mut text = shown.name.clone();
    if let Some(family) = &shown.family {
        text += &format!(" ({family})");
    }
    if shown.lineage.len() > 1 {
        text += &format!("\nbased on {}", shown.lineage[1..].join(", "));
    }
    if let Some(base) = &shown.base_model {
        text += &format!("\nadapter of {base}");
    }
    if shown.environments.len() > 1 {
        text += &format!("\nenvironments, the first with a card first: {}", shown.environments.join(", "));
    }
    if !shown.fields.is_empty() {
        let with_environments = shown.fields.iter().any(|field| field.environment.is_some());
        let mut columns = vec!["field", "value", "from card", "in"];
        if with_environments {
            columns.insert(3, "environment");
        }
        let mut rows = table(&columns, &[]);
        for field in &shown.fields {
            let value = field.value.as_str().map_or_else(|| field.value.to_string(), str::to_owned);
            let place = format!("{} {}:{}", field.source, field.file, field.line);
            let mut row = vec![field.field.clone(), value, field.card.clone(), place];
            if with_environments {
                row[2] = field.card.split('@').next().unwrap_or_default().to_owned();
                row.insert(3, field.environment.clone().unwrap_or_default());
            }
            rows.add_row(row);
        }
        text += &format!("\n{rows}");
    }
    if let Some(config) = &shown.config {
        let mut rows = table(&["configuration", "value"], &[]);
        for (key, value) in config {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            rows.add_row([key.clone(), value]);
        }
        text += &format!("\n{rows}");
    }
    if let (Some(count), Some(sizes)) = (shown.parameters, &shown.bytes) {
        let sizes: Vec<String> = sizes
            .iter()
            .map(|(dtype, size)| format!("{} in {dtype}", bytes(size.as_u64().unwrap_or(0))))
            .collect();
        text += &format!("\n{} parameters: {}", short(count), sizes.join(", "));
    }
    if let Some(sharding) = &shown.sharding {
        text += "\ntensor parallelism shards";
        for (pattern, dim) in &sharding.dims {
            text += &format!("\n  dim {dim} of {pattern}");
        }
    }
    if let Some(unknown) = &shown.unknown {
        text += &format!("\n{unknown}");
    }
    text
}

#[derive(Serialize)]
struct Checked {
    cards: usize,
    described: usize,
    broken: Vec<Broken>,
}

fn check(args: &HubArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let hub = args.hub(registry)?;
    let mut checked = Checked { cards: 0, described: 0, broken: Vec::new() };
    for (name, card) in hub.cards.cards() {
        checked.cards += 1;
        let problem = match card {
            Err(error) => Some((error.to_string(), error.hint())),
            Ok(card) => check_card(&hub, name, card),
        };
        if let Some((problem, hint)) = problem {
            checked.broken.push(Broken { what: name.to_owned(), problem, hint });
        }
    }
    for problem in hub.cards.problems() {
        checked.broken.push(Broken {
            what: "file".to_owned(),
            hint: problem.hint(),
            problem: problem.to_string(),
        });
    }
    for name in YamlFamily::names(&hub.model_path) {
        checked.described += 1;
        if let Err(error) = YamlFamily::find(&name, &hub.model_path) {
            checked.broken.push(Broken { what: name, problem: error.to_string(), hint: error.hint() });
        }
    }
    output.show(&checked, |checked| {
        let mut lines = vec![format!(
            "{} and {} checked, {} broken",
            counted(checked.cards, "card"),
            counted(checked.described, "described model"),
            checked.broken.len()
        )];
        for broken in &checked.broken {
            lines.push(format!("{}: {}", broken.what, broken.problem));
            lines.extend(broken.hint.iter().map(|hint| format!("  hint: {hint}")));
        }
        lines.join("\n")
    })?;
    Ok(if checked.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The problem with a card, its family, arch or configuration, if any.
fn check_card(hub: &Hub, name: &str, card: Card) -> Option<(String, Option<String>)> {
    if card.is_dataset()
        && let Err(error) = DatasetCard::read(card.clone())
    {
        return Some((error.to_string(), error.hint()));
    }
    let found = match hub.resolve_card(name, card) {
        Ok(found) => found,
        Err(error) => return Some((error.to_string(), error.hint())),
    };
    let (family, config) = found.known?;
    family.definition(&config).err().map(|error| (format!("card `{name}`: {error}"), error.hint()))
}
