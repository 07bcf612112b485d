//! CPU, memory and GPU.

use std::fs;
use std::process::Command;
use std::thread;

use weightloom_machine::Memory;

use super::Check;
use crate::cli::output::bytes;

pub(super) fn checks() -> Vec<Check> {
    vec![cpu(), threads(), memory(), gpu()]
}

fn cpu() -> Check {
    let model = proc_field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown model".to_owned());
    let features = features();
    let fast =
        if features.is_empty() { "no supported vector extensions".to_owned() } else { features.join(" ") };
    Check::ok("cpu", format!("{model}: {fast}"))
}

/// Vector extensions that kernels use.
#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look {
        ($($name:tt),*) => {
            $(if std::arch::is_x86_feature_detected!($name) {
                found.push($name);
            })*
        };
    }
    look!("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512bf16", "avx512vnni");
    found
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look {
        ($($name:tt),*) => {
            $(if std::arch::is_aarch64_feature_detected!($name) {
                found.push($name);
            })*
        };
    }
    look!("neon", "fp16", "bf16", "dotprod", "sve");
    found
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

fn threads() -> Check {
    match thread::available_parallelism() {
        Ok(count) => Check::ok("threads", count.to_string()),
        Err(error) => Check::missing("threads", error.to_string(), "one thread is assumed"),
    }
}

fn memory() -> Check {
    match weightloom_machine::memory() {
        Some(Memory { total, available, machine }) => {
            let limited = machine.map_or_else(String::new, |machine| {
                format!("; the limit of a control group on a machine with {}", bytes(machine))
            });
            Check::ok("memory", format!("{}, {} available{limited}", bytes(total), bytes(available)))
        }
        None => Check::missing("memory", "size unknown on this system", "set memory budgets by hand"),
    }
}

fn gpu() -> Check {
    let listed = Command::new("nvidia-smi")
        .args(["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
        .output();
    match listed {
        Ok(listed) if listed.status.success() => {
            let gpus = String::from_utf8_lossy(&listed.stdout).trim().replace('\n', "; ");
            Check::ok("gpu", gpus)
        }
        Ok(listed) => {
            let said =
                String::from_utf8_lossy(&listed.stdout).lines().next().unwrap_or("no answer").to_owned();
            Check::missing(
                "gpu",
                format!("nvidia-smi: {said}"),
                "repair the NVIDIA driver, or run on the CPU",
            )
        }
        Err(_) => Check::ok("gpu", "no NVIDIA driver; not needed on the CPU"),
    }
}

/// The value of the first `field : value` line of a file.
fn proc_field(path: &str, field: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, value) =
        text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == field)?;
    Some(value.trim().to_owned())
}
