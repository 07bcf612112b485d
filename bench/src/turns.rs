//! Cases measured in turns with peers.

use std::fmt::Debug;
use std::time::Duration;

use crate::{Goal, Peer, Report, median, middle, short};

/// How often we and the peers take turns.
const ROUNDS: usize = 7;

/// How long we measure in each round; peers do as long.
const ROUND: Duration = Duration::from_millis(250);

/// Between turns: threads of the last one stop waiting for work.
const PAUSE: Duration = Duration::from_millis(50);

/// Peers, what was measured, and which cases are wanted.
pub struct Turns {
    /// The first is the one that goals are about.
    pub peers: Vec<Peer>,
    /// What was measured.
    pub report: Report,
    chosen: Vec<String>,
}

impl Turns {
    /// Cases beside these peers. Words of the command line that are not options
    /// choose them.
    pub fn new(peers: Vec<Peer>) -> Self {
        let chosen = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
        Self { peers, report: Report::new(), chosen }
    }

    /// Whether the name of a case contains one of the words.
    pub fn is_chosen(&self, name: &str) -> bool {
        self.chosen.is_empty() || self.chosen.iter().any(|word| name.contains(word))
    }

    /// Measures a case in turns with the peers. Ratios are medians over turns.
    pub fn line<E: Debug>(&mut self, name: &str, least: f64, work: &mut dyn FnMut() -> Result<(), E>) {
        if !self.is_chosen(name) {
            return;
        }
        let mut ours = Vec::new();
        let mut theirs: Vec<Vec<Duration>> = self.peers.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (peer, times) in self.peers.iter_mut().zip(&mut theirs) {
                times.extend(peer.time(name));
                std::thread::sleep(PAUSE);
            }
            ours.push(median(ROUND, || work().expect("the case runs")));
            std::thread::sleep(PAUSE);
        }
        let measured = middle(&mut ours.clone());
        if self.peers.is_empty() {
            self.report.note(name, [&short(measured), "no peer"], f64::NAN);
        }
        for (place, (peer, times)) in self.peers.iter().zip(&theirs).enumerate() {
            if times.is_empty() {
                continue;
            }
            let mut ratios: Vec<f64> = times
                .iter()
                .zip(&ours)
                .map(|(theirs, ours)| theirs.as_secs_f64() / ours.as_secs_f64())
                .collect();
            ratios.sort_unstable_by(f64::total_cmp);
            let ratio = ratios[ratios.len() / 2];
            let beside = format!("{} {}", peer.name(), short(middle(&mut times.clone())));
            if place == 0 {
                self.report.ratio(name, [&short(measured), &beside], ratio, Goal::AtLeast(least));
            } else {
                self.report.note("", ["", &beside], ratio);
            }
        }
    }
}
