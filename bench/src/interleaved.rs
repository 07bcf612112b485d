//! Cases measured in alternation with peers.

use std::fmt::Debug;
use std::time::Duration;

use crate::{Against, Goal, Peer, Report, duration, median, median_f64, median_time};

/// Rounds of alternating measurements.
const ROUNDS: usize = 7;

/// Duration of our part of a round; a peer's part is as long.
const ROUND: Duration = Duration::from_millis(250);

/// Pause between measurements, in which idle threads go to sleep.
const PAUSE: Duration = Duration::from_millis(50);

/// Measures cases in alternation with peers.
pub struct Interleaved {
    /// Goals are about the first peer.
    pub peers: Vec<Peer>,
    /// Results so far.
    pub report: Report,
    filters: Vec<String>,
}

impl Interleaved {
    /// Creates a benchmark; arguments of the process that are not options
    /// select the cases whose names contain one of them.
    pub fn new(bench: &str, peers: Vec<Peer>) -> Self {
        let filters = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
        Self { peers, report: Report::new(bench), filters }
    }

    /// Whether the filters select a case.
    pub fn is_selected(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|word| name.contains(word))
    }

    /// Measures a case. The ratio is the median of those of the rounds, and
    /// should be at least `goal`.
    pub fn case<E: Debug>(&mut self, name: &str, goal: f64, work: &mut dyn FnMut() -> Result<(), E>) {
        if !self.is_selected(name) {
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
        let measured = duration(median_time(&mut ours.clone()));
        if self.peers.is_empty() {
            self.report.figure(name, &measured);
        }
        for (index, (peer, times)) in self.peers.iter().zip(&theirs).enumerate() {
            if times.is_empty() {
                continue;
            }
            let ratios =
                times.iter().zip(&ours).map(|(theirs, ours)| theirs.as_secs_f64() / ours.as_secs_f64());
            let ratio = median_f64(ratios.collect());
            let reference = duration(median_time(&mut times.clone()));
            let goal = if index == 0 { Goal::AtLeast(goal) } else { Goal::Higher };
            self.report.compare(name, Against::peer(peer.name()), [&measured, &reference], ratio, goal);
        }
    }
}
