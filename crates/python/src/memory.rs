//! Memory that Rust and Python share.
//!
//! # Why this file contains `unsafe`
//!
//! Python's buffer protocol hands out pointers. Those that Python gives to us stay valid
//! while we hold the buffer, which [`PyMemory`] does; those that we give to Python, while
//! the [`Buffer`] lives, which the view holds. What the protocol cannot promise is that no
//! other thread of the program changes the elements meanwhile, as with every function of
//! NumPy and torch that releases the GIL: the documentation of `save` and `load` says so.

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::slice;
use std::sync::Arc;

use memmap2::{MmapMut, MmapOptions};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::wrong;

/// Contiguous bytes of a Python object, for as long as this lives.
pub(crate) struct PyMemory(PyBuffer<u8>);

impl PyMemory {
    /// The bytes of an object with the buffer protocol, such as `memoryview(array).cast("B")`.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(wrong("the memory is not contiguous", "pass a contiguous copy"));
        }
        Ok(Self(buffer))
    }

    /// The same, to write to.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let memory = Self::of(object)?;
        if memory.0.readonly() {
            return Err(wrong(
                "cannot load into memory that is read-only",
                "pass a writable array or tensor",
            ));
        }
        Ok(memory)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self.0.len_bytes() {
            0 => &[],
            // SAFETY: the buffer is contiguous, holds this many bytes, and stays exported while
            // `self` lives. Callers are asked not to change it meanwhile.
            length => unsafe { slice::from_raw_parts(self.0.buf_ptr().cast(), length) },
        }
    }

    /// The bytes of [`writable`](Self::writable) memory.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.0.len_bytes() {
            0 => &mut [],
            // SAFETY: as in `bytes`; `writable` has checked that it may be written to, and `self`
            // is borrowed mutably.
            length => unsafe { slice::from_raw_parts_mut(self.0.buf_ptr().cast(), length) },
        }
    }
}

impl AsRef<[u8]> for PyMemory {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// A part of a file, mapped so that writes stay in memory.
pub(crate) struct PrivateMap {
    /// Unmapped with this object.
    #[expect(dead_code, reason = "`start` points into it")]
    map: MmapMut,
    start: *mut u8,
    length: usize,
}

// SAFETY: the pointer belongs to the map, which no other thread unmaps; nothing here reads
// or writes through it.
unsafe impl Send for PrivateMap {}
// SAFETY: as above.
unsafe impl Sync for PrivateMap {}

impl PrivateMap {
    /// Maps bytes of a file, which must have them all.
    ///
    /// The file must not be cut short while it is mapped: reads past its end would end the
    /// process, as with every map. Checkpoints are replaced by renaming, which leaves the map
    /// as it is.
    pub(crate) fn new(file: &File, offset: u64, length: usize) -> std::io::Result<Self> {
        if file.metadata()?.len() < offset.saturating_add(length as u64) {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let mut options = MmapOptions::new();
        // Only pages that are written to take memory: files may be larger than it.
        options.offset(offset).len(length).no_reserve_swap();
        // SAFETY: the map is private, of plain bytes, for which any value is valid.
        let mut map = unsafe { options.map_copy(file)? };
        let start = map.as_mut_ptr();
        Ok(Self { map, start, length })
    }
}

/// Bytes for Python, through the buffer protocol.
#[pyclass(frozen, module = "weightloom._weightloom")]
pub(crate) struct Buffer {
    /// Freed with this object.
    #[expect(dead_code, reason = "`start` points into it")]
    memory: BufferMemory,
    start: *mut u8,
    length: usize,
}

/// What a buffer's bytes are in.
pub(crate) enum BufferMemory {
    /// Allocated, and aligned for every dtype.
    Owned(#[expect(dead_code, reason = "held for its memory")] Vec<u128>),
    /// A private map of a file. Buffers of one map have no byte in common.
    Mapped(#[expect(dead_code, reason = "held for its memory")] Arc<PrivateMap>),
}

// SAFETY: the pointer belongs to memory that the buffer owns; Python code that writes to
// it from several threads has to order its writes, as with a `bytearray`.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing here reads or writes through the pointer.
unsafe impl Sync for Buffer {}

/// Memory for `length` bytes, aligned for every dtype.
pub(crate) struct OwnedBytes {
    words: Vec<u128>,
    length: usize,
}

impl OwnedBytes {
    pub(crate) fn zeroed(length: usize) -> Self {
        Self { words: vec![0; length.div_ceil(size_of::<u128>())], length }
    }

    /// The same; `None` if the system does not have as much memory.
    pub(crate) fn try_zeroed(length: usize) -> Option<Self> {
        let words = bytemuck::allocation::try_zeroed_vec(length.div_ceil(size_of::<u128>())).ok()?;
        Some(Self { words, length })
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}

impl From<OwnedBytes> for Buffer {
    fn from(OwnedBytes { mut words, length }: OwnedBytes) -> Self {
        let start = words.as_mut_ptr().cast();
        Self { memory: BufferMemory::Owned(words), start, length }
    }
}

impl Buffer {
    /// A part of a map; `None` if it is not inside.
    pub(crate) fn of_map(map: Arc<PrivateMap>, offset: usize, length: usize) -> Option<Self> {
        if offset.checked_add(length)? > map.length {
            return None;
        }
        let start = map.start.wrapping_add(offset);
        Some(Self { memory: BufferMemory::Mapped(map), start, length })
    }
}

/// Unsigned bytes, in the words of Python's `struct`.
const FORMAT: &CStr = c"B";

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.length
    }

    /// # Safety
    ///
    /// Python calls it with a valid view.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let (start, length) = (slf.get().start, slf.get().length);
        // SAFETY: the view is valid. It holds a reference to this object, whose memory
        // neither moves nor changes its length; the format is static.
        unsafe {
            let failed = ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), length as isize, 0, flags);
            if failed != 0 {
                return Err(PyErr::fetch(slf.py()));
            }
            if flags & ffi::PyBUF_FORMAT != 0 {
                (*view).format = FORMAT.as_ptr().cast_mut();
            }
        }
        Ok(())
    }
}
