//! CPU, memory and GPU.

use std::fs;
use std::thread;

use weightloom::errors::Hint as _;
use weightloom::tensor::{GpuFacts, KernelCode, ProductLibrary, SelfTest, gpus, product_library};
use weightloom_machine::Memory;

use super::Check;
use crate::cli::output::bytes;

pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![cpu(), threads(), memory(), gpu()];
    checks.extend(library());
    checks
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
    let gpus = match gpus() {
        Ok(gpus) if gpus.is_empty() => return Check::ok("gpu", "no NVIDIA GPU; not needed on the CPU"),
        Ok(gpus) => gpus,
        Err(error) => {
            let hint =
                error.hint().unwrap_or_else(|| "repair the NVIDIA driver, or run on the CPU".to_owned());
            return Check::missing("gpu", error.to_string(), hint);
        }
    };
    let described: Vec<(String, bool)> = gpus.iter().map(describe).collect();
    let text = described.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("; ");
    match described.iter().all(|(_, works)| *works) {
        true => Check::ok("gpu", text),
        false => Check::missing("gpu", text, "repair the NVIDIA driver, or run on the CPU"),
    }
}

/// The library of products; nothing without a GPU.
fn library() -> Option<Check> {
    let name = "cublaslt";
    let device = gpus().ok()?.first()?.device;
    let slower = "our kernels compute the same bits, more slowly";
    Some(match product_library(device).ok()?? {
        ProductLibrary::Used { path, version } => {
            Check::ok(name, format!("{version} in {path}, with the bits of our kernels"))
        }
        ProductLibrary::OtherBits { path, version } => Check::missing(
            name,
            format!("{version} in {path} gives other bits on this GPU, so it is not used; {slower}"),
            "install another version: `pip install -U nvidia-cublas`",
        ),
        ProductLibrary::Missing(error) => {
            Check::missing(name, format!("{error}; {slower}"), error.hint().unwrap_or_default())
        }
    })
}

/// A GPU with the results of its test, and whether it works.
fn describe(gpu: &GpuFacts) -> (String, bool) {
    let GpuFacts { device, name, capability, memory, free, cuda, kernels, kernel_code } = gpu;
    let code = match kernel_code {
        Some(KernelCode::Machine(name)) => format!("for {name}"),
        Some(KernelCode::Ptx) => "in PTX, which the driver compiles".to_owned(),
        None => "none of which runs on it".to_owned(),
    };
    let facts = format!(
        "{device} {name}, {} ({} free), compute capability {}.{}, driver for CUDA {}.{}, {kernels} kernels {code}",
        bytes(*memory as u64),
        bytes(*free as u64),
        capability.0,
        capability.1,
        cuda.0,
        cuda.1,
    );
    match SelfTest::run(*device) {
        Ok(SelfTest { rows_are_exact: true, agrees_with_cpu: true, upload_rate, download_rate }) => {
            let rate = |rate: f64| format!("{:.1} GB/s", rate / 1e9);
            (
                format!(
                    "{facts}; products exact; copies {} up, {} down",
                    rate(upload_rate),
                    rate(download_rate)
                ),
                true,
            )
        }
        Ok(_) => (format!("{facts}; its products are wrong"), false),
        Err(error) => (format!("{facts}; {error}"), false),
    }
}

/// The value of the first `field : value` line of a file.
fn proc_field(path: &str, field: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, value) =
        text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == field)?;
    Some(value.trim().to_owned())
}
