//! Least speed of a response.
//!
//! A limit for pauses alone does not end a response that trickles in: a byte every
//! second does not count as a pause.

use std::time::Duration;

/// Bytes that must arrive within each window of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinSpeed {
    /// Bytes per window.
    pub bytes: u64,
    /// Time that is spent waiting for them.
    pub window: Duration,
}

impl Default for MinSpeed {
    /// One KiB per second, measured over half a minute.
    fn default() -> Self {
        Self { bytes: 30 << 10, window: Duration::from_secs(30) }
    }
}

impl MinSpeed {
    /// Watches one response.
    pub fn watch(self) -> SpeedWatch {
        SpeedWatch { limit: self, received: 0, waited: Duration::ZERO }
    }
}

/// Compares the speed of a response with the limit.
#[derive(Clone, Debug)]
pub struct SpeedWatch {
    limit: MinSpeed,
    received: u64,
    waited: Duration,
}

/// A response is slower than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("received {bytes} bytes in {:.1} s", .waited.as_secs_f64())]
pub struct TooSlow {
    /// Bytes in the last window.
    pub bytes: u64,
    /// Time that was spent waiting for them.
    pub waited: Duration,
}

impl SpeedWatch {
    /// Records bytes and the time that was spent waiting for them, without the
    /// time that the receiver took to store them.
    pub fn record(&mut self, bytes: usize, waited: Duration) -> Result<(), TooSlow> {
        self.received = self.received.saturating_add(bytes as u64);
        self.waited = self.waited.saturating_add(waited);
        if self.waited < self.limit.window {
            return Ok(());
        }
        if self.received < self.limit.bytes {
            return Err(TooSlow { bytes: self.received, waited: self.waited });
        }
        (self.received, self.waited) = (0, Duration::ZERO);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_is_too_slow() {
        let mut watch = MinSpeed::default().watch();
        let half = Duration::from_millis(500);
        for _ in 0..59 {
            watch.record(1, half).unwrap();
        }
        assert_eq!(watch.record(1, half), Err(TooSlow { bytes: 60, waited: Duration::from_secs(30) }));
    }

    #[test]
    fn each_window_counts_by_itself() {
        let mut watch = MinSpeed { bytes: 10, window: Duration::from_secs(1) }.watch();
        for _ in 0..100 {
            watch.record(5, Duration::from_millis(500)).unwrap();
        }
        watch.record(1 << 30, Duration::from_secs(1)).unwrap();
        assert!(watch.record(9, Duration::from_secs(1)).is_err());
    }
}
