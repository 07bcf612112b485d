//! Signals that end a run after the current step, with a checkpoint.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGINT;
use signal_hook::flag;

use super::super::failure::Failure;

/// The exit code if Ctrl-C is pressed again while the run is saving.
const AT_ONCE: i32 = 130;

/// SIGHUP, on every system that has it.
const HANG_UP: i32 = 1;

#[cfg(unix)]
const SIGNALS: [i32; 4] = {
    use signal_hook::consts::{SIGHUP, SIGTERM, SIGUSR1};
    [SIGINT, SIGTERM, SIGHUP, SIGUSR1]
};
#[cfg(not(unix))]
const SIGNALS: [i32; 2] = [SIGINT, signal_hook::consts::SIGTERM];

/// A flag that SIGINT, SIGTERM, SIGHUP (the terminal closed) and SIGUSR1 (schedulers
/// announce the end of an allocation with it) set.
///
/// A SIGHUP that is ignored stays ignored: that is what nohup is for.
///
/// A SIGINT that follows ends the program at once. The others do not: schedulers send
/// several while a run is saving.
pub(in crate::cli) fn stop_signal() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let at_once = flag::register_conditional_shutdown(SIGINT, AT_ONCE, Arc::clone(&stop)).map(|_| ());
    let heeded = SIGNALS.into_iter().filter(|&signal| signal != HANG_UP || !is_ignored(signal));
    let flags = heeded.map(|signal| flag::register(signal, Arc::clone(&stop)).map(|_| ()));
    let registered: std::io::Result<()> = std::iter::once(at_once).chain(flags).collect();
    registered.map_err(|error| Failure::operational(&error).about("cannot watch for signals"))?;
    Ok(stop)
}

/// Whether this process was started with a signal ignored, as far as the system says.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}
