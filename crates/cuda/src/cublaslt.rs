//! NVIDIA's library of matrix products, cuBLASLt, where it is installed.
//!
//! Products of bf16 and f16 without split-K are one chain of multiply-adds over the
//! depth, as in our own kernels, so that a row's bits do not depend on which of the
//! two computes it. Algorithms that sum in another order are left out, and a test
//! compares the library with our kernels before it is used.
//!
//! Every call of the library is `unsafe`. The rules: symbols have the types of
//! `cublasLt.h`; descriptors are created before they are used and destroyed once;
//! device addresses are numbers that only the device follows.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use libloading::Library;
use rustc_hash::FxHashMap;

use crate::driver::{LibraryInfo, MatrixProduct, Orientation, ProductDType, ProductResult};
use crate::error::CudaError;
use crate::library::candidates;

/// The oldest version whose products were compared with our kernels.
const OLDEST: usize = 120_000;

/// Bytes that an algorithm may use besides its operands.
pub(crate) const WORKSPACE: usize = 32 << 20;

/// The bytes that the addresses of all matrices are multiples of.
pub const ALIGNMENT: u32 = 16;

/// Algorithms that sum in another order: they are made for vectors.
const OTHER_ORDER: [i32; 2] = [11, 13];

/// Algorithms to choose from.
const CHOICES: usize = 8;

/// The most products whose descriptors are kept.
const KEPT: usize = 1024;

type Handle = *mut c_void;
type Status = c_int;

/// `cublasLtMatmulAlgo_t`.
type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Choice {
    algorithm: Algorithm,
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

// Numbers of `cublasLt.h` and `library_types.h`.
const R_32F: c_int = 0;
const R_16F: c_int = 2;
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const DESC_TRANSPOSE_A: c_int = 3;
const DESC_TRANSPOSE_B: c_int = 4;
const PREFERENCE_WORKSPACE: c_int = 1;
const PREFERENCE_REDUCTIONS: c_int = 3;
const PREFERENCE_ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
const CONFIG_ID: c_int = 0;
const CONFIG_SPLIT_K: c_int = 2;
const INVALID_VALUE: Status = 7;
const NOT_SUPPORTED: Status = 15;

/// Functions of the library.
struct Functions {
    version: unsafe extern "C" fn() -> usize,
    create: unsafe extern "C" fn(*mut Handle) -> Status,
    desc_create: unsafe extern "C" fn(*mut Handle, c_int, c_int) -> Status,
    desc_set: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> Status,
    desc_destroy: unsafe extern "C" fn(Handle) -> Status,
    layout_create: unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> Status,
    layout_destroy: unsafe extern "C" fn(Handle) -> Status,
    preference_create: unsafe extern "C" fn(*mut Handle) -> Status,
    preference_set: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> Status,
    preference_destroy: unsafe extern "C" fn(Handle) -> Status,
    #[allow(clippy::type_complexity, reason = "the signature of the library")]
    heuristic: unsafe extern "C" fn(
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        Handle,
        c_int,
        *mut Choice,
        *mut c_int,
    ) -> Status,
    config_get: unsafe extern "C" fn(*const Algorithm, c_int, *mut c_void, usize, *mut usize) -> Status,
    #[allow(clippy::type_complexity, reason = "the signature of the library")]
    matmul: unsafe extern "C" fn(
        Handle,
        Handle,
        *const c_void,
        u64,
        Handle,
        u64,
        Handle,
        *const c_void,
        u64,
        Handle,
        u64,
        Handle,
        *const Algorithm,
        u64,
        usize,
        *mut c_void,
    ) -> Status,
}

impl Functions {
    fn of(library: &Library) -> Result<Self, libloading::Error> {
        macro_rules! symbols {
            ($($field:ident: $name:literal),* $(,)?) => {
                // SAFETY: the types are those of `cublasLt.h`.
                unsafe { Ok(Self { $($field: *library.get($name)?),* }) }
            };
        }
        symbols! {
            version: b"cublasLtGetVersion\0",
            create: b"cublasLtCreate\0",
            desc_create: b"cublasLtMatmulDescCreate\0",
            desc_set: b"cublasLtMatmulDescSetAttribute\0",
            desc_destroy: b"cublasLtMatmulDescDestroy\0",
            layout_create: b"cublasLtMatrixLayoutCreate\0",
            layout_destroy: b"cublasLtMatrixLayoutDestroy\0",
            preference_create: b"cublasLtMatmulPreferenceCreate\0",
            preference_set: b"cublasLtMatmulPreferenceSetAttribute\0",
            preference_destroy: b"cublasLtMatmulPreferenceDestroy\0",
            heuristic: b"cublasLtMatmulAlgoGetHeuristic\0",
            config_get: b"cublasLtMatmulAlgoConfigGetAttribute\0",
            matmul: b"cublasLtMatmul\0",
        }
    }
}

/// The library, opened for one device.
pub(crate) struct CublasLt {
    functions: Functions,
    handle: Handle,
    preference: Handle,
    info: LibraryInfo,
    /// By sizes, strides and dtype; `None` where no algorithm fits.
    plans: Mutex<FxHashMap<MatrixProduct, Option<Plan>>>,
    /// Keeps the functions valid.
    _library: Library,
}

// SAFETY: the library's functions may be called from any thread with its handles, and
// plans are behind a lock.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

/// Descriptors of a product, and the algorithm that computes it.
#[derive(Clone, Copy)]
struct Plan {
    desc: Handle,
    layouts: [Handle; 3],
    algorithm: Algorithm,
    workspace: usize,
}

impl CublasLt {
    /// Opens the library for the current device. `variable` looks up environment
    /// variables.
    pub(crate) fn open(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, CudaError> {
        let mut reason = String::new();
        for file in candidates(variable) {
            match Self::open_file(&file) {
                Ok(library) => return Ok(library),
                Err(error) if reason.is_empty() => reason = format!("{}: {error}", file.display()),
                Err(_) => {}
            }
        }
        Err(CudaError::NoLibrary { name: "cuBLASLt", reason })
    }

    fn open_file(file: &PathBuf) -> Result<Self, String> {
        // SAFETY: loading NVIDIA's library runs its initializers, which is what every
        // program that uses it does.
        let library = unsafe { Library::new(file) }.map_err(|error| reason(&error))?;
        let functions = Functions::of(&library).map_err(|error| reason(&error))?;
        // SAFETY: the function takes nothing.
        let version = unsafe { (functions.version)() };
        if version < OLDEST {
            let text = version_text;
            return Err(format!("version {} is older than {}", text(version), text(OLDEST)));
        }
        let (mut handle, mut preference) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (workspace, reductions) = (WORKSPACE, 0u32);
        // SAFETY: the pointers are to locals of the right types and sizes.
        let status = unsafe {
            let set = functions.preference_set;
            [
                (functions.create)(&raw mut handle),
                (functions.preference_create)(&raw mut preference),
                set(preference, PREFERENCE_WORKSPACE, (&raw const workspace).cast(), size_of_val(&workspace)),
                set(preference, PREFERENCE_REDUCTIONS, (&raw const reductions).cast(), 4),
            ]
        };
        // SAFETY: as above.
        let aligned = PREFERENCE_ALIGNMENTS.map(|attribute| unsafe {
            (functions.preference_set)(preference, attribute, std::ptr::from_ref(&ALIGNMENT).cast(), 4)
        });
        if let Some(status) = status.into_iter().chain(aligned).find(|status| *status != 0) {
            return Err(format!("cannot be initialized (status {status})"));
        }
        let info = LibraryInfo {
            path: loaded_path().unwrap_or_else(|| file.clone()),
            version: version_text(version),
        };
        Ok(Self { functions, handle, preference, info, plans: Mutex::default(), _library: library })
    }

    pub(crate) fn info(&self) -> &LibraryInfo {
        &self.info
    }

    /// Queues a product on a stream. Returns whether an algorithm fits.
    pub(crate) fn run(
        &self,
        product: &MatrixProduct,
        addresses: [u64; 4],
        workspace: u64,
        stream: *mut c_void,
    ) -> Result<bool, CudaError> {
        // Held until the product is queued: another thread may drop plans, and what an
        // algorithm queues with the workspace must stay together.
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= KEPT {
            plans.drain().flat_map(|(_, plan)| plan).for_each(|plan| self.destroy(&plan));
        }
        let plan = plans.entry(*product).or_insert_with(|| self.plan(product));
        let Some(plan) = *plan else { return Ok(false) };
        let [out, a, b, residual] = addresses;
        let (one, beta) = (1.0f32, if residual == 0 { 0.0f32 } else { 1.0 });
        let added = if residual == 0 { out } else { residual };
        let [of_a, of_b, of_out] = plan.layouts;
        // SAFETY: descriptors are valid, scalars are read before the call returns, and
        // the rest is device memory.
        let status = unsafe {
            (self.functions.matmul)(
                self.handle,
                plan.desc,
                (&raw const one).cast(),
                b,
                of_b,
                a,
                of_a,
                (&raw const beta).cast(),
                added,
                of_out,
                out,
                of_out,
                &raw const plan.algorithm,
                workspace,
                plan.workspace,
                stream,
            )
        };
        match status {
            0 => Ok(true),
            // An algorithm that does not fit after all: our kernels do.
            INVALID_VALUE | NOT_SUPPORTED => Ok(false),
            status => Err(CudaError::Driver { call: "cublasLtMatmul", name: format!("status {status}") }),
        }
    }

    /// Finds an algorithm. The library sees matrices by columns, so it computes the
    /// transposed product: `b` is its first operand.
    fn plan(&self, product: &MatrixProduct) -> Option<Plan> {
        let functions = &self.functions;
        let dtype = match product.dtype {
            ProductDType::Bf16 => R_16BF,
            ProductDType::F16 => R_16F,
        };
        let of_result = match product.result {
            ProductResult::Rounded => dtype,
            ProductResult::F32 => R_32F,
        };
        let MatrixProduct { rows, columns, depth, .. } = *product;
        let [of_a, of_b] = product.orientations;
        // Rows of memory become columns of the library.
        let shape = |orientation, outer, inner| match orientation {
            Orientation::Rows => (inner, outer),
            Orientation::Columns => (outer, inner),
        };
        let transpose = |orientation| c_int::from(orientation == Orientation::Columns);
        let mut desc = std::ptr::null_mut();
        let mut layouts = [std::ptr::null_mut(); 3];
        let (first, second) = (shape(of_b, depth, columns), shape(of_a, rows, depth));
        let (transposes, strides) = ([transpose(of_b), transpose(of_a)], product.strides);
        let mut choices = [Choice::EMPTY; CHOICES];
        let mut found = 0;
        // SAFETY: the pointers are to locals of the right types and sizes.
        let ok = unsafe {
            let set = |desc, attribute, value: &c_int| {
                (functions.desc_set)(desc, attribute, std::ptr::from_ref(value).cast(), 4)
            };
            let layout = |into: &mut Handle, dtype, (rows, columns): (u64, u64), stride: u64| {
                (functions.layout_create)(into, dtype, rows, columns, stride as i64)
            };
            (functions.desc_create)(&raw mut desc, COMPUTE_32F, R_32F) == 0
                && set(desc, DESC_TRANSPOSE_A, &transposes[0]) == 0
                && set(desc, DESC_TRANSPOSE_B, &transposes[1]) == 0
                && layout(&mut layouts[1], dtype, first, strides[1]) == 0
                && layout(&mut layouts[0], dtype, second, strides[0]) == 0
                && layout(&mut layouts[2], of_result, (columns, rows), columns) == 0
                && (functions.heuristic)(
                    self.handle,
                    desc,
                    layouts[1],
                    layouts[0],
                    layouts[2],
                    layouts[2],
                    self.preference,
                    CHOICES as c_int,
                    choices.as_mut_ptr(),
                    &raw mut found,
                ) == 0
        };
        let choices = if ok { &choices[..usize::try_from(found).unwrap_or(0).min(CHOICES)] } else { &[] };
        let chosen = choices.iter().find(|choice| choice.state == 0 && self.sums_in_order(choice));
        let plan = |choice: &Choice| Plan {
            desc,
            layouts,
            algorithm: choice.algorithm,
            workspace: choice.workspace,
        };
        match chosen {
            Some(choice) => Some(plan(choice)),
            None => {
                self.destroy(&plan(&Choice::EMPTY));
                None
            }
        }
    }

    /// Whether an algorithm sums over the depth in one chain.
    fn sums_in_order(&self, choice: &Choice) -> bool {
        let config = |attribute| {
            let (mut value, mut written) = (0i32, 0);
            // SAFETY: the pointers are to locals of the right types and sizes.
            let status = unsafe {
                let algorithm = &raw const choice.algorithm;
                (self.functions.config_get)(
                    algorithm,
                    attribute,
                    (&raw mut value).cast(),
                    4,
                    &raw mut written,
                )
            };
            (status == 0).then_some(value)
        };
        config(CONFIG_ID).is_some_and(|id| !OTHER_ORDER.contains(&id))
            && config(CONFIG_SPLIT_K).is_some_and(|parts| parts <= 1)
    }

    fn destroy(&self, plan: &Plan) {
        // SAFETY: descriptors are valid or null, which is skipped, and not used again.
        unsafe {
            for layout in plan.layouts.into_iter().filter(|layout| !layout.is_null()) {
                (self.functions.layout_destroy)(layout);
            }
            if !plan.desc.is_null() {
                (self.functions.desc_destroy)(plan.desc);
            }
        }
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more. The handle stays: its device may be gone.
        unsafe { (self.functions.preference_destroy)(self.preference) };
    }
}

impl Choice {
    const EMPTY: Self = Self { algorithm: [0; 8], workspace: 0, state: 1, waves: 0.0, reserved: [0; 4] };
}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CublasLt").field(&self.info).finish()
    }
}

/// The loader's own words, which the error itself leaves out.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// 130100 is 13.1.
fn version_text(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// The file that the loader chose for a plain name.
fn loaded_path() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().filter_map(|line| line.split_whitespace().last());
    path.filter(|path| path.contains("libcublasLt.so")).map(PathBuf::from).next()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::path::Path;
    use std::process::Command;

    use super::*;

    const FUNCTIONS: [&str; 11] = [
        "cublasLtCreate",
        "cublasLtMatmulDescCreate",
        "cublasLtMatmulDescSetAttribute",
        "cublasLtMatmulDescDestroy",
        "cublasLtMatrixLayoutCreate",
        "cublasLtMatrixLayoutDestroy",
        "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute",
        "cublasLtMatmulPreferenceDestroy",
        "cublasLtMatmulAlgoGetHeuristic",
        "cublasLtMatmulAlgoConfigGetAttribute",
    ];

    /// A library with these functions, all of which return a number.
    fn library(folder: &Path, name: &str, functions: &[(&str, usize)]) -> PathBuf {
        let (source, file) = (folder.join("library.c"), folder.join(name));
        let text: String = functions
            .iter()
            .map(|(name, answer)| format!("unsigned long {name}() {{ return {answer}; }}\n"))
            .collect();
        std::fs::write(&source, text).unwrap();
        // Rust itself links with it.
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&file, &source]).status();
        assert!(compiled.unwrap().success());
        file
    }

    fn refusal(file: &Path) -> String {
        let text = file.display().to_string();
        match CublasLt::open(&|name| (name == "WEIGHTLOOM_CUBLASLT").then(|| text.clone())) {
            Err(CudaError::NoLibrary { name: "cuBLASLt", reason }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_library_that_does_not_fit_is_refused_with_the_reason() {
        let folder = std::env::temp_dir().join(format!("weightloom-cublaslt-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let with = |name: &str, version: usize, answer: usize| {
            let others = FUNCTIONS.iter().chain(&["cublasLtMatmul"]).map(|name| (*name, answer));
            let all: Vec<_> = others.chain([("cublasLtGetVersion", version)]).collect();
            library(&folder, name, &all)
        };
        let text = refusal(&with("old.so", 110_803, 0));
        assert!(text.ends_with("old.so: version 11.8.3 is older than 12.0.0"), "{text}");
        // `cublasStatus_t` 1 is "not initialized".
        let text = refusal(&with("broken.so", 130_000, 1));
        assert!(text.ends_with("broken.so: cannot be initialized (status 1)"), "{text}");
        let text = refusal(&library(&folder, "other.so", &[("cublasLtGetVersion", 130_000)]));
        assert!(text.contains("undefined symbol: cublasLtCreate"), "{text}");
        let text = refusal(&folder.join("absent.so"));
        assert!(text.contains("absent.so"), "{text}");
        std::fs::write(folder.join("text.so"), "not a library").unwrap();
        let text = refusal(&folder.join("text.so"));
        assert!(text.contains("text.so"), "{text}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
