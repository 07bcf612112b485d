//! Jobs in passes: as many variants at once as memory has room for.

use std::collections::{BTreeMap, BTreeSet};

use weightloom_nn::NnError;
use weightloom_tensor::memory;

use super::LocalOptions;
use super::engine::Engine;
use super::jobs::{Job, Read, Write};
use super::reading::Readings;
use super::variant::Variant;
use super::writing::write_all;
use crate::answer::Answer;
use crate::error::QueryError;
use crate::view::View;

/// The most memory that is kept for later passes.
const SPARE: usize = 192 << 20;

/// Gives memory back. Passes differ in size, so much of what one had would not
/// fit the next.
pub(super) fn tidy() {
    if memory::statistics().cached > SPARE {
        memory::release();
    }
}

/// Hears the answer to a question, by the question's number.
pub(super) type Tell<'a> = dyn FnMut(usize, Result<Answer, QueryError>) + 'a;

/// The variants of one pass. Views that are the same share one.
pub(super) struct Variants {
    pub(super) all: Vec<Variant>,
    numbers: BTreeMap<View, usize>,
}

impl Variants {
    fn new(engine: &Engine, views: &BTreeSet<&View>) -> Result<Self, NnError> {
        let mut made = Self { all: Vec::new(), numbers: BTreeMap::new() };
        for view in views {
            let variant = engine.variant(view)?;
            let known = made.all.iter().position(|known| known.is_same(&variant));
            let number = known.unwrap_or_else(|| {
                made.all.push(variant);
                made.all.len() - 1
            });
            made.numbers.insert((*view).clone(), number);
        }
        Ok(made)
    }

    pub(super) fn number(&self, view: &View) -> usize {
        self.numbers.get(view).copied().unwrap_or(0)
    }
}

/// Whether a view has an adapter of its own in memory.
fn is_made(view: &View) -> bool {
    matches!(view, View::Noise { .. } | View::Matched { .. })
}

/// Does all jobs, each told by the number of its question.
pub(super) fn work(
    engine: &Engine,
    options: &LocalOptions,
    jobs: &[(usize, Job)],
    tell: &mut Tell<'_>,
) -> Result<(), NnError> {
    let mut order: Vec<&(usize, Job)> = jobs.iter().collect();
    order.sort_by(|(_, a), (_, b)| a.views().max().cmp(&b.views().max()));
    let room = options.adapter_bytes / engine.adapter_bytes().max(1);
    let mut views: BTreeSet<&View> = BTreeSet::new();
    let mut start = 0;
    for (place, (_, job)) in order.iter().enumerate() {
        let more = job.views().filter(|view| is_made(view) && !views.contains(*view)).count();
        let made = views.iter().filter(|view| is_made(view)).count();
        if more > 0 && made > 0 && made + more > room {
            pass(engine, options, &views, &order[start..place], tell)?;
            views.clear();
            start = place;
        }
        views.extend(job.views());
    }
    pass(engine, options, &views, &order[start..], tell)
}

fn pass(
    engine: &Engine,
    options: &LocalOptions,
    views: &BTreeSet<&View>,
    jobs: &[&(usize, Job)],
    tell: &mut Tell<'_>,
) -> Result<(), NnError> {
    let variants = Variants::new(engine, views)?;
    let mut reads: Vec<(usize, &Read)> = Vec::new();
    let mut writes: Vec<(usize, &Write)> = Vec::new();
    for (question, job) in jobs {
        match job {
            Job::Done(answer) => tell(*question, Ok(answer.clone())),
            Job::Read(read) => reads.push((*question, read)),
            Job::Write(write) => writes.push((*question, write)),
        }
    }
    Readings::new(engine, &variants, &reads).run(options.tokens_per_chunk.max(1), tell)?;
    write_all(engine, &variants, options, &writes, tell)
}
