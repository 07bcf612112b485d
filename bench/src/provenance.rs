//! Where and with what a benchmark ran.

use std::collections::BTreeMap;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Python packages that benchmarks compare with.
const PACKAGES: [&str; 6] =
    ["torch", "transformers", "peft", "safetensors", "dlm-sway", "sentence-transformers"];

/// The machine of a benchmark.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Machine {
    pub cpu: String,
    pub threads: usize,
    pub memory_gib: u64,
    pub os: String,
}

/// Where and with what a benchmark ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Provenance {
    /// Day of the measurement, in UTC.
    pub date: String,
    /// Git commit, with `-dirty` for a changed working tree.
    pub commit: String,
    pub machine: Machine,
    pub rustc: String,
    /// Versions of the peers that were available.
    pub peers: BTreeMap<String, String>,
}

impl Provenance {
    /// Describes this process.
    pub fn collect() -> Self {
        Self {
            date: first_line(Command::new("date").args(["-u", "+%Y-%m-%d"])).unwrap_or_default(),
            commit: first_line(git().args(["describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]))
                .unwrap_or_else(|| "unknown".to_owned()),
            machine: Machine::collect(),
            rustc: first_line(Command::new("rustc").arg("--version")).unwrap_or_default(),
            peers: peers(),
        }
    }
}

impl Machine {
    fn collect() -> Self {
        let value = |file: &str, key: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kibibytes = value("/proc/meminfo", "MemTotal")
            .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        Self {
            cpu: value("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: kibibytes.unwrap_or(0).div_ceil(1 << 20),
            os: first_line(Command::new("uname").args(["-s", "-r"])).unwrap_or_default(),
        }
    }
}

fn peers() -> BTreeMap<String, String> {
    let mut peers = BTreeMap::new();
    if let Some(python) = std::env::var_os("WEIGHTLOOM_PEER_PYTHON") {
        for package in PACKAGES {
            let code = format!("import importlib.metadata as m; print(m.version('{package}'))");
            if let Some(version) = first_line(Command::new(&python).args(["-c", &code])) {
                peers.insert(package.to_owned(), version);
            }
        }
    }
    if std::env::var_os("WEIGHTLOOM_PEER_CANDLE").is_some() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/candle/Cargo.lock");
        let lock = std::fs::read_to_string(lock).unwrap_or_default();
        let entry = lock.split("[[package]]").find(|entry| entry.contains("name = \"candle-core\""));
        let version = entry.and_then(|entry| entry.split("version = \"").nth(1)?.split('"').next());
        peers.extend(version.map(|version| ("candle".to_owned(), version.to_owned())));
    }
    if std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some() {
        let version = first_line(Command::new("mpirun").arg("--version"));
        peers.extend(version.map(|version| ("MPI".to_owned(), version)));
    }
    peers
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR")]);
    git
}

/// The first line that a command prints, if it succeeds.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}
