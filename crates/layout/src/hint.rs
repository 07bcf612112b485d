//! What to do about an error: the fix, kept apart from the fact.
//!
//! An error's `Display` states what is wrong with its operands. A [`Hint`]
//! states what to change. Keeping the two apart lets a terminal print them on
//! separate lines and a program match on the error without parsing advice.

/// An error that knows what its reader could do next.
pub trait Hint {
    /// The fix, as an imperative clause without a final period.
    fn hint(&self) -> Option<String>;
}

/// Returns the candidate that a mistyped `name` most likely meant.
///
/// Case is ignored. A candidate further than a third of its length away is not
/// suggested: a wrong suggestion costs the reader more than none.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
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

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn suggests_only_what_is_near() {
        let axes = ["dp", "tp", "pp"];
        assert_eq!(nearest("TP", axes), Some("tp"));
        assert_eq!(nearest("quickstrat", ["quickstart", "doctor"]), Some("quickstart"));
        assert_eq!(nearest("zebra", ["quickstart", "doctor"]), None);
        assert_eq!(nearest("x", ["y"]), None);
    }
}
