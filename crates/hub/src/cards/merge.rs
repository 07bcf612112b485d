//! Patches of configs.
//!
//! Configs of cards are patches: of the base card's config, and finally of the
//! arch's. Patches can be combined before their target is known, and combining
//! is associative.

use std::collections::BTreeMap;

use super::error::CardError;
use super::value::{Field, Kind, Origin, Value};

/// Deletes keys.
pub(super) const DELETE: &str = "_del_";
/// Sets keys without a merge.
pub(super) const SET: &str = "_set_";

/// A map that patches another map, the *target*:
///
/// 1. Keys under `_del_` (a list of keys, or one key) are removed from the
///    target, if it has them.
/// 2. Keys under `_set_` get exactly the given value.
/// 3. Of the other keys, a map patches the target's map under that key, or an
///    empty map if there is none. Any other value, including a list, replaces
///    the target's.
///
/// A key that is deleted and given a value starts empty. A key must not be both
/// under `_set_` and beside it. `_set_` and `_del_` are errors inside values
/// that replace.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    changes: BTreeMap<String, Change>,
    origin: Origin,
}

/// Effect on one key.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    Delete,
    Set(Field),
    Merge(Patch),
}

impl Patch {
    /// Parses a map. `name` is its name in messages.
    pub fn read(name: &str, field: &Field) -> Result<Self, CardError> {
        let Value::Map(map) = &field.value else {
            return Err(CardError::expected(name, Kind::Map, field));
        };
        let mut changes = BTreeMap::new();
        for key in map
            .get(DELETE)
            .map(|keys| deleted(&format!("{name}.{DELETE}"), keys))
            .transpose()?
            .unwrap_or_default()
        {
            changes.insert(key.to_owned(), Change::Delete);
        }
        let set =
            map.get(SET).map(|set| set_keys(&format!("{name}.{SET}"), set)).transpose()?.unwrap_or_default();
        for (key, value) in &set {
            plain(&format!("{name}.{SET}.{key}"), value)?;
            changes.insert((*key).to_owned(), Change::Set((*value).clone()));
        }
        for (key, value) in map.iter().filter(|(key, _)| !is_directive(key)) {
            let inner = format!("{name}.{key}");
            if set.iter().any(|(other, _)| other == key) {
                return Err(CardError::SetTwice { name: inner, origin: value.origin.clone() });
            }
            let change = match &value.value {
                Value::Map(_) => {
                    let patch = Self::read(&inner, value)?;
                    match changes.get(key) {
                        Some(_) => Change::Set(patch.alone()),
                        None => Change::Merge(patch),
                    }
                }
                _ => {
                    plain(&inner, value)?;
                    Change::Set(value.clone())
                }
            };
            changes.insert(key.clone(), change);
        }
        Ok(Self { changes, origin: field.origin.clone() })
    }

    /// Combines this patch with a later one.
    pub fn then(mut self, above: Self) -> Self {
        for (key, change) in above.changes {
            let below = self.changes.remove(&key);
            let both = match (below, change) {
                (_, change @ (Change::Delete | Change::Set(_))) => change,
                (None, change @ Change::Merge(_)) => change,
                (Some(Change::Delete), Change::Merge(patch)) => Change::Set(patch.alone()),
                (Some(Change::Set(field)), Change::Merge(patch)) => Change::Set(patch.apply(Some(field))),
                (Some(Change::Merge(below)), Change::Merge(patch)) => Change::Merge(below.then(patch)),
            };
            self.changes.insert(key, both);
        }
        Self { changes: self.changes, origin: above.origin }
    }

    /// Applies the patch to a value; anything but a map counts as empty.
    pub fn apply(self, below: Option<Field>) -> Field {
        let mut map = match below.map(|field| field.value) {
            Some(Value::Map(map)) => map,
            _ => BTreeMap::new(),
        };
        for (key, change) in self.changes {
            let below = map.remove(&key);
            let now = match change {
                Change::Delete => continue,
                Change::Set(field) => field,
                Change::Merge(patch) => patch.apply(below),
            };
            map.insert(key, now);
        }
        Field { value: Value::Map(map), origin: self.origin }
    }

    /// Applies the patch to an empty map.
    pub fn alone(self) -> Field {
        self.apply(None)
    }

    /// Applies the patch to JSON, such as the config of an arch.
    pub fn over(&self, below: &serde_json::Value) -> serde_json::Value {
        let below = Field::from_json(below, &self.origin);
        self.clone().apply(Some(below)).value.to_json()
    }

    /// Origin of the last change of a key; dots separate nested keys.
    pub fn origin(&self, path: &str) -> Option<&Origin> {
        // A dot may also be part of a key.
        let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
        let mut found = ends.filter_map(|end| {
            let rest = path[end..].strip_prefix('.').unwrap_or_default();
            match (self.changes.get(&path[..end])?, rest) {
                (Change::Delete, _) => None,
                (Change::Set(field), "") => Some(&field.origin),
                (Change::Set(field), rest) => origin_in(field, rest),
                (Change::Merge(patch), "") => Some(&patch.origin),
                (Change::Merge(patch), rest) => patch.origin(rest),
            }
        });
        found.next()
    }
}

fn origin_in<'a>(field: &'a Field, path: &str) -> Option<&'a Origin> {
    let Value::Map(map) = &field.value else { return None };
    let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
    let mut found = ends.filter_map(|end| {
        let inner = map.get(&path[..end])?;
        match path[end..].strip_prefix('.') {
            None => Some(&inner.origin),
            Some(rest) => origin_in(inner, rest),
        }
    });
    found.next()
}

pub(super) fn is_directive(key: &str) -> bool {
    key == DELETE || key == SET
}

/// The keys under `_del_`.
pub(super) fn deleted<'a>(name: &str, keys: &'a Field) -> Result<Vec<&'a str>, CardError> {
    let bad = |field: &Field| CardError::expected(name, Kind::Texts, field);
    match &keys.value {
        Value::List(keys) => keys.iter().map(|key| key.value.as_text().ok_or_else(|| bad(key))).collect(),
        value => Ok(vec![value.as_text().ok_or_else(|| bad(keys))?]),
    }
}

/// The keys under `_set_`, with their values.
pub(super) fn set_keys<'a>(name: &str, set: &'a Field) -> Result<Vec<(&'a str, &'a Field)>, CardError> {
    let Value::Map(map) = &set.value else {
        return Err(CardError::expected(name, Kind::Map, set));
    };
    Ok(map.iter().map(|(key, value)| (key.as_str(), value)).collect())
}

/// Rejects misplaced directives.
fn plain(name: &str, field: &Field) -> Result<(), CardError> {
    match &field.value {
        Value::List(fields) => fields.iter().try_for_each(|field| plain(name, field)),
        Value::Map(map) => map.iter().try_for_each(|(key, value)| match is_directive(key) {
            true => Err(CardError::Directive {
                name: name.to_owned(),
                directive: key.clone(),
                origin: value.origin.clone(),
            }),
            false => plain(&format!("{name}.{key}"), value),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::cards::source::SourceKind;
    use crate::cards::value::CardLocation;

    fn field(json: &Json) -> Field {
        let file: Arc<Path> = Arc::from(Path::new("a.yaml"));
        Field::from_json(json, &Origin::new(&Arc::from("x"), CardLocation::new(SourceKind::Run, &file, 0)))
    }

    fn patch(json: &Json) -> Patch {
        Patch::read("config", &field(json)).unwrap()
    }

    #[test]
    fn maps_merge_and_all_else_replaces() {
        let below = json!({"a": 1, "m": {"x": 1, "y": [1, 2]}, "n": {"z": 1}, "s": 5});
        let above = json!({"a": 2, "m": {"y": [3]}, "n": 7, "s": {"q": 1}, "new": {"r": null}});
        let expected = json!({
            "a": 2, "m": {"x": 1, "y": [3]}, "n": 7, "s": {"q": 1}, "new": {"r": null},
        });
        assert_eq!(patch(&above).over(&below), expected);
    }

    #[test]
    fn directives_delete_keys_and_set_them_without_a_merge() {
        let below = json!({"rope": {"theta": 1, "scale": 2}, "drop": 0.1, "keep": true});
        let deletes = json!({"_del_": ["drop", "not there"], "rope": {"_del_": "scale"}});
        assert_eq!(patch(&deletes).over(&below), json!({"rope": {"theta": 1}, "keep": true}));
        let sets = json!({"_set_": {"rope": {"kind": "none"}}, "keep": false});
        assert_eq!(patch(&sets).over(&below), json!({"rope": {"kind": "none"}, "drop": 0.1, "keep": false}));
        let afresh = json!({"_del_": ["rope"], "rope": {"kind": "x"}});
        assert_eq!(patch(&afresh).over(&below)["rope"], json!({"kind": "x"}));
        let both = json!({"_del_": ["rope"], "_set_": {"rope": 3}});
        assert_eq!(patch(&both).over(&below)["rope"], json!(3));
    }

    #[test]
    fn a_deletion_reaches_through_to_what_is_below_all_cards() {
        let both = patch(&json!({"a": {"x": 1}})).then(patch(&json!({"_del_": ["a"]})));
        assert_eq!(both.over(&json!({"a": {"x": 0, "y": 0}, "b": 1})), json!({"b": 1}));
        assert_eq!(both.alone().value.to_json(), json!({}));
    }

    #[test]
    fn directives_that_mean_nothing_are_refused() {
        for bad in [
            json!({"_set_": 1}),
            json!({"_set_": ["a"]}),
            json!({"_del_": {"a": 1}}),
            json!({"_del_": [["a"]]}),
            json!({"_set_": {"a": {"_del_": ["b"]}}}),
            json!({"a": [{"_set_": {}}]}),
            json!({"_set_": {"a": 1}, "a": 2}),
            json!([1]),
        ] {
            assert!(Patch::read("config", &field(&bad)).is_err(), "{bad}");
        }
        let error = Patch::read("config", &field(&json!({"a": {"_del_": [null]}}))).unwrap_err();
        assert!(error.to_string().contains("`config.a._del_` in card `x`"), "{error}");
    }

    #[test]
    fn keys_are_found_by_their_path_even_with_dots_in_them() {
        let patch = patch(&json!({"a": {"b.c": {"d": 1}}, "_set_": {"e": {"f": 1}}}));
        assert!(patch.origin("a.b.c.d").is_some() && patch.origin("e.f").is_some());
        assert!(patch.origin("a.b").is_none() && patch.origin("e.f.g").is_none());
    }

    /// Maps three levels deep over few keys, so that they meet.
    fn changes() -> impl Strategy<Value = Json> {
        let key = || prop::sample::select(vec!["a", "b", "c"]);
        let leaf =
            prop_oneof![Just(json!(null)), (0..5i32).prop_map(|n| json!(n)), Just(json!([1, {"a": 2}]))];
        let plain = leaf.clone().prop_recursive(2, 12, 3, move |inner| {
            prop::collection::btree_map(key(), inner, 0..3).prop_map(|map| json!(map))
        });
        let map = move |inner: BoxedStrategy<Json>, plain: BoxedStrategy<Json>| {
            let keys = prop::collection::btree_map(key(), inner, 0..3);
            let set = prop::option::of(prop::collection::btree_map(key(), plain, 0..2));
            let delete = prop::option::of(prop::collection::btree_set(key(), 0..3));
            (keys, set, delete).prop_map(|(keys, set, delete)| {
                let mut map = json!(keys);
                if let Some(set) = set {
                    let set: BTreeMap<_, _> =
                        set.into_iter().filter(|(key, _)| map.get(key).is_none()).collect();
                    map["_set_"] = json!(set);
                }
                if let Some(delete) = delete {
                    map["_del_"] = json!(delete);
                }
                map
            })
        };
        let plain = plain.boxed();
        let inner = prop_oneof![leaf, map(plain.clone(), plain.clone())].boxed();
        let inner = prop_oneof![inner.clone(), map(inner, plain.clone())].boxed();
        map(inner, plain)
    }

    fn json_map() -> impl Strategy<Value = Json> {
        changes().prop_map(|json| patch(&json).alone().value.to_json())
    }

    proptest! {
        #[test]
        fn changes_can_be_put_together_in_any_grouping(a in changes(), b in changes(), c in changes()) {
            let [a, b, c] = [patch(&a), patch(&b), patch(&c)];
            let left = a.clone().then(b.clone()).then(c.clone());
            prop_assert_eq!(left, a.then(b.then(c)));
        }

        #[test]
        fn changes_put_together_do_what_they_do_one_by_one(below in json_map(), a in changes(), b in changes()) {
            let [a, b] = [patch(&a), patch(&b)];
            prop_assert_eq!(a.clone().then(b.clone()).over(&below), b.over(&a.over(&below)));
        }

        #[test]
        fn nothing_of_a_directive_is_left(below in json_map(), a in changes()) {
            let text = patch(&a).over(&below).to_string();
            prop_assert!(!text.contains("_set_") && !text.contains("_del_"), "{}", text);
        }
    }
}
