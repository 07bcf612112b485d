//! JSON object with typed access to its fields.

use weightloom_hub::text::OrderedJson;

use crate::api_error::ApiError;

/// A JSON object. A field that is `null` counts as absent.
pub(crate) struct JsonObject(Vec<(String, OrderedJson)>);

impl JsonObject {
    /// Parses the body of a request.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(bytes) {
            Ok(OrderedJson::Map(fields)) => Ok(Self(fields)),
            Ok(other) => Err(ApiError::bad_request(format!(
                "the request must be a JSON object, not {}",
                describe(&other)
            ))),
            Err(_) if bytes.is_empty() => {
                Err(ApiError::bad_request("the request has no body; send a JSON object"))
            }
            Err(error) => Err(ApiError::bad_request(format!("the request is not JSON: {error}"))),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&OrderedJson> {
        let found = self.0.iter().find(|(name, _)| name == key);
        found.map(|(_, data)| data).filter(|data| **data != OrderedJson::Null)
    }

    /// The keys of fields that are present.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, data)| *data != OrderedJson::Null).map(|(key, _)| key.as_str())
    }

    /// A nested object.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Self>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(OrderedJson::Map(fields)) => Ok(Some(Self(fields.clone()))),
            Some(other) => Err(unexpected(key, "an object", other)),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(OrderedJson::Text(text)) => Ok(Some(text)),
            Some(other) => Err(unexpected(key, "a string", other)),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(OrderedJson::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(unexpected(key, "true or false", other)),
        }
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ApiError> {
        let Some(data) = self.get(key) else { return Ok(None) };
        let number = match data {
            OrderedJson::Number(number) => number.as_f64(),
            _ => None,
        };
        number.map(Some).ok_or_else(|| unexpected(key, "a number", data))
    }

    /// An integer of any sign.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<i128>, ApiError> {
        let Some(data) = self.get(key) else { return Ok(None) };
        let number = match data {
            OrderedJson::Number(number) => {
                number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
            }
            _ => None,
        };
        number.map(Some).ok_or_else(|| unexpected(key, "an integer", data))
    }

    /// An integer of 0 or more.
    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>, ApiError> {
        let count = self.integer(key)?.map(usize::try_from).transpose();
        count.map_err(|_| ApiError::invalid_field(key, format!("`{key}` must be 0 or more")))
    }

    pub(crate) fn list(&self, key: &str) -> Result<Option<&[OrderedJson]>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(OrderedJson::List(list)) => Ok(Some(list)),
            Some(other) => Err(unexpected(key, "a list", other)),
        }
    }

    /// Rejects an unsupported field unless its value has no effect.
    pub(crate) fn reject_unless(
        &self,
        key: &str,
        has_no_effect: impl Fn(&OrderedJson) -> bool,
    ) -> Result<(), ApiError> {
        match self.get(key) {
            Some(data) if !has_no_effect(data) => {
                Err(ApiError::invalid_field(key, format!("`{key}` is not supported; remove it")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn into_pairs(self) -> Vec<(String, OrderedJson)> {
        self.0
    }
}

/// The error for a value of the wrong type.
pub(crate) fn unexpected(place: &str, expected: &str, found: &OrderedJson) -> ApiError {
    ApiError::invalid_field(place, format!("`{place}` must be {expected}, not {}", describe(found)))
}

/// A short description of a value.
fn describe(data: &OrderedJson) -> String {
    match data {
        OrderedJson::Null => "null".to_owned(),
        OrderedJson::Bool(flag) => flag.to_string(),
        OrderedJson::Number(number) => number.to_string(),
        OrderedJson::Text(_) => "a string".to_owned(),
        OrderedJson::List(_) => "a list".to_owned(),
        OrderedJson::Map(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn refused<T>(result: Result<T, ApiError>) -> String {
        result.err().unwrap().message().to_owned()
    }

    #[test]
    fn an_invalid_field_is_named_with_its_type() {
        let fields = JsonObject::parse(br#"{"n": "1", "t": 1e3, "s": -4, "d": null, "x": 0.5}"#).unwrap();
        assert_eq!(refused(fields.count("n")), "`n` must be an integer, not a string");
        assert_eq!(refused(fields.count("x")), "`x` must be an integer, not 0.5");
        assert_eq!(refused(fields.count("s")), "`s` must be 0 or more");
        assert_eq!(refused(fields.flag("t")), "`t` must be true or false, not 1000.0");
        assert_eq!(fields.integer("s"), Ok(Some(-4)));
        assert_eq!(fields.number("s"), Ok(Some(-4.0)));
        assert_eq!(fields.text("d"), Ok(None));
    }

    #[test]
    fn invalid_json_is_reported_with_its_position() {
        assert_eq!(
            refused(JsonObject::parse(b"{\"a\": }")),
            "the request is not JSON: expected value at line 1 column 7"
        );
        assert_eq!(refused(JsonObject::parse(b"[1]")), "the request must be a JSON object, not a list");
        assert_eq!(refused(JsonObject::parse(b"")), "the request has no body; send a JSON object");
    }
}
