//! The SIMD instructions that kernels use.
//!
//! Kernels are compiled for every vector width and run with the widest that the
//! CPU has. `WEIGHTLOOM_VECTORS` lowers it, to compare machines or to debug:
//! `avx512bf16`, `avx512`, `avx2` or `scalar`. An unknown name, or a level that
//! the CPU does not have, selects the highest level.

use std::sync::OnceLock;

use pulp::{Scalar, Simd, WithSimd};

/// The environment variable that lowers the level.
const VARIABLE: &str = "WEIGHTLOOM_VECTORS";

/// SIMD levels; each includes all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The baseline of the architecture.
    Scalar,
    /// AVX2 with fused multiply-add.
    Avx2,
    /// AVX-512.
    Avx512,
    /// AVX-512 with bf16 dot products.
    Avx512Bf16,
}

impl Level {
    /// The level in use, detected once.
    pub fn current() -> Self {
        static CURRENT: OnceLock<Level> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let asked = match std::env::var(VARIABLE).as_deref() {
                Ok("scalar") => Self::Scalar,
                Ok("avx2") => Self::Avx2,
                Ok("avx512") => Self::Avx512,
                _ => Self::Avx512Bf16,
            };
            asked.min(Self::highest())
        })
    }

    /// The highest level of this CPU.
    #[cfg(target_arch = "x86_64")]
    pub fn highest() -> Self {
        if pulp::x86::V4::try_new().is_some() {
            if std::arch::is_x86_feature_detected!("avx512bf16") { Self::Avx512Bf16 } else { Self::Avx512 }
        } else if pulp::x86::V3::try_new().is_some() {
            Self::Avx2
        } else {
            Self::Scalar
        }
    }

    /// The highest level of this CPU.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn highest() -> Self {
        Self::Scalar
    }
}

/// Runs code with the vector instructions of the current level.
#[cfg(target_arch = "x86_64")]
pub(crate) fn dispatch<W: WithSimd>(work: W) -> W::Output {
    use pulp::x86::{V3, V4};
    match Level::current() {
        Level::Avx512 | Level::Avx512Bf16 => match V4::try_new() {
            Some(v4) => Simd::vectorize(v4, work),
            None => Simd::vectorize(Scalar, work),
        },
        Level::Avx2 => match V3::try_new() {
            Some(v3) => Simd::vectorize(v3, work),
            None => Simd::vectorize(Scalar, work),
        },
        Level::Scalar => Simd::vectorize(Scalar, work),
    }
}

/// Runs code with the vector instructions that every CPU of this architecture
/// has, which `pulp` knows.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn dispatch<W: WithSimd>(work: W) -> W::Output {
    use pulp::Arch;
    if std::env::var_os(VARIABLE).is_some_and(|name| name == "scalar") {
        return Simd::vectorize(Scalar, work);
    }
    Arch::new().dispatch(work)
}
