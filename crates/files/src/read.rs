//! Reads of whole files with a limit: devices and pipes may have no end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use weightloom_errors::FileError;

/// Reads a UTF-8 file of at most `limit` bytes.
///
/// ```
/// use weightloom_files::read_text;
///
/// # let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("report.json");
/// std::fs::write(&path, "{}").unwrap();
/// assert_eq!(read_text(&path, 2)?, "{}");
/// assert!(read_text(&path, 1).is_err());
/// # Ok::<(), weightloom_errors::FileError>(())
/// ```
pub fn read_text(path: &Path, limit: u64) -> Result<String, FileError> {
    let failed = FileError::while_trying_to("read", path);
    let mut text = String::new();
    let file = File::open(path).map_err(&failed)?;
    file.take(limit.saturating_add(1)).read_to_string(&mut text).map_err(&failed)?;
    if text.len() as u64 > limit {
        let message = format!("it has more than {limit} bytes");
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, message)));
    }
    Ok(text)
}
