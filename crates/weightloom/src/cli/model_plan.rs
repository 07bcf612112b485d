//! `weightloom plan NAME`: the memory of each rank for a model.

use std::process::ExitCode;

use serde::Serialize;
use weightloom::gang::GangSizes;
use weightloom::hub::fetch::{FetchError, NetworkAccess};
use weightloom::hub::{Hub, HubError};
use weightloom::layout::{DType, Mesh};
use weightloom::nn::{ModelDefinition, Parallel, Plan, Stage};

use super::failure::Failure;
use super::hub::ArgumentError;
use super::located::OpenedModel;
use super::models::short;
use super::output::{Output, bytes, table};

/// Parallelism, dtype and context length.
pub(super) struct Sharing {
    pub(super) sizes: GangSizes,
    pub(super) dp: usize,
    pub(super) dtype: Option<DType>,
    pub(super) context: usize,
    pub(super) rank: Option<usize>,
}

#[derive(Serialize)]
struct Planned {
    model: String,
    family: String,
    parameters: u64,
    dtype: String,
    mesh: String,
    context: usize,
    ranks: Vec<Rank>,
}

#[derive(Serialize)]
struct Rank {
    rank: usize,
    layers: String,
    parameters: u64,
    /// Bytes of its parameters: what it reads, once, if the checkpoint has the
    /// same dtype.
    weights: u64,
    /// Bytes of keys and values for one text of the given length.
    cache: u64,
    /// The largest parameter that is gathered for its use, if parameters are
    /// shared that way.
    gathered: u64,
    total: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    name: String,
    shape: String,
    layout: String,
    region: String,
}

pub(super) fn run(name: &str, sharing: &Sharing, mut hub: Hub, output: Output) -> Result<ExitCode, Failure> {
    // A plan needs a few kilobytes of a model, and must not download the rest.
    if let Ok(settings) = hub.fetch_settings_mut() {
        settings.network = NetworkAccess::Offline;
    }
    let (family, config, own) = match hub.resolve(name)?.known {
        Some((family, config)) => (family, config, None),
        None => {
            let opened = OpenedModel::locate(&hub, name, output).map_err(|error| not_cached(name, error))?;
            let model = opened.model;
            let dtype = model
                .source()
                .index
                .tensors()
                .values()
                .map(|entry| entry.dtype)
                .find(|dtype| dtype.is_float());
            (model.family().clone(), model.config().clone(), dtype)
        }
    };
    let about = |problem| Failure::from(HubError::Config { about: format!("model `{name}`"), problem });
    let definition = family.definition(&config).map_err(about)?;
    // What checkpoints are published in.
    let dtype = sharing.dtype.or(own).unwrap_or(DType::Bf16);
    let world = sharing.sizes.pp * sharing.sizes.tp * sharing.dp;
    let mesh = sharing.sizes.mesh(world).map_err(|error| Failure::user(&error))?;
    let ranks: Vec<usize> = match sharing.rank {
        Some(rank) if rank >= world => {
            let error = ArgumentError {
                fact: format!("there is no rank {rank} among {world}"),
                fix: Some(format!("ranks are 0 to {}", world - 1)),
            };
            return Err(Failure::user(&error));
        }
        Some(rank) => vec![rank],
        None => (0..world).collect(),
    };
    let ranks =
        ranks.into_iter().map(|rank| plan(&*definition, &family.parallel(), mesh, rank, dtype, sharing));
    let planned = Planned {
        model: name.to_owned(),
        family: family.name().to_owned(),
        parameters: definition.parameter_count(),
        dtype: dtype.to_string(),
        mesh: mesh.to_string(),
        context: sharing.context,
        ranks: ranks.collect::<Result<_, _>>().map_err(Failure::from)?,
    };
    output.show(&planned, text)
}

/// The failure to open a model, with how to get its files if they are not here.
fn not_cached(name: &str, error: HubError) -> Failure {
    let fetch = match &error {
        HubError::Fetch(error) | HubError::BareRepository { source: error, .. } => Some(error),
        _ => None,
    };
    if !matches!(fetch, Some(FetchError::NotCached { .. } | FetchError::Incomplete { .. })) {
        return error.into();
    }
    Failure::user(&ArgumentError {
        fact: format!("the configuration of `{name}` is with its files, which are not here"),
        fix: Some(format!("run `weightloom fetch {name}` first")),
    })
}

fn plan(
    definition: &dyn ModelDefinition,
    parallel: &Parallel,
    mesh: Mesh,
    rank: usize,
    dtype: DType,
    sharing: &Sharing,
) -> Result<Rank, HubError> {
    let nn = |error: weightloom::layout::MeshError| weightloom::nn::NnError::from(error);
    let coordinate = mesh.coordinate(rank).map_err(nn)?;
    let stage = Stage::one_of(definition.layers(), coordinate[0], sharing.sizes.pp)?;
    let specs = definition.parameters(&stage);
    let local_mesh = mesh.sub_mesh(rank, &["rdp", "sdp", "tp"]).map_err(nn)?;
    let plan = Plan::new(parallel, &specs, local_mesh)?;
    let (mut held, mut gathered) = (0, 0);
    let mut tensors = Vec::new();
    for spec in &specs {
        let layout = plan.layout_of(&spec.name);
        let region = layout.region_of(&spec.shape, rank).map_err(weightloom::nn::NnError::from)?;
        held += region.volume() as u64;
        if layout.placements() != plan.used_layout_of(&spec.name).placements() {
            gathered = gathered.max((spec.shape.volume() * dtype.size()) as u64);
        }
        if sharing.rank.is_some() {
            tensors.push(Part {
                name: spec.name.clone(),
                shape: spec.shape.to_string(),
                layout: layout.to_string(),
                region: region.to_string(),
            });
        }
    }
    let per_layer = definition.cache_bytes_per_rank(dtype, sharing.sizes.tp);
    let cache = stage.layers.len() as u64 * per_layer as u64 * sharing.context as u64;
    let weights = held * dtype.size() as u64;
    Ok(Rank {
        rank,
        layers: format!("{}–{}", stage.layers.start, stage.layers.end.saturating_sub(1)),
        parameters: held,
        weights,
        cache,
        gathered,
        total: weights + cache + gathered,
        tensors,
    })
}

fn text(planned: &Planned) -> String {
    let mut rows = table(
        &["rank", "layers", "parameters", "weights", "cache", "gathered", "memory"],
        &[0, 2, 3, 4, 5, 6],
    );
    for rank in &planned.ranks {
        rows.add_row([
            rank.rank.to_string(),
            rank.layers.clone(),
            short(rank.parameters),
            bytes(rank.weights),
            bytes(rank.cache),
            bytes(rank.gathered),
            bytes(rank.total),
        ]);
    }
    let mut text = format!(
        "{}, {} parameters of the family {}, in {} on {}\n{rows}\nThe cache is for one text of {} tokens; what is computed on the way comes on top.",
        planned.model,
        short(planned.parameters),
        planned.family,
        planned.dtype,
        planned.mesh,
        planned.context
    );
    for rank in &planned.ranks {
        if rank.tensors.is_empty() {
            continue;
        }
        let mut rows = table(&["parameter", "shape", "layout", "this rank"], &[]);
        for part in &rank.tensors {
            rows.add_row([part.name.clone(), part.shape.clone(), part.layout.clone(), part.region.clone()]);
        }
        text += &format!("\n{rows}");
    }
    text
}
