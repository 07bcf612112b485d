//! How much of the data a run has read, in epochs.

use crate::config::{DataConfig, RowLayout};
use crate::data::{DataSummary, Position};

/// Completed epochs, with the fraction of the current one: by documents, and within a
/// document by tokens if all are counted.
pub(super) fn epochs_done(position: &Position, data: Option<&DataSummary>, config: &DataConfig) -> f64 {
    let layout = config.row_layout();
    let whole = position.epoch as f64;
    let Some(data) = data.filter(|data| data.documents > 0) else { return whole };
    let documents = data.documents as f64;
    if !config.mixture.is_empty() {
        return match data.rows.filter(|rows| *rows > 0) {
            Some(rows) => whole + (position.rows as f64 / rows as f64 - whole).clamp(0.0, 1.0),
            // Without an end: passes over as many documents as there are.
            None => whole + position.place as f64 / documents,
        };
    }
    // The last token of a document is an input only if another document follows it.
    let inputs = match layout {
        RowLayout::Packed => data.tokens,
        RowLayout::BestFit => data.tokens.saturating_sub(data.rows.unwrap_or(0)),
        RowLayout::Padded | RowLayout::Pairs => data.tokens.saturating_sub(data.used),
    };
    let read = position.tokens as f64 / inputs.max(1) as f64 - whole;
    if data.is_complete() && (layout == RowLayout::BestFit || position.parts > 0) {
        // Rows are not in the order of the documents.
        return whole + read.clamp(0.0, 1.0);
    }
    let (least, most) = (position.place as f64 / documents, (position.place + 1) as f64 / documents);
    if !data.is_complete() {
        return whole + least.min(1.0);
    }
    whole + read.clamp(least, most).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MixtureConfig, Packing};

    fn summary(documents: u64, read: u64) -> DataSummary {
        let complete = read == documents;
        DataSummary { documents, read, complete, used: read, tokens: 100, ..DataSummary::default() }
    }

    fn at(epoch: u64, place: u64, tokens: u64) -> Position {
        Position { epoch, place, tokens, ..Position::default() }
    }

    fn with(packing: Packing) -> DataConfig {
        let config: DataConfig = serde_json::from_value(serde_json::json!({})).unwrap();
        DataConfig { packing, ..config }
    }

    #[test]
    fn epochs_are_fractions() {
        let one = summary(1, 1);
        for (position, expected) in [
            (at(0, 0, 0), 0.0),
            (at(0, 0, 25), 0.25),
            (at(1, 0, 150), 1.5),
            (at(2, 0, 200), 2.0),
            // Data that was started again.
            (at(0, 0, 1000), 1.0),
        ] {
            assert_eq!(epochs_done(&position, Some(&one), &with(Packing::Packed)), expected, "{position:?}");
        }
        // 99 inputs of a single document.
        assert_eq!(epochs_done(&at(0, 0, 33), Some(&one), &with(Packing::Padded)), 33.0 / 99.0);
        // Of several documents, those that are done count.
        let four = summary(4, 4);
        assert_eq!(epochs_done(&at(0, 1, 99), Some(&four), &with(Packing::Packed)), 0.5);
        assert_eq!(epochs_done(&at(3, 2, 0), Some(&four), &with(Packing::Packed)), 3.5);
        assert_eq!(epochs_done(&at(1, 3, 0), Some(&summary(4, 2)), &with(Packing::Packed)), 1.75);
        assert_eq!(epochs_done(&at(0, 0, 64), None, &with(Packing::Packed)), 0.0);
    }

    /// A place is then one of a part of a document, or of a block of documents.
    #[test]
    fn rows_in_another_order_count_by_tokens() {
        let of_parts = Position { parts: 3, ..at(1, 4, 150) };
        assert_eq!(epochs_done(&of_parts, Some(&summary(1, 1)), &with(Packing::Packed)), 1.5);
        let data = DataSummary { rows: Some(20), ..summary(4, 4) };
        assert_eq!(epochs_done(&at(0, 3, 20), Some(&data), &with(Packing::BestFit)), 0.25);
    }

    /// A place is then one of a draw, of which there are more or less than documents.
    #[test]
    fn rows_of_a_mixture_count() {
        let set = MixtureConfig { paths: vec!["a".to_owned()], weight: 1.0, epochs: Some(2) };
        let mixture = DataConfig { mixture: vec![set], ..with(Packing::Packed) };
        let data = DataSummary { rows: Some(20), ..summary(4, 4) };
        let position = Position { rows: 10, ..at(0, 4, 0) };
        assert_eq!(epochs_done(&position, Some(&data), &mixture), 0.5);
        let endless = DataSummary { rows: None, ..data };
        assert_eq!(epochs_done(&at(0, 6, 0), Some(&endless), &mixture), 1.5);
    }
}
