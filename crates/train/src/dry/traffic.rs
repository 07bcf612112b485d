//! What a rank receives in a step, and why.

use std::collections::BTreeMap;

use weightloom_dtensor::CommRecord;
use weightloom_nn::EMBEDDING;

use super::report::{AxisTraffic, TrafficItem};
use super::setup::Setup;
use super::stage::Measured;
use crate::pipeline::{Action, Payload};

/// Items of one kind, added up.
#[derive(Default)]
struct Bill(BTreeMap<[String; 4], (u64, u64)>);

impl Bill {
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

    /// One number of 8 bytes, summed over ranks.
    fn number(&mut self, axis: &str, cause: &str, pass: &str, ranks: usize) {
        if ranks > 1 {
            self.add([axis, "all-reduce", cause, pass], 1, (16 * (ranks - 1) / ranks) as u64);
        }
    }
}

impl Bill {
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

/// What a place in the pipeline receives in a step.
pub(super) fn of_rank(setup: &Setup<'_>, measured: &[&Measured], rank: usize) -> Vec<TrafficItem> {
    let mut bill = Bill::default();
    let later = setup.micros as u64 - 1;
    for number in setup.schedule.stages_of(rank) {
        let stage = measured[number];
        bill.items(&stage.passes.first_sent, 1);
        bill.items(&stage.passes.later_sent, later);
        bill.items(&stage.settling, 1);
        for (axis, ranks) in &stage.norms {
            bill.number(axis, "global_norm", "backward", *ranks);
        }
    }
    for action in &setup.schedule.ranks[rank] {
        let Action::Receive { message, .. } = action else { continue };
        let bytes = measured[message.stage].passes.message;
        match message.payload {
            Payload::Activation => bill.add(["pp", "receive", "activation", "forward"], 1, bytes),
            Payload::Gradient => bill.add(["pp", "receive", "gradient", "backward"], 1, bytes),
        }
    }
    let last = setup.stages.len() - 1;
    let ends = [0, setup.schedule.rank_of(last)];
    if setup.decoder.head.tied && last > 0 && ends[0] != ends[1] && ends.contains(&rank) {
        let number = if rank == ends[0] { 0 } else { last };
        // Only what is trained has a gradient.
        if setup.config.model.lora.is_none() && !setup.frozen.matches(EMBEDDING) {
            bill.add(["pp", "receive", "tied embedding", "backward"], 1, measured[number].tied_bytes);
        }
    }
    bill.number("pp", "global_norm", "backward", setup.pp);
    bill.number("world", "targets", "forward", setup.world);
    bill.number("world", "loss", "forward", setup.world);
    bill.into_items()
}

/// The same by axis.
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
