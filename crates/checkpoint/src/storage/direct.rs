//! Reading past the page cache, for checkpoints that would not fit into it.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::Path;

use super::local::read_at_most;

/// What offsets, lengths and memory must be multiples of.
const PAGE: usize = 4096;

/// Pages that are read at once.
const PAGES: usize = 1024;

/// Memory as the disk wants it.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

thread_local! {
    static BUFFER: RefCell<Vec<Page>> = const { RefCell::new(Vec::new()) };
}

/// A file that is read past the page cache.
#[derive(Debug)]
pub(super) struct DirectFile(File);

impl DirectFile {
    /// Opens a file; an error where the filesystem cannot do this.
    #[cfg(target_os = "linux")]
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        Ok(Self(File::options().read(true).custom_flags(flags).open(path)?))
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn open(_path: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        BUFFER.with_borrow_mut(|pages| {
            pages.resize(PAGES, Page([0; PAGE]));
            let mut done = 0;
            while done < into.len() {
                let at = offset + done as u64;
                let start = at / PAGE as u64 * PAGE as u64;
                let skip = (at - start) as usize;
                let wanted = (skip + into.len() - done).next_multiple_of(PAGE).min(PAGES * PAGE);
                let buffer: &mut [u8] = &mut bytemuck::cast_slice_mut(pages)[..wanted];
                let read = read_at_most(&self.0, buffer, start)?;
                let found = read.saturating_sub(skip).min(into.len() - done);
                if found == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                into[done..done + found].copy_from_slice(&buffer[skip..skip + found]);
                done += found;
            }
            Ok(())
        })
    }
}
