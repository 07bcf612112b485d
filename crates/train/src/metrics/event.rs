//! Encoder of TensorBoard events.
//!
//! An event is a protobuf message, `tensorflow.Event`. Few of its fields are
//! needed, so they are encoded here by field number. A file is a sequence of
//! records: length, checksum of the length, bytes, checksum of the bytes.

/// A protobuf message under construction.
#[derive(Default)]
struct Proto(Vec<u8>);

/// Wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

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
        // An absent field is zero.
        if value != 0 {
            self.key(field, VARINT);
            self.varint(value);
        }
        self
    }

    fn double(mut self, field: u64, value: f64) -> Self {
        self.key(field, FIXED64);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn float(mut self, field: u64, value: f32) -> Self {
        self.key(field, FIXED32);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.key(field, LENGTH_DELIMITED);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn message(self, field: u64, value: Self) -> Self {
        self.bytes(field, &value.0)
    }
}

/// The payload of an event.
pub(super) enum Content<'a> {
    /// The format version, the first event of a file.
    Version,
    /// A restart: supersedes this step and later ones in earlier files.
    Restart,
    /// Scalars by name.
    Scalars(&'a [(&'a str, f64)]),
    /// A name and its text.
    Text(&'a str, &'a str),
}

/// Encodes an event as a record of a file. `time` is in seconds since 1970.
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
        // TensorBoard stores scalars in single precision.
        summary.message(1, Proto::default().bytes(1, name.as_bytes()).float(2, *value as f32))
    })
}

/// A string tensor for the text plugin.
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

/// TensorFlow's masked CRC-32C, which stays reliable for bytes that contain
/// checksums themselves.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(bytes.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(bytes);
    record.extend(masked_crc(bytes).to_le_bytes());
    record
}

#[cfg(test)]
mod tests {
    use crc32c::crc32c;

    /// The examples of RFC 3720, B.4, and the usual check value.
    #[test]
    fn checksums_match_the_published_examples() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&rising), 0x46DD_794E);
        assert_eq!(crc32c(&falling), 0x113F_DB5C);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
    }
}
