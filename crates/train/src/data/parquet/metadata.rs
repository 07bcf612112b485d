//! The footer of a file: schema, row groups and column chunks.

use std::io::SeekFrom;

use super::error::ParquetError;
use super::schema::Schema;
use super::thrift::Thrift;
use super::{Source, read_range};

/// The largest footer.
const MAX_FOOTER: u64 = 256 << 20;

/// What a file consists of.
#[derive(Debug)]
pub(super) struct Metadata {
    pub(super) schema: Schema,
    pub(super) row_groups: Vec<RowGroup>,
}

/// Rows that are stored together.
#[derive(Debug)]
pub(super) struct RowGroup {
    pub(super) rows: u64,
    /// In the order of the leaves of the schema.
    pub(super) columns: Vec<ColumnChunk>,
}

/// The values of a column in a row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ColumnChunk {
    /// Offset of the first page.
    pub(super) start: u64,
    /// Length of all pages.
    pub(super) bytes: u64,
    /// Values with their nulls.
    pub(super) values: u64,
    pub(super) codec: Codec,
}

/// The compression of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Plain,
    Snappy,
    Gzip,
    Zstd,
}

impl Codec {
    fn new(number: i64) -> Result<Self, ParquetError> {
        let name = match number {
            0 => return Ok(Self::Plain),
            1 => return Ok(Self::Snappy),
            2 => return Ok(Self::Gzip),
            6 => return Ok(Self::Zstd),
            3 => "LZO".to_owned(),
            4 => "Brotli".to_owned(),
            5 | 7 => "LZ4".to_owned(),
            other => format!("number {other}"),
        };
        Err(ParquetError::Unsupported(format!("the compression {name}")))
    }
}

impl Metadata {
    pub(super) fn read(source: &mut dyn Source) -> Result<Self, ParquetError> {
        let length = source.seek(SeekFrom::End(0))?;
        if length < 12 {
            return Err(ParquetError::NotParquet);
        }
        let end = read_range(source, length - 8, 8)?;
        match &end[4..] {
            b"PAR1" => {}
            b"PARE" => return Err(ParquetError::Encrypted),
            _ => return Err(ParquetError::NotParquet),
        }
        let bytes = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
        if bytes > MAX_FOOTER || bytes > length - 12 {
            return Err(ParquetError::Damaged("the footer is larger than the file"));
        }
        let footer = read_range(source, length - 8 - bytes, bytes)?;
        let (file, _) = Thrift::read(&footer)?;
        let schema = Schema::new(file.list(2))?;
        let row_groups = file.list(4).iter().map(|group| row_group(group, &schema, length));
        let row_groups = row_groups.collect::<Result<_, _>>()?;
        Ok(Self { schema, row_groups })
    }
}

fn row_group(group: &Thrift<'_>, schema: &Schema, length: u64) -> Result<RowGroup, ParquetError> {
    let columns = group.list(1).iter().map(|chunk| {
        let data = chunk.field(3).ok_or(ParquetError::Damaged("a column has no metadata"))?;
        let first_page = data.size(9)?;
        // Some writers set the offset to 0 where there is no dictionary.
        let dictionary = data.int(11).filter(|&offset| offset > 0).map(|offset| offset as u64);
        let start = dictionary.map_or(first_page, |offset| offset.min(first_page));
        let chunk = ColumnChunk {
            start,
            bytes: data.size(7)?,
            values: data.size(5)?,
            codec: Codec::new(data.int(4).unwrap_or(0))?,
        };
        match chunk.start.checked_add(chunk.bytes) {
            Some(end) if end <= length => Ok(chunk),
            _ => Err(ParquetError::Damaged("a column is beyond the end of the file")),
        }
    });
    let columns: Vec<ColumnChunk> = columns.collect::<Result<_, _>>()?;
    if columns.len() != schema.leaves.len() {
        return Err(ParquetError::Damaged("a row group lacks columns of the schema"));
    }
    Ok(RowGroup { rows: group.size(3)?, columns })
}
