//! Compressed files, by their names.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// The compression that a name ends with, and the name without it.
    pub(super) fn split(path: &Path) -> (Option<Self>, PathBuf) {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let compression = match extension.map(str::to_ascii_lowercase).as_deref() {
            Some("gz") => Self::Gzip,
            Some("zst" | "zstd") => Self::Zstd,
            _ => return (None, path.to_owned()),
        };
        (Some(compression), path.with_extension(""))
    }

    /// Reads what is compressed.
    pub(super) fn reader(self, file: File) -> std::io::Result<Box<dyn Read>> {
        let file = BufReader::with_capacity(1 << 20, file);
        Ok(match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(file)),
            Self::Zstd => Box::new(Frames { file: Some(file), frame: None }),
        })
    }
}

/// All frames of a Zstandard file; parallel compressors write several.
struct Frames {
    file: Option<BufReader<File>>,
    frame: Option<Box<ZstdFrame>>,
}

type ZstdFrame = StreamingDecoder<BufReader<File>, ruzstd::decoding::FrameDecoder>;

impl Read for Frames {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        use std::io::BufRead as _;

        if bytes.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(frame) = &mut self.frame {
                match frame.read(bytes)? {
                    0 => self.file = self.frame.take().map(|frame| frame.into_inner()),
                    read => return Ok(read),
                }
            }
            let Some(mut file) = self.file.take() else { return Ok(0) };
            if file.fill_buf()?.is_empty() {
                return Ok(0);
            }
            if let Some(length) = skippable(file.fill_buf()?) {
                let passed = std::io::copy(&mut file.by_ref().take(length), &mut std::io::sink())?;
                if passed < length {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                self.file = Some(file);
                continue;
            }
            let frame = StreamingDecoder::new(file).map_err(std::io::Error::other)?;
            self.frame = Some(Box::new(frame));
        }
    }
}

/// The length of a frame without data, which starts with one of sixteen numbers.
fn skippable(start: &[u8]) -> Option<u64> {
    let [kind, 0x2a, 0x4d, 0x18, one, two, three, four, ..] = *start else { return None };
    let length = u32::from_le_bytes([one, two, three, four]);
    (kind & 0xf0 == 0x50).then_some(u64::from(length) + 8)
}
