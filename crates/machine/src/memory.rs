//! Memory that a process may use.

use std::fs;
use std::path::Path;

use crate::cgroup;

/// Memory that this process may use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All memory: that of the machine, or the limit of a control group.
    pub total: u64,
    /// What is left of it, including caches that can be dropped.
    pub available: u64,
    /// All memory of the machine, if a control group allows less.
    pub machine: Option<u64>,
}

/// Memory that this process may use; `None` where the system does not report it.
pub fn memory() -> Option<Memory> {
    read(Path::new("/"))
}

/// Reads the files of a system with this root.
pub(crate) fn read(root: &Path) -> Option<Memory> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let (total, available) = (kibibytes(&text, "MemTotal:")?, kibibytes(&text, "MemAvailable:")?);
    let unlimited = Memory { total, available: available.min(total), machine: None };
    let limits = cgroup::limits(root).into_iter().filter(|limit| limit.bytes < total);
    Some(limits.fold(unlimited, |memory, limit| Memory {
        total: memory.total.min(limit.bytes),
        available: memory.available.min(limit.bytes.saturating_sub(limit.used)),
        machine: Some(total),
    }))
}

/// A field of `/proc/meminfo` in bytes.
fn kibibytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    const MEMINFO: &str = "MemTotal:       1000000 kB\nMemFree: 7 kB\nMemAvailable:    600000 kB\n";
    const KIB: u64 = 1024;

    /// A system with these files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in [("proc/meminfo", MEMINFO)].iter().chain(files) {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn memory_of(files: &[(&str, &str)]) -> Memory {
        read(system(files).path()).unwrap()
    }

    const UNLIMITED: Memory = Memory { total: 1_000_000 * KIB, available: 600_000 * KIB, machine: None };
    const V2: (&str, &str) =
        ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
    const V1: (&str, &str) = (
        "proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
         35 31 0:32 /docker/a1 /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
         36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
    );

    #[test]
    fn without_control_groups_the_machine_is_the_limit() {
        assert_eq!(memory_of(&[]), UNLIMITED);
        assert_eq!(read(Path::new("/nowhere")), None);
        // Nothing here is a limit.
        for max in ["max\n", "9223372036854771712\n", "", "-1\n", "x\n"] {
            let files = [V2, ("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", max)];
            assert_eq!(memory_of(&files), UNLIMITED, "{max:?}");
        }
    }

    #[test]
    fn the_smallest_limit_of_all_parents_counts() {
        let files = [
            V2,
            ("proc/self/cgroup", "0::/jobs/one/two\n"),
            ("sys/fs/cgroup/jobs/one/two/memory.max", "max\n"),
            ("sys/fs/cgroup/jobs/one/two/memory.current", "1000\n"),
            ("sys/fs/cgroup/jobs/one/memory.max", "104857600\n"),
            ("sys/fs/cgroup/jobs/one/memory.current", "52428800\n"),
            ("sys/fs/cgroup/jobs/one/memory.stat", "anon 1\ninactive_file 10485760\n"),
            ("sys/fs/cgroup/jobs/memory.max", "209715200\n"),
        ];
        let machine = Some(1_000_000 * KIB);
        assert_eq!(memory_of(&files), Memory { total: 100 << 20, available: 60 << 20, machine });
    }

    #[test]
    fn version_1_has_other_names_and_a_mounted_subtree() {
        let files = [
            V1,
            ("proc/self/cgroup", "9:cpu:/docker/a1\n4:memory:/docker/a1/inner\n0::/\n"),
            ("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "41943040\n"),
        ];
        let machine = Some(1_000_000 * KIB);
        assert_eq!(memory_of(&files), Memory { total: 100 << 20, available: 60 << 20, machine });
    }

    /// In a container, the path of the group may lie outside of what is mounted.
    #[test]
    fn a_group_that_is_not_mounted_counts_as_the_mounted_one() {
        let files = [
            V2,
            ("proc/self/cgroup", "0::/../other/place\n"),
            ("sys/fs/cgroup/memory.max", "104857600\n"),
            ("sys/fs/cgroup/memory.current", "209715200\n"),
        ];
        let machine = Some(1_000_000 * KIB);
        assert_eq!(memory_of(&files), Memory { total: 100 << 20, available: 0, machine });
    }

    #[test]
    fn this_machine_has_memory() {
        if cfg!(target_os = "linux") {
            let memory = memory().unwrap();
            assert!(memory.total > 0 && memory.available <= memory.total, "{memory:?}");
        }
    }
}
