//! Execution of requests in passes over as many variants as fit in memory.

use std::collections::{BTreeMap, BTreeSet};

use weightloom_nn::NnError;
use weightloom_tensor::memory;

use super::LocalOptions;
use super::engine::Engine;
use super::generation::generate_all;
use super::request::{GenerateRequest, Request, ScoreRequest};
use super::scoring::ScoringPass;
use super::variant::Variant;
use crate::backend::AnswerSink;
use crate::view::View;

/// Bytes of freed memory kept for later passes.
const MAX_CACHED_BYTES: usize = 192 << 20;

/// Returns cached memory to the system: passes differ in size, so most blocks
/// of one would not fit the next.
pub(super) fn trim_memory() {
    if memory::statistics().cached > MAX_CACHED_BYTES {
        memory::release();
    }
}

/// The variants of one pass. Views with equal weights share one.
pub(super) struct Variants {
    pub(super) all: Vec<Variant>,
    indices: BTreeMap<View, usize>,
}

impl Variants {
    fn new(engine: &Engine, views: &BTreeSet<&View>) -> Result<Self, NnError> {
        let mut all: Vec<Variant> = Vec::new();
        let mut indices = BTreeMap::new();
        for view in views {
            let variant = engine.variant(view)?;
            let index = all.iter().position(|known| known.is_same(&variant)).unwrap_or_else(|| {
                all.push(variant);
                all.len() - 1
            });
            indices.insert((*view).clone(), index);
        }
        Ok(Self { all, indices })
    }

    pub(super) fn index(&self, view: &View) -> usize {
        self.indices.get(view).copied().unwrap_or(0)
    }

    pub(super) fn of(&self, view: &View) -> &Variant {
        &self.all[self.index(view)]
    }
}

/// Whether a view needs its own adapter in memory.
fn allocates_adapter(view: &View) -> bool {
    matches!(view, View::Noise { .. } | View::Matched { .. })
}

/// Answers all requests, each with the index of its question.
pub(super) fn run_all(
    engine: &Engine,
    options: &LocalOptions,
    requests: &[(usize, Request)],
    sink: &mut dyn AnswerSink,
) -> Result<(), NnError> {
    let mut order: Vec<&(usize, Request)> = requests.iter().collect();
    order.sort_by(|(_, a), (_, b)| a.views().max().cmp(&b.views().max()));
    let max_adapters = options.max_adapter_bytes / engine.adapter_bytes().max(1);
    let mut views: BTreeSet<&View> = BTreeSet::new();
    let mut start = 0;
    for (index, (_, request)) in order.iter().enumerate() {
        let more = request.views().filter(|view| allocates_adapter(view) && !views.contains(*view)).count();
        let held = views.iter().filter(|view| allocates_adapter(view)).count();
        if more > 0 && held > 0 && held + more > max_adapters {
            run_pass(engine, options, &views, &order[start..index], sink)?;
            views.clear();
            start = index;
        }
        views.extend(request.views());
    }
    run_pass(engine, options, &views, &order[start..], sink)
}

fn run_pass(
    engine: &Engine,
    options: &LocalOptions,
    views: &BTreeSet<&View>,
    requests: &[&(usize, Request)],
    sink: &mut dyn AnswerSink,
) -> Result<(), NnError> {
    if sink.is_cancelled() {
        return Ok(());
    }
    let variants = Variants::new(engine, views)?;
    let mut scores: Vec<(usize, &ScoreRequest)> = Vec::new();
    let mut generations: Vec<(usize, &GenerateRequest)> = Vec::new();
    for (question, request) in requests {
        match request {
            Request::Answered(answer) => sink.answered(*question, Ok(answer.clone())),
            Request::Score(request) => scores.push((*question, request)),
            Request::Generate(request) => generations.push((*question, request)),
        }
    }
    ScoringPass::new(engine, &variants, &scores).run(options.max_batch_tokens.max(1), sink)?;
    generate_all(engine, &variants, options, &generations, sink)
}
