//! Communication of a rank in a step, by cause.

use std::collections::BTreeMap;

use weightloom_dtensor::CommRecord;

use super::context::RunContext;
use super::report::{AxisTraffic, TrafficItem};
use super::stage::StageCosts;
use crate::pipeline::{Action, Payload};

/// Sums of count and bytes by axis, collective, cause and pass.
#[derive(Default)]
struct TrafficSums(BTreeMap<[String; 4], (u64, u64)>);

impl TrafficSums {
    fn add(&mut self, key: [&str; 4], count: u64, bytes: u64) {
        let sum = self.0.entry(key.map(str::to_owned)).or_default();
        sum.0 += count;
        sum.1 = sum.1.saturating_add(count.saturating_mul(bytes));
    }

    fn items(&mut self, items: &[CommRecord], times: u64) {
        for item in items {
            let pass = item.cause.pass.to_string();
            self.add([item.axis, item.collective, item.cause.op, &pass], times, item.bytes);
        }
    }

    /// An all-reduce of one 8-byte number.
    fn number(&mut self, axis: &str, cause: &str, pass: &str, ranks: usize) {
        if ranks > 1 {
            self.add([axis, "all-reduce", cause, pass], 1, (16 * (ranks - 1) / ranks) as u64);
        }
    }
}

impl TrafficSums {
    fn into_items(self) -> Vec<TrafficItem> {
        let sums = self.0.into_iter().filter(|(_, (count, _))| *count > 0);
        sums.map(|([axis, collective, cause, pass], (count, bytes))| TrafficItem {
            axis,
            collective,
            cause,
            pass,
            count,
            bytes,
        })
        .collect()
    }
}

/// What a pipeline rank receives in a step.
pub(super) fn of_rank(context: &RunContext<'_>, measured: &[&StageCosts], rank: usize) -> Vec<TrafficItem> {
    let mut traffic = TrafficSums::default();
    let later = context.micros as u64 - 1;
    for number in context.schedule.stages_of(rank) {
        let stage = measured[number];
        traffic.items(&stage.passes.first_sent, 1);
        traffic.items(&stage.passes.later_sent, later);
        traffic.items(&stage.reduction, 1);
        for (axis, ranks) in &stage.norms {
            traffic.number(axis, "global_norm", "backward", *ranks);
        }
    }
    for action in &context.schedule.ranks[rank] {
        let Action::Receive { message, .. } = action else { continue };
        let bytes = measured[message.stage].passes.message;
        match message.payload {
            Payload::Activation => traffic.add(["pp", "receive", "activation", "forward"], 1, bytes),
            Payload::Gradient => traffic.add(["pp", "receive", "gradient", "backward"], 1, bytes),
        }
    }
    let last = context.stages.len() - 1;
    let ends = [0, context.schedule.rank_of(last)];
    let tied = context.definition.tied_parameter();
    if tied.is_some() && last > 0 && ends[0] != ends[1] && ends.contains(&rank) {
        let number = if rank == ends[0] { 0 } else { last };
        // Only trained parameters have gradients.
        if context.config.model.lora.is_none() && !tied.is_some_and(|tied| context.frozen.matches(tied)) {
            traffic.add(["pp", "receive", "tied embedding", "backward"], 1, measured[number].tied_bytes);
        }
    }
    traffic.number("pp", "global_norm", "backward", context.pp);
    traffic.number("world", "targets", "forward", context.world);
    traffic.number("world", "loss", "forward", context.world);
    traffic.into_items()
}

/// The sums by axis.
pub(super) fn by_axis(items: &[TrafficItem]) -> Vec<AxisTraffic> {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for item in items {
        let sum = sums.entry(&item.axis).or_default();
        sum.0 += item.count;
        sum.1 = sum.1.saturating_add(item.bytes);
    }
    let axis = |(axis, (count, bytes)): (&str, _)| AxisTraffic { axis: axis.to_owned(), count, bytes };
    sums.into_iter().map(axis).collect()
}
