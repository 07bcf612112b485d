//! Memory that a server may use.

use std::fs;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemorySize {
    pub(super) bytes: u64,
}

impl FromStr for MemorySize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("invalid size `{text}`; use a form such as 500MB or 8GiB");
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kb" => 1000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            _ => return Err(invalid()),
        };
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        bytes.filter(|bytes| *bytes > 0).map(|bytes| Self { bytes }).ok_or_else(invalid)
    }
}

/// Half of the memory that is available to this process, if the system says.
pub(super) fn half_of_available() -> Option<u64> {
    let system = meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
    // A container may have less than the machine.
    let number = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let limit = number("/sys/fs/cgroup/memory.max");
    let used = number("/sys/fs/cgroup/memory.current");
    let container = limit.zip(used).map(|(limit, used)| limit.saturating_sub(used));
    Some((system.min(container.unwrap_or(u64::MAX)) / 2).max(1))
}

/// The bytes of `MemAvailable`.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let bytes = |text: &str| text.parse::<MemorySize>().map(|size| size.bytes).ok();
        assert_eq!(bytes("8GiB"), Some(8 << 30));
        assert_eq!(bytes("500 MB"), Some(500_000_000));
        assert_eq!(bytes("12"), Some(12));
        for wrong in ["", "0", "GiB", "1TB5", "-1", "99999999999999999999", "99999999999GiB"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
        assert_eq!(meminfo("MemTotal: 5 kB\nMemAvailable:      3 kB\n"), Some(3072));
    }
}
