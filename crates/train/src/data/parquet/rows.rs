//! Rows as JSON objects, assembled from columns.

use std::io::Write as _;

use super::Source;
use super::column::{Column, Value};
use super::error::ParquetError;
use super::metadata::Metadata;
use super::schema::{Node, NodeKind, Repetition};

/// Calls `write` with each row, an object in one line with its line break.
pub(in crate::data) fn write_rows<S: std::io::Read + std::io::Seek>(
    source: &mut S,
    write: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(), ParquetError> {
    let metadata = Metadata::read(source)?;
    let mut row = Vec::new();
    for group in &metadata.row_groups {
        let leaves = metadata.schema.leaves.iter().zip(&group.columns);
        let columns = leaves.map(|(&leaf, &chunk)| Column::new(leaf, chunk)).collect();
        let mut rows = Rows { source, columns, json: std::mem::take(&mut row) };
        for _ in 0..group.rows {
            rows.json.clear();
            rows.object(&metadata.schema.columns)?;
            rows.json.push(b'\n');
            write(&rows.json)?;
        }
        row = rows.json;
    }
    Ok(())
}

struct Rows<'a> {
    source: &'a mut dyn Source,
    columns: Vec<Column>,
    json: Vec<u8>,
}

impl Rows<'_> {
    fn object(&mut self, columns: &[Node]) -> Result<(), ParquetError> {
        self.json.push(b'{');
        for (at, column) in columns.iter().enumerate() {
            if at > 0 {
                self.json.push(b',');
            }
            self.text(&column.name)?;
            self.json.push(b':');
            self.node(column)?;
        }
        self.json.push(b'}');
        Ok(())
    }

    /// Writes a column whose parent is there.
    fn node(&mut self, node: &Node) -> Result<(), ParquetError> {
        match node.repetition {
            Repetition::Required => self.value(node),
            Repetition::Optional if self.is_defined(node)? => self.value(node),
            Repetition::Optional => {
                self.skip(node)?;
                self.json.extend_from_slice(b"null");
                Ok(())
            }
            Repetition::Repeated => self.list(node),
        }
    }

    /// Writes the values of a repeated column.
    fn list(&mut self, repeated: &Node) -> Result<(), ParquetError> {
        self.json.push(b'[');
        let mut first = true;
        self.each(repeated, &mut |rows| {
            if !std::mem::take(&mut first) {
                rows.json.push(b',');
            }
            match &repeated.kind {
                // The level of a list that holds its element alone.
                NodeKind::Group(inner) if inner.len() == 1 && repeated.name != "array" => {
                    rows.node(&inner[0])
                }
                _ => rows.value(repeated),
            }
        })?;
        self.json.push(b']');
        Ok(())
    }

    /// Calls `visit` for each value of a repeated column.
    fn each(
        &mut self,
        repeated: &Node,
        visit: &mut dyn FnMut(&mut Self) -> Result<(), ParquetError>,
    ) -> Result<(), ParquetError> {
        if !self.is_defined(repeated)? {
            return self.skip(repeated);
        }
        loop {
            visit(self)?;
            let next = self.columns[repeated.first_leaf].peek(self.source)?;
            if next.is_none_or(|level| level.repeated != repeated.repeated) {
                return Ok(());
            }
        }
    }

    /// Writes a value that is there.
    fn value(&mut self, node: &Node) -> Result<(), ParquetError> {
        match &node.kind {
            NodeKind::Leaf => self.leaf(node.first_leaf),
            NodeKind::Group(columns) => self.object(columns),
            NodeKind::List(repeated) => self.list(repeated),
            NodeKind::Map(pairs) => self.map(pairs),
        }
    }

    fn map(&mut self, pairs: &Node) -> Result<(), ParquetError> {
        let NodeKind::Group(pair) = &pairs.kind else { return self.list(pairs) };
        self.json.push(b'{');
        let mut first = true;
        self.each(pairs, &mut |rows| {
            if !std::mem::take(&mut first) {
                rows.json.push(b',');
            }
            let key = rows.json.len();
            rows.node(&pair[0])?;
            if rows.json.get(key) != Some(&b'"') {
                // Keys of JSON are strings.
                rows.json.insert(key, b'"');
                rows.json.push(b'"');
            }
            rows.json.push(b':');
            rows.node(&pair[1])
        })?;
        self.json.push(b'}');
        Ok(())
    }

    fn is_defined(&mut self, node: &Node) -> Result<bool, ParquetError> {
        let level = self.columns[node.first_leaf].peek(self.source)?;
        let level = level.ok_or(ParquetError::Damaged("a column has too few values"))?;
        Ok(level.defined >= node.defined)
    }

    /// Passes the place of a value that is not there.
    fn skip(&mut self, node: &Node) -> Result<(), ParquetError> {
        for leaf in node.first_leaf..node.end_leaf {
            self.columns[leaf].next(self.source)?;
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: usize) -> Result<(), ParquetError> {
        match self.columns[leaf].next(self.source)? {
            Value::Null => self.json.extend_from_slice(b"null"),
            Value::Bool(flag) => write!(self.json, "{flag}")?,
            Value::Int(number) => write!(self.json, "{number}")?,
            Value::Float(number) if number.is_finite() => {
                serde_json::to_writer(&mut self.json, &number).map_err(std::io::Error::from)?;
            }
            Value::Float(_) => self.json.extend_from_slice(b"null"),
            // Images and the like, which no format reads.
            Value::Bytes(bytes) => match std::str::from_utf8(&bytes) {
                Ok(text) => self.text(text)?,
                Err(_) => self.json.extend_from_slice(b"null"),
            },
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), ParquetError> {
        serde_json::to_writer(&mut self.json, text).map_err(std::io::Error::from)?;
        Ok(())
    }
}
