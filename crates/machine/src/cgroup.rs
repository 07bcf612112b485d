//! Memory limits of control groups, versions 1 and 2.
//!
//! A process belongs to a group, and the limits of all its parents apply too. The
//! files are in `/proc/self/cgroup` (the group), `/proc/self/mountinfo` (where groups
//! are mounted, and from which group on) and the folder of each group.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The limit of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    /// Memory of the group that cannot be reclaimed easily.
    pub(crate) used: u64,
}

/// The names of the files of a version.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// The field of `memory.stat` with the page cache that can be dropped.
    cache: &'static str,
}

const V1: Names =
    Names { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", cache: "total_inactive_file" };
const V2: Names = Names { limit: "memory.max", usage: "memory.current", cache: "inactive_file" };

/// The limits that apply to this process.
pub(crate) fn limits(root: &Path) -> Vec<Limit> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (kind, names) = match controllers {
            "" => ("cgroup2", V2),
            list if list.split(',').any(|one| one == "memory") => ("cgroup", V1),
            _ => continue,
        };
        for (base, mount) in mounts.lines().filter_map(|line| mounted(line, kind)) {
            let mount = root.join(mount.trim_start_matches('/'));
            let folder = mount.join(relative(group, base));
            let within = folder.ancestors().take_while(|folder| folder.starts_with(&mount));
            limits.extend(within.filter_map(|folder| limit(folder, &names)));
        }
    }
    limits
}

/// The group and the folder of a mount of this kind, with the memory controller.
fn mounted<'a>(line: &'a str, kind: &str) -> Option<(&'a str, &'a str)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (base, folder) = (fields.next()?, fields.next()?);
    let mut system = system.split(' ');
    let (found, options) = (system.next()?, system.nth(1)?);
    let controls_memory = kind == "cgroup2" || options.split(',').any(|option| option == "memory");
    (found == kind && controls_memory).then_some((base, folder))
}

/// The path of a group below the mounted one; empty if it is not below.
fn relative(group: &str, base: &str) -> PathBuf {
    let below = Path::new(group).strip_prefix(base).unwrap_or(Path::new(""));
    let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    if plain { below.to_owned() } else { PathBuf::new() }
}

fn limit(folder: &Path, names: &Names) -> Option<Limit> {
    let number =
        |name: &str| -> Option<u64> { fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok() };
    let bytes = number(names.limit)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|line| line.strip_prefix(names.cache)?.trim().parse().ok());
    let used = number(names.usage).unwrap_or(0).saturating_sub(cache.unwrap_or(0));
    Some(Limit { bytes, used })
}
