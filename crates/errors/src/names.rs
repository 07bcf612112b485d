//! Lists of names in messages, and suggestions for misspelled ones.

/// Longer names are not misspelled ones.
const MAX_NAME_BYTES: usize = 512;

/// Returns the candidate that a misspelled `name` most likely means.
///
/// Ignores case. A candidate further away than a third of its length is not
/// suggested: a wrong suggestion costs the reader more than none.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance takes time and memory of the product of both lengths, and a name
    // may come from anyone.
    if name.len() > MAX_NAME_BYTES {
        return None;
    }
    let wanted = name.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            let distance = strsim::damerau_levenshtein(&wanted, &candidate.to_lowercase());
            (distance, candidate)
        })
        .filter(|(distance, candidate)| {
            let longest = candidate.chars().count().max(wanted.chars().count());
            *distance <= (longest / 3).max(1) && *distance < longest
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The hint "did you mean `candidate`?".
pub fn did_you_mean(candidate: Option<&str>) -> Option<String> {
    candidate.map(|name| format!("did you mean `{name}`?"))
}

/// Up to `limit` names in backticks, followed by the number of others.
pub fn name_list<S: AsRef<str>>(names: &[S], limit: usize) -> String {
    let shown: Vec<String> = names.iter().take(limit).map(|name| format!("`{}`", name.as_ref())).collect();
    let mut text = shown.join(", ");
    if names.len() > limit {
        text.push_str(&format!(" and {} more", names.len() - limit));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{name_list, nearest};

    #[test]
    fn suggests_only_near_names() {
        let axes = ["dp", "tp", "pp"];
        assert_eq!(nearest("TP", axes), Some("tp"));
        assert_eq!(nearest("quickstrat", ["quickstart", "doctor"]), Some("quickstart"));
        assert_eq!(nearest("zebra", ["quickstart", "doctor"]), None);
        assert_eq!(nearest("x", ["y"]), None);
    }

    #[test]
    fn long_lists_end_with_a_count() {
        assert_eq!(name_list(&["a", "b"], 3), "`a`, `b`");
        assert_eq!(name_list(&["a", "b", "c", "d", "e"], 3), "`a`, `b`, `c` and 2 more");
        assert_eq!(name_list::<&str>(&[], 3), "");
    }

    #[test]
    fn a_name_of_megabytes_is_near_to_nothing() {
        assert_eq!(nearest(&"temperature".repeat(1 << 18), ["temperature"]), None);
    }
}
