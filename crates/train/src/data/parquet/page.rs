//! Pages: their headers and their decompressed bytes.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::error::ParquetError;
use super::metadata::Codec;
use super::snappy;
use super::thrift::{Thrift, ThriftError};
use super::{Source, read_range};

/// The largest page, compressed or not.
const MAX_PAGE: u64 = 1 << 30;

/// Most values of a page.
const MAX_VALUES: u64 = 1 << 26;

/// The first guess at the length of a header, and the longest.
const HEADER: u64 = 512;
const MAX_HEADER: u64 = 16 << 20;

/// A page in memory.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) kind: PageKind,
    pub(super) bytes: Vec<u8>,
    /// Offset of the next page.
    pub(super) next: u64,
}

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(super) enum PageKind {
    Dictionary {
        values: u64,
    },
    Data {
        values: u64,
        encoding: i64,
        levels: Levels,
    },
    /// Nothing that is needed to read values.
    Other,
}

/// Where the levels of a data page are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Levels {
    /// Before the values, each list with its length.
    Inline,
    /// Before the values, with lengths in bytes that the header has.
    Lengths { repeated: usize, defined: usize },
}

/// The header of a page.
struct Header {
    kind: PageKind,
    /// Length of the page as it is stored.
    stored: u64,
    /// Length of the decompressed page.
    plain: u64,
    codec: Codec,
}

impl Page {
    /// Reads the page at an offset of a column that ends at `end`.
    pub(super) fn read(
        source: &mut dyn Source,
        start: u64,
        end: u64,
        codec: Codec,
    ) -> Result<Self, ParquetError> {
        let room = end.saturating_sub(start);
        let mut guess = HEADER.min(room);
        let (header, length) = loop {
            let bytes = read_range(source, start, guess)?;
            match Thrift::read(&bytes) {
                Ok((fields, length)) => break (Header::new(&fields, codec)?, length as u64),
                Err(ThriftError::Early) if guess < room && guess < MAX_HEADER => {
                    guess = (guess * 8).min(room);
                }
                Err(error) => return Err(error.into()),
            }
        };
        let body = start + length;
        let next = body.checked_add(header.stored).filter(|&next| next <= end);
        let next = next.ok_or(ParquetError::Damaged("a page is beyond the end of its column"))?;
        let stored = read_range(source, body, header.stored)?;
        let bytes = match header.kind {
            PageKind::Other => Vec::new(),
            // These levels are never compressed.
            PageKind::Data { levels: Levels::Lengths { repeated, defined }, .. } => {
                let short = ParquetError::Damaged("a page lacks its levels");
                let levels = repeated.checked_add(defined).filter(|&levels| levels <= stored.len());
                let (levels, values) = stored.split_at(levels.ok_or(short)?);
                let plain = header.plain.saturating_sub(levels.len() as u64);
                [levels, &*decompress(values, header.codec, plain)?].concat()
            }
            _ => decompress(&stored, header.codec, header.plain)?,
        };
        Ok(Self { kind: header.kind, bytes, next })
    }
}

impl Header {
    fn new(fields: &Thrift<'_>, codec: Codec) -> Result<Self, ParquetError> {
        let (plain, stored) = (fields.size(2)?, fields.size(3)?);
        if plain > MAX_PAGE || stored > MAX_PAGE {
            return Err(ParquetError::Unsupported("pages of more than 1 GiB".to_owned()));
        }
        let inner = |id| fields.field(id).ok_or(ParquetError::Damaged("a page has no header"));
        let values = |inner: &Thrift<'_>| match inner.size(1)? {
            values if values <= MAX_VALUES => Ok(values),
            _ => Err(ParquetError::Unsupported("pages of more than 67 million values".to_owned())),
        };
        let encoding =
            |inner: &Thrift<'_>, id| inner.int(id).ok_or(ParquetError::Damaged("a page has no encoding"));
        let mut codec = codec;
        let kind = match fields.int(1) {
            Some(0) => {
                let data = inner(5)?;
                // Field 3 is the encoding of definition levels, 4 of repetition levels.
                if data.int(3) == Some(BIT_PACKED) || data.int(4) == Some(BIT_PACKED) {
                    return Err(ParquetError::Unsupported("levels in packed bits".to_owned()));
                }
                PageKind::Data { values: values(data)?, encoding: encoding(data, 2)?, levels: Levels::Inline }
            }
            Some(2) => PageKind::Dictionary { values: values(inner(7)?)? },
            Some(3) => {
                let data = inner(8)?;
                if data.bool(7) == Some(false) {
                    codec = Codec::Plain;
                }
                let length = |id| Ok::<_, ParquetError>(data.size(id)?.min(MAX_PAGE) as usize);
                let levels = Levels::Lengths { repeated: length(6)?, defined: length(5)? };
                PageKind::Data { values: values(data)?, encoding: encoding(data, 4)?, levels }
            }
            _ => PageKind::Other,
        };
        Ok(Self { kind, stored, plain, codec })
    }
}

/// An encoding of levels in very old files.
const BIT_PACKED: i64 = 4;

/// Decompresses a page to a number of bytes.
fn decompress(stored: &[u8], codec: Codec, plain: u64) -> Result<Vec<u8>, ParquetError> {
    let read = |decoder: &mut dyn Read| {
        let mut bytes = Vec::new();
        decoder.take(plain).read_to_end(&mut bytes).map_err(|_| COMPRESSED)?;
        Ok::<_, ParquetError>(bytes)
    };
    let bytes = match codec {
        Codec::Plain => stored.to_vec(),
        // A page without values may be empty.
        _ if stored.is_empty() => Vec::new(),
        Codec::Snappy => snappy::decompress(stored, plain as usize)?,
        Codec::Gzip => read(&mut MultiGzDecoder::new(stored))?,
        Codec::Zstd => read(&mut StreamingDecoder::new(stored).map_err(|_| COMPRESSED)?)?,
    };
    if bytes.len() as u64 == plain {
        Ok(bytes)
    } else {
        Err(ParquetError::Damaged("a page has another size than its header says"))
    }
}

const COMPRESSED: ParquetError = ParquetError::Damaged("a page cannot be decompressed");
