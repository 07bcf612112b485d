//! Tables that fit the terminal, or 100 columns in files and pipes.

use std::fmt;
use std::io;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};

/// Width of tables that do not go to a terminal.
const PIPED_WIDTH: usize = 100;

/// The narrowest that a column of text becomes.
const LEAST_WIDTH: usize = 8;

/// Spaces beside the text of a cell.
const PADDING: usize = 2;

/// A table with a header.
pub(super) struct TextTable {
    heads: Vec<String>,
    /// Right-aligned columns, which are never shortened.
    numbers: Vec<usize>,
    rows: Vec<Vec<String>>,
}

/// A table with a header. Columns of numbers are right-aligned.
pub(super) fn table(heads: &[&str], numbers: &[usize]) -> TextTable {
    let heads = heads.iter().map(|&head| head.to_owned()).collect();
    TextTable { heads, numbers: numbers.to_vec(), rows: Vec::new() }
}

impl TextTable {
    pub(super) fn add_row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|cell| cell.to_string()).collect());
    }

    /// The widths of the columns such that the table fits, if they must change.
    fn widths(&self, limit: usize) -> Option<Vec<usize>> {
        let columns = self.heads.len();
        let natural: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column)).chain([&self.heads[column]]);
                cells.flat_map(|cell| cell.lines()).map(width).max().unwrap_or(0)
            })
            .collect();
        // A line between columns and at both sides.
        let frame = columns * (PADDING + 1) + 1;
        let mut excess =
            (natural.iter().sum::<usize>() + frame).checked_sub(limit).filter(|&more| more > 0)?;
        let mut widths = natural;
        // The widest column of text gives way first.
        while excess > 0 {
            let text = (0..columns).filter(|column| !self.numbers.contains(column));
            let Some(widest) = text.max_by_key(|&column| widths[column]) else { break };
            if widths[widest] <= LEAST_WIDTH {
                break;
            }
            widths[widest] -= 1;
            excess -= 1;
        }
        Some(widths)
    }

    fn render(&self, rows: &[Vec<String>]) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(self.heads.clone());
        for row in rows {
            table.add_row(row.clone());
        }
        for &column in &self.numbers {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }

    /// The table in a number of columns: sentences are wrapped, and long names
    /// shortened in the middle.
    fn fitted(&self, limit: usize) -> Table {
        let Some(widths) = self.widths(limit) else { return self.render(&self.rows) };
        let fit = |row: &Vec<String>| -> Vec<String> {
            let cell = |(cell, &most): (&String, &usize)| {
                let words: Vec<String> = cell.split(' ').map(|word| shortened(word, most)).collect();
                words.join(" ")
            };
            row.iter().zip(&widths).map(cell).collect()
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(fit).collect();
        let mut table = self.render(&rows);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(limit).unwrap_or(u16::MAX));
        for (column, &most) in widths.iter().enumerate() {
            let most = u16::try_from(most + PADDING).unwrap_or(u16::MAX);
            if let Some(column) = table.column_mut(column) {
                column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(most)));
            }
        }
        table
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match terminal_size::terminal_size_of(io::stdout()) {
            // Cells are wrapped, so that nothing is lost.
            Some((width, _)) => {
                let mut table = self.render(&self.rows);
                table.set_content_arrangement(ContentArrangement::Dynamic);
                table.set_width(width.0.max(40));
                write!(f, "{table}")
            }
            None => write!(f, "{}", self.fitted(PIPED_WIDTH)),
        }
    }
}

/// The width of a text, in characters.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// A word with at most this many characters: its beginning and its end, which
/// tell names of tensors apart.
pub(super) fn shortened(word: &str, most: usize) -> String {
    let length = width(word);
    if length <= most {
        return word.to_owned();
    }
    let kept = most.saturating_sub(1);
    let (before, after) = (kept / 2, kept - kept / 2);
    let start: String = word.chars().take(before).collect();
    let end: String = word.chars().skip(length - after).collect();
    format!("{start}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened_in_the_middle() {
        assert_eq!(shortened("model.layers.0.weight", 21), "model.layers.0.weight");
        assert_eq!(shortened("model.layers.0.weight", 11), "model…eight");
        assert_eq!(shortened("änderung", 3), "ä…g");
    }

    #[test]
    fn piped_tables_fit_100_columns() {
        let mut wide = table(&["tensor", "difference", "elements"], &[2]);
        let name = format!("{}.q_proj.weight", "model.layers.17.attention".repeat(6));
        wide.add_row([
            name.as_str(),
            "a sentence that has a good number of words and so is wrapped",
            "123456789",
        ]);
        wide.add_row(["short", "values", "1"]);
        let text = wide.fitted(100).to_string();
        assert!(text.lines().all(|line| width(line) <= 100), "{text}");
        assert!(
            text.contains('…') && text.contains(".q_proj.weight") && text.contains("123456789"),
            "{text}"
        );
        assert!(text.contains("wrapped"), "{text}");
        // A table that fits is not touched.
        let mut narrow = table(&["a"], &[]);
        narrow.add_row(["x".repeat(90)]);
        assert!(narrow.fitted(100).to_string().contains(&"x".repeat(90)));
    }
}
