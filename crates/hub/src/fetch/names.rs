//! Validation of names that become paths.

use super::error::FetchError;

/// Checks the name of a file in a repository: no component may leave the folder.
pub(super) fn check_file(name: &str) -> Result<(), FetchError> {
    match problem(name) {
        None => Ok(()),
        Some(problem) => Err(FetchError::FileName { name: escape(name), problem }),
    }
}

/// Checks a branch, tag or commit.
pub(super) fn check_revision(name: &str) -> Result<(), FetchError> {
    match problem(name) {
        None => Ok(()),
        Some(problem) => Err(FetchError::RepoName { name: escape(name), kind: "revision", problem }),
    }
}

/// Checks `name` or `owner/name`.
pub(super) fn check_repo(name: &str) -> Result<(), FetchError> {
    let plain = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
            && !part.starts_with(['.', '-'])
            && !part.ends_with(['.', '-'])
    };
    let problem = if name.len() > 200 {
        "too long"
    } else if name.split('/').count() > 2 {
        "more than an owner and a name"
    } else if !name.split('/').all(plain) {
        "only letters, digits, `.`, `_` and `-` are allowed"
    } else if name.contains("--") || name.contains("..") {
        "contains `--` or `..`"
    } else {
        return Ok(());
    };
    Err(FetchError::RepoName { name: escape(name), kind: "repository", problem })
}

/// Whether a revision is a full commit hash, which never changes.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn problem(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("empty")
    } else if name.len() > 1024 || name.split('/').any(|part| part.len() > 240) {
        Some("too long")
    } else if name.starts_with('/') {
        Some("absolute path")
    } else if name.contains('\\') {
        Some("contains a backslash")
    } else if name.chars().any(char::is_control) {
        Some("contains control characters")
    } else if name.split('/').any(|part| part == "..") {
        Some("contains `..`")
    } else if name.split('/').any(|part| matches!(part, "" | ".")) {
        Some("contains an empty component or `.`")
    } else if name.as_bytes().get(1) == Some(&b':') {
        Some("starts with a drive letter")
    } else {
        None
    }
}

/// Escapes and shortens a name for a message.
pub(super) fn escape(name: &str) -> String {
    let shown: String = name.chars().take(200).flat_map(char::escape_debug).collect();
    if name.chars().count() > 200 { format!("{shown}…") } else { shown }
}

/// Percent-encodes a path; slashes stay.
pub(super) fn encode_path(name: &str) -> String {
    name.split('/').map(encode_component).collect::<Vec<_>>().join("/")
}

/// Percent-encodes a name as one component of a URL.
pub(super) fn encode_component(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_rejected() {
        for name in
            ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a\\b", "C:/x", "a\0b", "a\nb", "a/"]
        {
            assert!(check_file(name).is_err(), "{name:?}");
            assert!(check_revision(name).is_err(), "{name:?}");
        }
        for name in ["config.json", "original/params.json", "..a", "a..b/c", "ünïcode name.txt"] {
            assert_eq!(check_file(name), Ok(()), "{name:?}");
        }
    }

    #[test]
    fn repository_names_have_an_owner_and_a_name() {
        for name in ["gpt2", "meta-llama/Llama-3.1-8B", "a/b_c.d"] {
            assert_eq!(check_repo(name), Ok(()), "{name}");
        }
        for name in ["", "/", "a/", "/b", "a/b/c", "a/..", "a--b/c", "a b/c", ".a/b", "a/b?x=1", "ü/b"] {
            assert!(check_repo(name).is_err(), "{name}");
        }
    }

    #[test]
    fn special_characters_are_encoded() {
        assert_eq!(encode_path("a b/ü#?.txt"), "a%20b/%C3%BC%23%3F.txt");
        assert_eq!(encode_component("refs/pr/1"), "refs%2Fpr%2F1");
    }
}
