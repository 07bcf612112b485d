//! The fields of a request.

use weightloom_hub::text::Data;

use crate::refusal::Refusal;

/// The fields of a request. One that is `null` counts as absent.
pub(crate) struct Fields(Vec<(String, Data)>);

impl Fields {
    /// From the bytes of a request.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(bytes) {
            Ok(Data::Map(fields)) => Ok(Self(fields)),
            Ok(other) => {
                Err(Refusal::wrong(format!("the request must be a JSON object, but is {}", shown(&other))))
            }
            Err(_) if bytes.is_empty() => {
                Err(Refusal::wrong("the request has no body, but a JSON object is expected"))
            }
            Err(error) => Err(Refusal::wrong(format!("the request is not JSON: {error}"))),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Data> {
        let found = self.0.iter().find(|(name, _)| name == key);
        found.map(|(_, data)| data).filter(|data| **data != Data::Null)
    }

    /// The fields of a field.
    pub(crate) fn inner(&self, key: &str) -> Result<Option<Self>, Refusal> {
        match self.get(key) {
            None => Ok(None),
            Some(Data::Map(fields)) => Ok(Some(Self(fields.clone()))),
            Some(other) => Err(unexpected(key, "an object", other)),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Refusal> {
        match self.get(key) {
            None => Ok(None),
            Some(Data::Text(text)) => Ok(Some(text)),
            Some(other) => Err(unexpected(key, "a string", other)),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, Refusal> {
        match self.get(key) {
            None => Ok(None),
            Some(Data::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(unexpected(key, "true or false", other)),
        }
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, Refusal> {
        let Some(data) = self.get(key) else { return Ok(None) };
        let number = match data {
            Data::Number(number) => number.as_f64(),
            _ => None,
        };
        number.map(Some).ok_or_else(|| unexpected(key, "a number", data))
    }

    /// An integer of any sign.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<i128>, Refusal> {
        let Some(data) = self.get(key) else { return Ok(None) };
        let number = match data {
            Data::Number(number) => {
                number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
            }
            _ => None,
        };
        number.map(Some).ok_or_else(|| unexpected(key, "an integer", data))
    }

    /// An integer of 0 or more.
    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>, Refusal> {
        let count = self.integer(key)?.map(usize::try_from).transpose();
        count.map_err(|_| Refusal::field(key, format!("`{key}` must be 0 or more")))
    }

    pub(crate) fn list(&self, key: &str) -> Result<Option<&[Data]>, Refusal> {
        match self.get(key) {
            None => Ok(None),
            Some(Data::List(list)) => Ok(Some(list)),
            Some(other) => Err(unexpected(key, "a list", other)),
        }
    }

    /// Refuses a field that would change the result, unless it has a value
    /// that asks for nothing.
    pub(crate) fn refuse_unless(&self, key: &str, harmless: impl Fn(&Data) -> bool) -> Result<(), Refusal> {
        match self.get(key) {
            Some(data) if !harmless(data) => {
                Err(Refusal::field(key, format!("`{key}` is not supported here; leave it out")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn into_pairs(self) -> Vec<(String, Data)> {
        self.0
    }
}

/// A value of another kind than it should be.
pub(crate) fn unexpected(place: &str, expected: &str, found: &Data) -> Refusal {
    Refusal::field(place, format!("`{place}` must be {expected}, but is {}", shown(found)))
}

/// A value in few words.
fn shown(data: &Data) -> String {
    match data {
        Data::Null => "null".to_owned(),
        Data::Bool(flag) => flag.to_string(),
        Data::Number(number) => number.to_string(),
        Data::Text(_) => "a string".to_owned(),
        Data::List(_) => "a list".to_owned(),
        Data::Map(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn refused<T>(result: Result<T, Refusal>) -> String {
        result.err().unwrap().message().to_owned()
    }

    #[test]
    fn a_wrong_field_is_named_with_what_it_is() {
        let fields = Fields::parse(br#"{"n": "1", "t": 1e3, "s": -4, "d": null, "x": 0.5}"#).unwrap();
        assert_eq!(refused(fields.count("n")), "`n` must be an integer, but is a string");
        assert_eq!(refused(fields.count("x")), "`x` must be an integer, but is 0.5");
        assert_eq!(refused(fields.count("s")), "`s` must be 0 or more");
        assert_eq!(refused(fields.flag("t")), "`t` must be true or false, but is 1000.0");
        assert_eq!(fields.integer("s"), Ok(Some(-4)));
        assert_eq!(fields.number("s"), Ok(Some(-4.0)));
        assert_eq!(fields.text("d"), Ok(None));
    }

    #[test]
    fn what_is_not_json_is_told_with_its_place() {
        assert_eq!(
            refused(Fields::parse(b"{\"a\": }")),
            "the request is not JSON: expected value at line 1 column 7"
        );
        assert_eq!(refused(Fields::parse(b"[1]")), "the request must be a JSON object, but is a list");
        assert_eq!(refused(Fields::parse(b"")), "the request has no body, but a JSON object is expected");
    }
}
