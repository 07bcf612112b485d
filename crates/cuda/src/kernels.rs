//! The compiled kernels.

/// The fatbin of all kernels: machine code for compute capabilities 8.0 and 9.0, and
/// PTX for later ones.
pub const KERNELS: &[u8] = include_bytes!("../kernels/kernels.fatbin");

/// The names of all kernels, sorted.
pub fn names() -> impl Iterator<Item = &'static str> {
    include_str!("../kernels/kernels.txt").lines()
}

/// What a GPU of a compute capability runs of the fatbin; `None` if nothing.
///
/// ```
/// use weightloom_cuda::{KernelCode, kernel_code};
///
/// assert_eq!(kernel_code((9, 0)), Some(KernelCode::Machine("sm_90a")));
/// assert_eq!(kernel_code((8, 9)), Some(KernelCode::Machine("sm_80")));
/// assert_eq!(kernel_code((12, 0)), Some(KernelCode::Ptx));
/// assert_eq!(kernel_code((7, 5)), None);
/// ```
pub fn kernel_code(capability: (u32, u32)) -> Option<KernelCode> {
    match capability {
        (8, _) => Some(KernelCode::Machine("sm_80")),
        (9, 0) => Some(KernelCode::Machine("sm_90a")),
        (9.., _) => Some(KernelCode::Ptx),
        _ => None,
    }
}

/// What a GPU runs of the fatbin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelCode {
    /// Machine code for an architecture.
    Machine(&'static str),
    /// PTX, which the driver compiles when the kernels are loaded.
    Ptx,
}

/// Whether there is a kernel of this name.
pub(crate) fn exists(name: &str) -> bool {
    let sorted: Vec<&str> = names().collect();
    sorted.binary_search(&name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_found() {
        let all: Vec<&str> = names().collect();
        assert!(all.is_sorted());
        assert!(all.len() > 100);
        assert!(exists("unary_f32") && exists("matmul_bf16") && !exists("unary"));
    }

    /// `scripts/kernels` writes the digest of the sources beside the fatbin.
    #[test]
    fn the_fatbin_was_built_from_these_sources() {
        use ring::digest::{Context, SHA256};
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let mut sources: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "cu" || extension == "cuh"))
            .collect();
        sources.sort();
        let mut digest = Context::new(&SHA256);
        for source in sources {
            digest.update(&std::fs::read(source).unwrap());
        }
        digest.update(KERNELS);
        let found: String = digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let recorded = std::fs::read_to_string(folder.join("kernels.sha256")).unwrap();
        assert_eq!(recorded.trim(), found, "kernel sources and fatbin differ: run scripts/kernels");
    }
}
