//! Writes a small distributed checkpoint of two ranks into a new folder, for
//! `tests/fixtures/dcp/check_written.py` to load with torch.
//!
//! Element `i` of a tensor has the value `i % 100`, row by row.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use serde_json::json;
use weightloom_checkpoint::formats::dcp::{self, DcpItem, DcpRank, DcpValue};
use weightloom_layout::{DType, Region, Shape};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("give a folder")?);
    fs::create_dir_all(&folder)?;
    let ranks = ranks()?;
    for (number, rank) in ranks.iter().enumerate() {
        let file = rank.lay_out()?;
        let mut bytes = vec![0; file.length as usize];
        let mut put = |at: u64, part: &[u8]| bytes[at as usize..][..part.len()].copy_from_slice(part);
        for (offset, value) in &file.values {
            put(*offset, value);
        }
        for (item, placed) in rank.items.iter().zip(&file.items) {
            let data = elements(item)?;
            put(placed.offset, &placed.prefix);
            put(placed.data.start, &data);
            put(placed.data.end, &placed.suffix(crc32fast::hash(&data)));
        }
        fs::write(folder.join(dcp::file_name(number)), bytes)?;
    }
    fs::write(folder.join(dcp::METADATA_FILE), dcp::metadata(&ranks)?)?;
    Ok(())
}

fn ranks() -> Result<[DcpRank; 2], Box<dyn Error>> {
    let item = |name: &str, dtype, shape: &[usize], start: &[usize], size: &[usize]| {
        let (shape, region) = (Shape::new(shape)?, Region::new(start, size)?);
        Ok::<_, Box<dyn Error>>(DcpItem { name: name.to_owned(), dtype, shape, region })
    };
    let value = |name: &str, value| DcpValue { name: name.to_owned(), value };
    let mut first = DcpRank {
        items: vec![
            item("model.rows", DType::F32, &[5, 3], &[0, 0], &[3, 3])?,
            item("model.columns", DType::Bf16, &[4, 6], &[0, 0], &[4, 4])?,
            item("model.empty", DType::F32, &[0, 2], &[0, 0], &[0, 2])?,
            item("model.scalar", DType::F64, &[], &[], &[])?,
        ],
        values: vec![value("step", json!(7)), value("name", json!("naïve")), value("nothing", json!(null))],
    };
    for dtype in DType::ALL {
        first.items.push(item(&format!("dtypes.{dtype}"), dtype, &[7], &[0], &[7])?);
    }
    let second = DcpRank {
        items: vec![
            item("model.rows", DType::F32, &[5, 3], &[3, 0], &[2, 3])?,
            item("model.columns", DType::Bf16, &[4, 6], &[0, 4], &[4, 2])?,
        ],
        values: vec![
            value("nested", json!([1, -2.5, true, {"a": [null, "b"]}])),
            value("large", json!([i64::MIN, u64::MAX, 1u64 << 40])),
        ],
    };
    Ok([first, second])
}

fn elements(item: &DcpItem) -> Result<Vec<u8>, Box<dyn Error>> {
    let runs = item.region.runs(&item.shape)?;
    Ok(runs.flatten().flat_map(|index| element(item.dtype, (index % 100) as u8)).collect())
}

fn element(dtype: DType, value: u8) -> Vec<u8> {
    let float = f32::from(value);
    match dtype {
        DType::F64 => f64::from(value).to_le_bytes().to_vec(),
        DType::F32 => float.to_le_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f32(float).to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(float).to_le_bytes().to_vec(),
        // The bits of 0 to 6 in the two small formats.
        DType::F8E4M3 => vec![[0, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c][usize::from(value)]],
        DType::F8E5M2 => vec![[0, 0x3c, 0x40, 0x42, 0x44, 0x45, 0x46][usize::from(value)]],
        DType::Bool => vec![value.min(1)],
        dtype => {
            let mut bytes = vec![0; dtype.size()];
            bytes[0] = value;
            bytes
        }
    }
}
