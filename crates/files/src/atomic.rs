//! A temporary file that replaces its target when it is committed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};
use weightloom_errors::FileError;

/// Length of the unique part of temporary names.
pub(crate) const TOKEN: usize = 10;

/// How long the result of an atomic write lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing. The contents survive the process, but a power failure may
    /// leave an empty or incomplete file.
    None,
    /// The file is on disk before it replaces the target. A power failure
    /// leaves the old contents or the new ones.
    File,
    /// The file and the entry in its folder are on disk. The new contents
    /// survive a power failure.
    FileAndFolder,
}

/// Replaces the contents of `path`, or creates it, in one step.
///
/// A symbolic link at `path` is replaced, not followed.
pub fn write_atomic(path: &Path, bytes: &[u8], durability: Durability) -> Result<(), FileError> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes).map_err(FileError::while_trying_to("write", path))?;
    file.commit(durability)
}

/// A file that becomes visible at its path when it is committed.
///
/// Dropping it without [`commit`](Self::commit) removes the temporary file and
/// leaves the target unchanged. Writes are not buffered.
///
/// ```
/// use std::io::Write;
/// use weightloom_files::{AtomicFile, Durability};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("log.txt");
/// let mut file = AtomicFile::create(&path)?;
/// file.write_all(b"first line\n").unwrap();
/// assert!(!path.exists());
/// file.commit(Durability::FileAndFolder)?;
/// assert!(path.exists());
/// # Ok::<(), weightloom_errors::FileError>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    temporary: NamedTempFile,
    target: PathBuf,
}

impl AtomicFile {
    /// Creates the temporary file in the folder of `target`, which must exist.
    pub fn create(target: &Path) -> Result<Self, FileError> {
        // `make_in` rather than `tempfile_in`: the file gets the permissions of
        // an ordinary one, and errors do not mention the temporary name.
        let temporary = Builder::new()
            .prefix(&hidden_name(target, ""))
            .suffix(".partial")
            .rand_bytes(TOKEN)
            .make_in(folder_of(target), |path| File::create_new(path))
            .map_err(FileError::while_trying_to("write", target))?;
        Ok(Self { temporary, target: target.to_owned() })
    }

    /// Renames the temporary file to the target.
    pub fn commit(self, durability: Durability) -> Result<(), FileError> {
        let Self { temporary, target } = self;
        check_length(&temporary).map_err(FileError::while_trying_to("write", &target))?;
        let renamed = match durability {
            Durability::None => Ok(()),
            Durability::File | Durability::FileAndFolder => temporary.as_file().sync_all(),
        }
        .and_then(|()| temporary.persist(&target).map_err(|error| error.error));
        renamed.map_err(FileError::while_trying_to("write", &target))?;
        match durability {
            Durability::None | Durability::File => Ok(()),
            Durability::FileAndFolder => sync_folder(folder_of(&target)),
        }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.temporary.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temporary.as_file_mut().flush()
    }
}

/// Checks that the temporary name still leads to the file that was written.
fn check_length(temporary: &NamedTempFile) -> io::Result<()> {
    let (written, found) = (temporary.as_file().metadata()?, fs::symlink_metadata(temporary.path())?);
    if !found.is_file() || found.len() != written.len() {
        return Err(io::Error::other("another process changed the temporary file"));
    }
    Ok(())
}

/// Waits until the entries of a folder are on disk, renamed files included.
///
/// Does nothing where the operating system cannot open folders.
pub fn sync_folder(folder: &Path) -> Result<(), FileError> {
    if !cfg!(unix) {
        return Ok(());
    }
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(FileError::while_trying_to("sync", folder))
}

/// The folder of a path, `.` for a bare name.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The hidden name `.target.end`, shortened so that random characters and a
/// suffix fit into the 255 bytes that file systems allow.
pub(crate) fn hidden_name(target: &Path, end: &str) -> String {
    const LONGEST: usize = 200;
    let mut name = format!(".{}", target.file_name().unwrap_or_default().to_string_lossy());
    while name.len() > LONGEST {
        name.pop();
    }
    format!("{name}.{end}")
}
