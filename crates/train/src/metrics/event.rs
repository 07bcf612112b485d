//! TensorBoard's events as bytes.
//!
//! An event is a protobuf message, `tensorflow.Event`, of which few fields are
//! used: they are written here by hand, each with its number. A file is a
//! sequence of records: length, checksum of the length, bytes, checksum of the
//! bytes.

use super::crc32c::masked;

/// A protobuf message in the making.
#[derive(Default)]
struct Proto(Vec<u8>);

/// How a field's value is written.
const NUMBER: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const BYTES: u64 = 2;
const FOUR_BYTES: u64 = 5;

impl Proto {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u64, wire: u64) {
        self.varint(field << 3 | wire);
    }

    fn number(mut self, field: u64, value: u64) -> Self {
        // Zero is what a missing field means.
        if value != 0 {
            self.key(field, NUMBER);
            self.varint(value);
        }
        self
    }

    fn double(mut self, field: u64, value: f64) -> Self {
        self.key(field, EIGHT_BYTES);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn float(mut self, field: u64, value: f32) -> Self {
        self.key(field, FOUR_BYTES);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.key(field, BYTES);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn message(self, field: u64, value: Self) -> Self {
        self.bytes(field, &value.0)
    }
}

/// What one event says.
pub(super) enum Content<'a> {
    /// Which version of events follows; the first of a file.
    Version,
    /// A run goes on here: what earlier files have of this step and later ones
    /// does not count.
    Restart,
    /// Numbers by name.
    Scalars(&'a [(&'a str, f64)]),
    /// A text with its name.
    Text(&'a str, &'a str),
}

/// One record of a file: an event at a time, in seconds since 1970.
pub(super) fn event(time: f64, step: u64, content: &Content<'_>) -> Vec<u8> {
    let event = Proto::default().double(1, time).number(2, step);
    let event = match content {
        Content::Version => event.bytes(3, b"brain.Event:2"),
        // A SessionLog with the status START.
        Content::Restart => event.message(7, Proto::default().number(1, 1)),
        Content::Scalars(scalars) => event.message(5, summary(scalars)),
        Content::Text(name, text) => event.message(5, Proto::default().message(1, text_value(name, text))),
    };
    framed(&event.0)
}

fn summary(scalars: &[(&str, f64)]) -> Proto {
    scalars.iter().fold(Proto::default(), |summary, (name, value)| {
        // TensorBoard draws in single precision, whatever it is given.
        summary.message(1, Proto::default().bytes(1, name.as_bytes()).float(2, *value as f32))
    })
}

/// A tensor of one string, marked as being for the page that shows texts.
fn text_value(name: &str, text: &str) -> Proto {
    const STRING: u64 = 7;
    let one = Proto::default().message(2, Proto::default().number(1, 1));
    let tensor = Proto::default().number(1, STRING).message(2, one).bytes(8, text.as_bytes());
    let plugin = Proto::default().bytes(1, b"text");
    Proto::default()
        .bytes(1, format!("{name}/text_summary").as_bytes())
        .message(8, tensor)
        .message(9, Proto::default().message(1, plugin))
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(bytes.len() + 16);
    record.extend(length);
    record.extend(masked(&length).to_le_bytes());
    record.extend(bytes);
    record.extend(masked(bytes).to_le_bytes());
    record
}
