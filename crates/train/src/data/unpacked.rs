//! Plain copies of files that cannot be read at random: compressed files and
//! Parquet.
//!
//! A copy is written once, by the first rank of a machine that needs it, and
//! found again by path, size and time of change.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use weightloom_errors::FileError;

use super::digest::Digest;
use super::error::DataError;
use super::parquet::{ParquetError, write_rows};
use super::paths::{FoundFile, Kind};

/// Changes when the same file is unpacked to other bytes.
const VERSION: u64 = 1;

/// The plain copy of a file, or the file itself if it is plain.
pub(super) fn plain_file(file: &FoundFile, cache: &Path) -> Result<PathBuf, DataError> {
    if file.compression.is_none() && file.kind != Kind::Parquet {
        return Ok(file.path.clone());
    }
    let copy = cache.join(copy_name(file)?);
    if copy.exists() {
        return Ok(copy);
    }
    fs::create_dir_all(cache).map_err(FileError::while_trying_to("create", cache))?;
    let lock_path = copy.with_extension("lock");
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
    let lock = lock.map_err(FileError::while_trying_to("create", &lock_path))?;
    lock.lock().map_err(FileError::while_trying_to("lock", &lock_path))?;
    // Another rank may have written it in the meantime.
    if !copy.exists() {
        let partial = copy.with_extension("partial");
        let written = unpack(file, &partial).and_then(|()| {
            fs::rename(&partial, &copy).map_err(FileError::while_trying_to("write", &copy))?;
            Ok(())
        });
        if let Err(error) = written {
            // The error of unpacking is the one to report.
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
    }
    Ok(copy)
}

fn copy_name(file: &FoundFile) -> Result<String, DataError> {
    let failed = FileError::while_trying_to("read", &file.path);
    let metadata = fs::metadata(&file.path).map_err(&failed)?;
    let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let path = fs::canonicalize(&file.path).map_err(&failed)?;
    let mut digest = Digest::new();
    digest.number(VERSION);
    digest.text(&path.to_string_lossy());
    digest.number(metadata.len());
    digest.number(changed.map_or(0, |time| time.as_nanos() as u64));
    let mut name = digest.hex();
    name.truncate(32);
    Ok(name + ".data")
}

fn unpack(file: &FoundFile, to: &Path) -> Result<(), DataError> {
    let read_error = FileError::while_trying_to("read", &file.path);
    let write_error = FileError::while_trying_to("write", to);
    let mut source = File::open(&file.path).map_err(&read_error)?;
    let mut plain = BufWriter::with_capacity(1 << 20, File::create(to).map_err(&write_error)?);
    match file.compression {
        None => {
            let mut failure = None;
            let written = write_rows(&mut source, &mut |row| {
                plain.write_all(row).inspect_err(|error| failure = Some(write_error(copy_of(error))))
            });
            if let Some(failure) = failure {
                return Err(failure.into());
            }
            written.map_err(|source| parquet_error(file, source))?;
        }
        Some(compression) => {
            let damaged = |error: std::io::Error| DataError::Compressed {
                file: file.path.display().to_string(),
                reason: error.to_string(),
            };
            let mut reader = compression.reader(source).map_err(damaged)?;
            let mut piece = vec![0; 1 << 20];
            loop {
                match reader.read(&mut piece) {
                    Ok(0) => break,
                    Ok(read) => plain.write_all(&piece[..read]).map_err(&write_error)?,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(damaged(error)),
                }
            }
        }
    }
    plain.flush().map_err(&write_error)?;
    Ok(())
}

/// An error that is passed on and reported.
fn copy_of(error: &std::io::Error) -> std::io::Error {
    match error.raw_os_error() {
        Some(number) => std::io::Error::from_raw_os_error(number),
        None => std::io::Error::new(error.kind(), error.to_string()),
    }
}

fn parquet_error(file: &FoundFile, source: ParquetError) -> DataError {
    DataError::Parquet { file: file.path.display().to_string(), source }
}
