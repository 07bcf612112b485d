//! Event files compared with those that TensorBoard's own classes write, byte
//! for byte.

use std::fs;

use serde::Deserialize;
use weightloom_train::metrics::{Record, Sink as _, TensorBoard};

#[derive(Deserialize)]
struct Files {
    tensorboard: String,
    time: f64,
    first: String,
    resumed: String,
}

const TIME: f64 = 1_700_000_000.25;

fn written(after: u64, records: &[Record]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = TensorBoard::with_clock(folder.path(), after, || TIME).unwrap();
    records.iter().for_each(|record| sink.record(record).unwrap());
    fs::read(sink.path()).unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn files_are_those_of_tensorboard_byte_for_byte() {
    let files: Files = serde_json::from_str(include_str!("../fixtures/events.json")).unwrap();
    assert!(files.tensorboard.starts_with("2.") && files.time == TIME);
    let mut first = Record { loss: Some(2.5), learning_rate: Some(0.001), ..Record::new(1) };
    first.scalars.insert("eval/loss".to_owned(), f64::INFINITY);
    let mut later = Record { tokens: Some(123_456_789), ..Record::new(300) };
    later.texts.insert("sample/0".to_owned(), "Once upon a time\n".repeat(20));
    later.texts.insert("sample/1".to_owned(), "\u{fc}ber \u{1f980}".to_owned());
    assert_eq!(written(0, &[first, later]), files.first);
    assert_eq!(written(200, &[Record { loss: Some(-0.0), ..Record::new(201) }]), files.resumed);
}
