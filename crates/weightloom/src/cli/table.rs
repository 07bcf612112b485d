//! Tables that fit the terminal, or 100 columns in files and pipes.

use std::fmt;
use std::io;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};

use super::escape::escaped;

/// Width of tables that do not go to a terminal.
const PIPED_WIDTH: usize = 100;

/// The narrowest that a column of text becomes.
const LEAST_WIDTH: usize = 8;

/// The narrowest column in which sentences can be read.
const READABLE: usize = 24;

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
        self.rows.push(cells.into_iter().map(|cell| escaped(&cell.to_string()).into_owned()).collect());
    }

    /// The texts of a column, with its head.
    fn column(&self, column: usize) -> impl Iterator<Item = &str> {
        let cells = self.rows.iter().filter_map(move |row| row.get(column));
        cells.chain([&self.heads[column]]).flat_map(|cell| cell.lines())
    }

    /// The widths of the columns such that the table fits, if they must change.
    fn widths(&self, limit: usize) -> Option<Vec<usize>> {
        let columns = self.heads.len();
        let mut widths: Vec<usize> =
            (0..columns).map(|column| self.column(column).map(width).max().unwrap_or(0)).collect();
        // A line between columns and at both sides.
        let frame = columns * (PADDING + 1) + 1;
        let excess = (widths.iter().sum::<usize>() + frame).checked_sub(limit).filter(|&more| more > 0)?;
        for _ in 0..excess {
            let text = (0..columns).filter(|column| !self.numbers.contains(column));
            let wide = text.filter(|&column| widths[column] > LEAST_WIDTH);
            // The column in which this does the least additional damage gives way,
            // and of several the widest.
            let cost = |&column: &usize| {
                let own = widths[column];
                let more = self.damage(column, own - 1).saturating_sub(self.damage(column, own));
                (more, usize::MAX - own)
            };
            let Some(column) = wide.min_by_key(cost) else { break };
            widths[column] -= 1;
        }
        Some(widths)
    }

    /// The damage to a column in a width: a sentence that is wrapped is still
    /// read, a name that is shortened is not.
    fn damage(&self, column: usize, most: usize) -> usize {
        let long = self.column(column).filter(|cell| width(cell) > most);
        long.map(|cell| if cell.split(' ').all(|word| width(word) <= most) { 1 } else { 4 }).sum()
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
    /// shortened in the middle. A last column of sentences that would become too
    /// narrow to read follows the table instead.
    fn fitted(&self, limit: usize) -> String {
        let Some(widths) = self.widths(limit) else { return self.render(&self.rows).to_string() };
        let last = self.heads.len() - 1;
        let is_text = last > 0 && !self.numbers.contains(&last);
        if is_text && widths[last] < READABLE && self.column(last).any(|cell| cell.contains(' ')) {
            return self.with_notes(limit);
        }
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
        table.to_string()
    }

    /// The table without its last column, which follows row by row.
    fn with_notes(&self, limit: usize) -> String {
        let last = self.heads.len() - 1;
        let rows = self.rows.iter().map(|row| row.iter().take(last).cloned().collect()).collect();
        let table = Self { heads: self.heads[..last].to_vec(), numbers: self.numbers.clone(), rows };
        let mut text = table.fitted(limit);
        for row in &self.rows {
            if let (Some(name), Some(note)) = (row.first(), row.get(last).filter(|note| !note.is_empty())) {
                text += &format!("\n{}", wrapped(&format!("{name}: {note}"), limit));
            }
        }
        text
    }
}

/// A text in lines of at most this many characters, where its words allow it.
fn wrapped(text: &str, limit: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, |line| width(line));
        if line > 0 && line + 1 + width(word) > limit {
            // Continuation lines are indented.
            lines.push("  ".to_owned());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() && !line.ends_with(' ') {
                line.push(' ');
            }
            *line += word;
        }
    }
    lines.join("\n")
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
            None => f.write_str(&self.fitted(PIPED_WIDTH)),
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
        let text = wide.fitted(100);
        assert!(text.lines().all(|line| width(line) <= 100), "{text}");
        assert!(
            text.contains('…') && text.contains(".q_proj.weight") && text.contains("123456789"),
            "{text}"
        );
        assert!(text.contains("wrapped"), "{text}");
        // A narrow column of sentences follows the table.
        let mut notes = table(&["name", "one", "two", "note"], &[1, 2]);
        notes.add_row(["x".repeat(20), "1".repeat(30), "2".repeat(30), "word ".repeat(30)]);
        let text = notes.fitted(100);
        assert!(text.lines().all(|line| width(line) <= 100), "{text}");
        assert!(text.contains(&format!("\n{}: word word", "x".repeat(20))), "{text}");
        // A table that fits is not touched.
        let mut narrow = table(&["a"], &[]);
        narrow.add_row(["x".repeat(90)]);
        assert!(narrow.fitted(100).contains(&"x".repeat(90)));
    }
}
