//! MPI support of this build and this machine.

use std::process::Command;

use super::Check;

pub(super) fn checks() -> Vec<Check> {
    vec![build(), launcher()]
}

fn build() -> Check {
    if cfg!(feature = "mpi") {
        Check::ok("mpi build", "built with MPI")
    } else {
        Check::missing(
            "mpi build",
            "built without MPI; ranks are threads",
            "cargo build --release --features mpi (needs libopenmpi-dev openmpi-bin libclang-dev)",
        )
    }
}

fn launcher() -> Check {
    let answer = Command::new("mpirun").arg("--version").output();
    let first_line = answer.ok().filter(|answer| answer.status.success()).and_then(|answer| {
        let text = String::from_utf8_lossy(&answer.stdout).into_owned();
        text.lines().next().map(str::to_owned)
    });
    match first_line {
        Some(line) => Check::ok("mpirun", line),
        None => Check::missing(
            "mpirun",
            "not on the path",
            "apt-get install openmpi-bin (to build with MPI also libopenmpi-dev libclang-dev)",
        ),
    }
}
