//! NVIDIA's driver.
//!
//! Every call of the driver's library is `unsafe`. The rules: [`library`] has found
//! the library before any function of it is named; handles come from the driver and
//! live as long as the process; copies are between device memory and pinned memory of
//! our own, which is never freed and which the host reaches only by copying whole
//! ranges under a lock; device addresses are numbers that only the device follows.

use std::ffi::{CStr, CString, c_void};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::sys;
use rustc_hash::FxHashMap;

use crate::cublaslt::{CublasLt, WORKSPACE};
use crate::driver::{
    Arg, DeviceInfo, Driver, Grid, Lane, LibraryInfo, MatrixProduct, SLOT_BYTES, SLOTS, Slot, Stream,
};
use crate::error::CudaError;
use crate::kernels::{KERNELS, exists};

/// The oldest CUDA version of a driver that runs our kernels: that of their compiler.
const OLDEST: i32 = 13_000;

/// A GPU of this machine, through its primary context and two streams.
#[derive(Debug)]
pub(crate) struct NvidiaDriver {
    info: DeviceInfo,
    context: Handle<sys::CUcontext>,
    stream: Handle<sys::CUstream>,
    copy_stream: Handle<sys::CUstream>,
    /// Where the compute stream was when the copy stream last had to follow it.
    reached: Handle<sys::CUevent>,
    /// Of uploads, downloads and downloads in the background.
    lanes: [Pinned; 3],
    module: Handle<sys::CUmodule>,
    functions: Mutex<FxHashMap<String, Function>>,
    /// Opened with the first product that it could compute.
    library: OnceLock<Result<CublasLt, CudaError>>,
    /// Of the library.
    workspace: Mutex<Option<u64>>,
    stamps: Mutex<Stamps>,
}

/// Events with the time, reused by every profile.
#[derive(Debug, Default)]
struct Stamps {
    events: Vec<Handle<sys::CUevent>>,
    used: usize,
}

/// The pinned memory of a lane, allocated with its first use, and the marks of its
/// slots.
#[derive(Debug)]
struct Pinned {
    memory: Mutex<Option<Handle<*mut u8>>>,
    marks: [Handle<sys::CUevent>; SLOTS],
}

/// Shared memory that every kernel may use.
const UNASKED_SHARED: u32 = 48 << 10;

/// A kernel.
#[derive(Clone, Copy, Debug)]
struct Function {
    handle: Handle<sys::CUfunction>,
    /// Bytes of shared memory that its blocks may ask for.
    allowed: u32,
}

impl Function {
    fn allow(&mut self, shared: u32) -> Result<sys::CUfunction, CudaError> {
        if shared > self.allowed {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(shared).unwrap_or(i32::MAX);
            // SAFETY: the function is one of a loaded module.
            check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(self.handle.0, attribute, bytes) })?;
            self.allowed = shared;
        }
        Ok(self.handle.0)
    }
}

/// A handle of the driver.
#[derive(Clone, Copy, Debug)]
struct Handle<T>(T);

// SAFETY: the driver's functions may be called with any handle from any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; a handle is a number that this program never follows.
unsafe impl<T> Sync for Handle<T> {}

/// Finds and initializes the driver's library, once.
fn library() -> Result<(), CudaError> {
    static FOUND: OnceLock<Result<(), CudaError>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            // SAFETY: loading NVIDIA's driver library runs its initializers, which is
            // what every CUDA program does.
            if !unsafe { sys::is_culib_present() } {
                return Err(CudaError::NoDriver);
            }
            // SAFETY: the library is present.
            let result = unsafe { sys::cuInit(0) };
            if result != sys::CUresult::CUDA_SUCCESS {
                check_permission(&open_device)?;
            }
            match result {
                sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(()),
                result => check("cuInit", result),
            }?;
            let mut version = 0;
            // SAFETY: the pointer is to a local of the right type.
            check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
            if version < OLDEST {
                let (found, needed) = (version_text(version), version_text(OLDEST));
                return Err(CudaError::OldDriver { found, needed });
            }
            Ok(())
        })
        .clone()
}

/// GPUs whose device files are tried.
const MOST_DEVICES: u8 = 16;

/// Opens a device file, as the driver does.
fn open_device(path: &Path) -> io::Result<()> {
    File::options().read(true).write(true).open(path).map(drop)
}

/// Fails if this user may not open a device file: the driver then finds no GPU, and
/// does not say why.
fn check_permission(open: &dyn Fn(&Path) -> io::Result<()>) -> Result<(), CudaError> {
    let gpus = (0..MOST_DEVICES).map(|ordinal| (ordinal, format!("/dev/nvidia{ordinal}")));
    let control = (0, "/dev/nvidiactl".to_owned());
    for (ordinal, file) in std::iter::once(control).chain(gpus) {
        if let Err(error) = open(file.as_ref())
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            return Err(CudaError::NotAllowed { ordinal, name: file });
        }
    }
    Ok(())
}

/// The name of a result, such as `CUDA_ERROR_OUT_OF_MEMORY`.
fn name(result: sys::CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the pointer is to a local; the driver sets it to a static text or null.
    unsafe {
        if sys::cuGetErrorName(result, &raw mut text) == sys::CUresult::CUDA_SUCCESS && !text.is_null() {
            return CStr::from_ptr(text).to_string_lossy().into_owned();
        }
    }
    format!("error {}", result as u32)
}

fn check(call: &'static str, result: sys::CUresult) -> Result<(), CudaError> {
    use sys::CUresult as R;
    match result {
        R::CUDA_SUCCESS => Ok(()),
        // These end all work of the context.
        R::CUDA_ERROR_ILLEGAL_ADDRESS
        | R::CUDA_ERROR_LAUNCH_FAILED
        | R::CUDA_ERROR_LAUNCH_TIMEOUT
        | R::CUDA_ERROR_ASSERT
        | R::CUDA_ERROR_HARDWARE_STACK_ERROR
        | R::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | R::CUDA_ERROR_MISALIGNED_ADDRESS
        | R::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | R::CUDA_ERROR_INVALID_PC
        | R::CUDA_ERROR_ECC_UNCORRECTABLE
        | R::CUDA_ERROR_DEVICE_UNAVAILABLE => Err(CudaError::Lost { call, name: name(result) }),
        R::CUDA_ERROR_OUT_OF_MEMORY => Err(CudaError::NoRoom { call, name: name(result) }),
        _ => Err(CudaError::Driver { call, name: name(result) }),
    }
}

fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The result of loading the kernels.
fn load(call: &'static str, result: sys::CUresult) -> Result<(), CudaError> {
    use sys::CUresult as R;
    match result {
        R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | R::CUDA_ERROR_INVALID_IMAGE
        | R::CUDA_ERROR_INVALID_PTX
        | R::CUDA_ERROR_NO_BINARY_FOR_GPU => {
            Err(CudaError::OldDriver { found: name(result), needed: version_text(OLDEST) })
        }
        result => check(call, result),
    }
}

impl NvidiaDriver {
    /// The number of GPUs.
    pub(crate) fn count() -> Result<usize, CudaError> {
        library()?;
        let mut count = 0;
        // SAFETY: the pointer is to a local of the right type.
        let found = match unsafe { sys::cuDeviceGetCount(&raw mut count) } {
            sys::CUresult::CUDA_ERROR_NO_DEVICE | sys::CUresult::CUDA_ERROR_NOT_INITIALIZED => 0,
            result => check("cuDeviceGetCount", result).map(|()| usize::try_from(count).unwrap_or(0))?,
        };
        if found == 0 {
            check_permission(&open_device)?;
        }
        Ok(found)
    }

    /// Opens a GPU and loads the kernels.
    pub(crate) fn open(ordinal: u8) -> Result<Self, CudaError> {
        let found = Self::count()?;
        if usize::from(ordinal) >= found {
            return Err(CudaError::NoDevice { ordinal, found });
        }
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the pointers are to locals of the right types.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&raw mut device, i32::from(ordinal)))?;
            match sys::cuDevicePrimaryCtxRetain(&raw mut context, device) {
                result @ (sys::CUresult::CUDA_ERROR_NOT_PERMITTED
                | sys::CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
                | sys::CUresult::CUDA_ERROR_OPERATING_SYSTEM) => {
                    return Err(CudaError::NotAllowed { ordinal, name: name(result) });
                }
                result => check("cuDevicePrimaryCtxRetain", result)?,
            }
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
        }
        let info = info(device)?;
        if info.capability.0 < 8 {
            let (major, minor) = info.capability;
            return Err(CudaError::Capability { major, minor });
        }
        let (mut stream, mut copy_stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut module = std::ptr::null_mut();
        // SAFETY: the pointers are to locals of the right types, and the fatbin is
        // static.
        unsafe {
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            check("cuStreamCreate", sys::cuStreamCreate(&raw mut stream, flags))?;
            check("cuStreamCreate", sys::cuStreamCreate(&raw mut copy_stream, flags))?;
            load("cuModuleLoadData", sys::cuModuleLoadData(&raw mut module, KERNELS.as_ptr().cast()))?;
        }
        Ok(Self {
            info,
            context: Handle(context),
            stream: Handle(stream),
            copy_stream: Handle(copy_stream),
            reached: event(UNTIMED)?,
            lanes: [Pinned::new()?, Pinned::new()?, Pinned::new()?],
            module: Handle(module),
            functions: Mutex::default(),
            library: OnceLock::new(),
            workspace: Mutex::new(None),
            stamps: Mutex::default(),
        })
    }

    /// Makes the device current on this thread.
    fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained for the life of the process.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context.0) })
    }

    fn stream(&self, stream: Stream) -> sys::CUstream {
        match stream {
            Stream::Compute => self.stream.0,
            Stream::Copy => self.copy_stream.0,
        }
    }

    fn lane(&self, lane: Lane) -> &Pinned {
        &self.lanes[lane as usize]
    }

    /// Calls `use_it` with the address of bytes of a slot, under the lane's lock.
    fn with_slot<T>(
        &self,
        slot: Slot,
        (at, bytes): (usize, usize),
        use_it: impl FnOnce(*mut u8) -> T,
    ) -> Result<T, CudaError> {
        if slot.number >= SLOTS || at.checked_add(bytes).is_none_or(|end| end > SLOT_BYTES) {
            return Err(CudaError::OutsideBlock { call: "copy", offset: at, bytes, size: SLOT_BYTES });
        }
        let mut memory = self.lane(slot.lane).memory.lock().unwrap_or_else(PoisonError::into_inner);
        let start = match *memory {
            Some(start) => start.0,
            None => {
                self.enter()?;
                let mut start = std::ptr::null_mut();
                // SAFETY: the pointer is to a local of the right type.
                check("cuMemHostAlloc", unsafe {
                    sys::cuMemHostAlloc(&raw mut start, SLOTS * SLOT_BYTES, sys::CU_MEMHOSTALLOC_PORTABLE)
                })?;
                memory.insert(Handle(start.cast())).0
            }
        };
        // SAFETY: the memory has `SLOTS` slots, and the bytes are inside this one.
        Ok(use_it(unsafe { start.add(slot.number * SLOT_BYTES + at) }))
    }

    fn cublaslt(&self) -> Result<&CublasLt, CudaError> {
        let opened = self.library.get_or_init(|| {
            self.enter()?;
            CublasLt::open(&|name| std::env::var(name).ok())
        });
        opened.as_ref().map_err(Clone::clone)
    }

    /// The library's workspace, allocated when it is first needed.
    fn workspace(&self) -> Result<u64, CudaError> {
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = *workspace {
            return Ok(address);
        }
        let none = || CudaError::NoRoom { call: "cuMemAlloc", name: "cuBLASLt's workspace".to_owned() };
        Ok(*workspace.insert(self.allocate(WORKSPACE)?.ok_or_else(none)?))
    }

    /// A kernel whose blocks may ask for this much shared memory.
    fn function(&self, name: &str, shared: u32) -> Result<sys::CUfunction, CudaError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get_mut(name) {
            return function.allow(shared);
        }
        let unknown = || CudaError::UnknownKernel { name: name.to_owned() };
        if !exists(name) {
            return Err(unknown());
        }
        let text = CString::new(name).map_err(|_| unknown())?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends in a zero.
        check("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&raw mut function, self.module.0, text.as_ptr())
        })?;
        let function = Function { handle: Handle(function), allowed: UNASKED_SHARED };
        functions.entry(name.to_owned()).or_insert(function).allow(shared)
    }
}

impl Pinned {
    fn new() -> Result<Self, CudaError> {
        Ok(Self {
            memory: Mutex::new(None),
            marks: [event(UNTIMED)?, event(UNTIMED)?, event(UNTIMED)?, event(UNTIMED)?],
        })
    }
}

/// Of events that only order work.
const UNTIMED: sys::CUevent_flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;

/// A new event of the current device.
fn event(flags: sys::CUevent_flags) -> Result<Handle<sys::CUevent>, CudaError> {
    let mut event = std::ptr::null_mut();
    // SAFETY: the pointer is to a local of the right type.
    check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags as u32) })?;
    Ok(Handle(event))
}

fn info(device: sys::CUdevice) -> Result<DeviceInfo, CudaError> {
    use sys::CUdevice_attribute as A;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: the pointer is to a local of the right type.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) })
            .map(|()| u32::try_from(value).unwrap_or(0))
    };
    let (mut name, mut memory, mut version) = ([0; 256], 0, 0);
    // SAFETY: the driver writes at most 256 bytes with a final zero; the other
    // pointers are to locals of the right types.
    let name = unsafe {
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), 256, device))?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&raw mut memory, device))?;
        check("cuDriverGetVersion", sys::cuDriverGetVersion(&raw mut version))?;
        CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
    };
    Ok(DeviceInfo {
        name,
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        memory,
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        driver_version: u32::try_from(version).unwrap_or(0),
    })
}

impl Driver for NvidiaDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to locals of the right type.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok((free, total))
    }

    fn allocate(&self, bytes: usize) -> Result<Option<u64>, CudaError> {
        self.enter()?;
        let mut address = 0;
        // SAFETY: the pointer is to a local of the right type.
        match unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) } {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            result => check("cuMemAlloc", result).map(|()| Some(address)),
        }
    }

    fn free(&self, address: u64) {
        // An error here is one of earlier work, which the next call reports too.
        if self.enter().is_ok() {
            // SAFETY: the address is one of `allocate`, returned once. The driver
            // waits for queued work.
            let _ = unsafe { sys::cuMemFree_v2(address) };
        }
    }

    fn stage(&self, slot: Slot, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: both ranges are valid for the length and apart; the lock is held.
        self.with_slot(slot, (at, bytes.len()), |memory| unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len());
        })
    }

    fn unstage(&self, slot: Slot, bytes: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: as above.
        self.with_slot(slot, (0, bytes.len()), |memory| unsafe {
            std::ptr::copy_nonoverlapping(memory, bytes.as_mut_ptr(), bytes.len());
        })
    }

    fn upload(&self, to: u64, slot: Slot, at: usize, bytes: usize) -> Result<(), CudaError> {
        self.enter()?;
        let stream = self.stream(slot.lane.stream());
        // SAFETY: the slot is pinned memory that is never freed.
        let result = self.with_slot(slot, (at, bytes), |memory| unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, memory.cast(), bytes, stream)
        })?;
        check("cuMemcpyHtoDAsync", result)
    }

    fn download(&self, from: u64, slot: Slot, bytes: usize) -> Result<(), CudaError> {
        self.enter()?;
        let stream = self.stream(slot.lane.stream());
        // SAFETY: as above.
        let result = self.with_slot(slot, (0, bytes), |memory| unsafe {
            sys::cuMemcpyDtoHAsync_v2(memory.cast(), from, bytes, stream)
        })?;
        check("cuMemcpyDtoHAsync", result)
    }

    fn mark(&self, slot: Slot) -> Result<(), CudaError> {
        self.enter()?;
        let mark = self.lane(slot.lane).marks[slot.number % SLOTS].0;
        // SAFETY: event and stream live as long as the process.
        check("cuEventRecord", unsafe { sys::cuEventRecord(mark, self.stream(slot.lane.stream())) })
    }

    fn wait(&self, slot: Slot) -> Result<(), CudaError> {
        self.enter()?;
        let mark = self.lane(slot.lane).marks[slot.number % SLOTS].0;
        // SAFETY: the event lives as long as the process.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(mark) })
    }

    fn follow(&self) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: events and streams live as long as the process.
        unsafe {
            check("cuEventRecord", sys::cuEventRecord(self.reached.0, self.stream.0))?;
            check("cuStreamWaitEvent", sys::cuStreamWaitEvent(self.copy_stream.0, self.reached.0, 0))
        }
    }

    fn set(&self, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: only device memory is written.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(to, byte, bytes, self.stream.0) })
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: only device memory is read and written.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream.0) })
    }

    fn launch(&self, kernel: &str, grid: Grid, args: &[Arg<'_>]) -> Result<(), CudaError> {
        self.enter()?;
        let function = self.function(kernel, grid.shared)?;
        let mut arguments: Vec<*mut c_void> = args.iter().map(argument).collect();
        let [x, y, z] = grid.blocks;
        // SAFETY: every argument points to a value that outlives the call; the driver
        // copies it. The kernel reads and writes device memory only.
        check("cuLaunchKernel", unsafe {
            let (stream, none) = (self.stream.0, std::ptr::null_mut());
            sys::cuLaunchKernel(
                function,
                x,
                y,
                z,
                grid.threads,
                1,
                1,
                grid.shared,
                stream,
                arguments.as_mut_ptr(),
                none,
            )
        })
    }

    fn library(&self) -> Result<LibraryInfo, CudaError> {
        self.cublaslt().map(|library| library.info().clone())
    }

    fn product(&self, product: &MatrixProduct, addresses: [u64; 4]) -> Result<bool, CudaError> {
        let Ok(library) = self.cublaslt() else { return Ok(false) };
        self.enter()?;
        library.run(product, addresses, self.workspace()?, self.stream.0.cast())
    }

    fn stamp(&self) -> Result<u64, CudaError> {
        self.enter()?;
        let mut stamps = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        if stamps.used == stamps.events.len() {
            stamps.events.push(event(sys::CUevent_flags::CU_EVENT_DEFAULT)?);
        }
        let number = stamps.used;
        // SAFETY: event and stream live as long as the process.
        check("cuEventRecord", unsafe { sys::cuEventRecord(stamps.events[number].0, self.stream.0) })?;
        stamps.used += 1;
        Ok(number as u64)
    }

    fn restart_stamps(&self) -> Result<u64, CudaError> {
        self.stamps.lock().unwrap_or_else(PoisonError::into_inner).used = 0;
        self.stamp()
    }

    fn seconds_between(&self, first: u64, second: u64) -> Result<f64, CudaError> {
        self.enter()?;
        let stamps = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        let [first, second] = [first, second].map(|number| stamps.events.get(number as usize));
        let (Some(first), Some(second)) = (first, second) else { return Ok(0.0) };
        let mut milliseconds = 0.0;
        // SAFETY: the pointer is to a local of the right type; events live as long as
        // the process.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime_v2(&raw mut milliseconds, first.0, second.0)
        })?;
        Ok(f64::from(milliseconds) * 1e-3)
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the stream lives as long as the process.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream.0) })
    }
}

/// A pointer to the value of an argument. The driver only reads it.
fn argument(arg: &Arg<'_>) -> *mut c_void {
    static NULL: u64 = 0;
    match arg {
        Arg::Address(value) | Arg::U64(value) => std::ptr::from_ref(value).cast_mut().cast(),
        Arg::Null => (&raw const NULL).cast_mut().cast(),
        Arg::I64(value) => std::ptr::from_ref(value).cast_mut().cast(),
        Arg::I32(value) => std::ptr::from_ref(value).cast_mut().cast(),
        Arg::F64(value) => std::ptr::from_ref(value).cast_mut().cast(),
        Arg::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_file_that_may_not_be_opened_is_named() {
        let answers = |denied: &'static str| {
            move |path: &Path| match path.to_str() {
                Some(file) if file == denied => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
                Some("/dev/nvidiactl" | "/dev/nvidia0" | "/dev/nvidia1") => Ok(()),
                _ => Err(io::Error::from(io::ErrorKind::NotFound)),
            }
        };
        assert_eq!(check_permission(&answers("nothing")), Ok(()));
        for (ordinal, file) in [(0, "/dev/nvidiactl"), (0, "/dev/nvidia0"), (1, "/dev/nvidia1")] {
            let error = CudaError::NotAllowed { ordinal, name: file.to_owned() };
            assert_eq!(check_permission(&answers(file)), Err(error));
        }
    }
}
