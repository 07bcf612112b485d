//! Free disk space.

use std::path::Path;

/// Bytes that this process can write to a folder. If the folder does not exist yet,
/// those of the one that it will be created in. `None` where the system does not say.
pub fn free_space(folder: &Path) -> Option<u64> {
    let folder = std::path::absolute(folder).ok()?;
    let existing = folder.ancestors().find(|folder| folder.exists())?;
    of(existing)
}

#[cfg(unix)]
fn of(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    // Some network and virtual file systems report no sizes.
    (disk.f_blocks > 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
fn of(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn a_folder_that_will_be_created_has_the_space_of_its_parent() {
        let place = tempfile::tempdir().unwrap();
        let (here, inside) = (free_space(place.path()), free_space(&place.path().join("a/b/c")));
        if cfg!(unix) {
            // Others write at the same time.
            assert!(here.unwrap().abs_diff(inside.unwrap()) < 1 << 30);
        }
    }
}
