//! Settings of downloads.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weightloom_http::{InvalidSecret, Proxies, RetryPolicy, Secret};

use super::error::FetchError;

/// The hub unless `HF_ENDPOINT` names another one.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Settings of downloads: endpoint, token, caches, limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FetchSettings {
    /// URL of the hub, without a trailing slash.
    pub endpoint: String,
    /// Sent to the endpoint and nowhere else.
    pub token: Option<Secret>,
    /// Cache in the layout of `huggingface_hub`.
    pub hub_cache: PathBuf,
    /// Cache for files of other servers.
    pub url_cache: PathBuf,
    /// Whether requests are allowed.
    pub network: NetworkAccess,
    /// Check of cached files that another program downloaded.
    pub cache_check: CacheCheck,
    /// Proxy servers.
    pub proxies: Proxies,
    /// Ranges or files to download in parallel.
    pub connections: usize,
    /// Bytes per range.
    pub range_bytes: u64,
    /// Interval between records of the downloaded ranges.
    pub record_every: Duration,
    /// Retries of requests that bring no new bytes.
    pub retry: RetryPolicy,
    /// Limit for establishing a connection.
    pub connect_timeout: Duration,
    /// Limit for a pause in the data.
    pub stall_timeout: Duration,
}

/// Whether requests are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkAccess {
    /// Missing files are downloaded.
    Online,
    /// Only the cache is used.
    Offline,
}

/// Check of cached files that another program downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheCheck {
    /// The size must match; the result says that the hash is unverified.
    Sizes,
    /// The file is read once, and its hash must match.
    Hashes,
}

impl FetchSettings {
    /// Default settings with caches in the given folders.
    pub fn in_folders(hub_cache: impl Into<PathBuf>, url_cache: impl Into<PathBuf>) -> Self {
        Self {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            token: None,
            hub_cache: hub_cache.into(),
            url_cache: url_cache.into(),
            network: NetworkAccess::Online,
            cache_check: CacheCheck::Sizes,
            proxies: Proxies::default(),
            connections: 8,
            range_bytes: 32 << 20,
            record_every: Duration::from_secs(2),
            retry: RetryPolicy::default(),
            connect_timeout: Duration::from_secs(20),
            stall_timeout: Duration::from_secs(30),
        }
    }

    /// Reads environment variables through `lookup`.
    ///
    /// Follows the names and rules of `huggingface_hub`: `HF_ENDPOINT`,
    /// `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HOME`, `HF_HUB_CACHE`,
    /// `HF_HUB_OFFLINE`, `XDG_CACHE_HOME`. Adds `WEIGHTLOOM_CACHE_DIR`,
    /// `WEIGHTLOOM_OFFLINE`, `WEIGHTLOOM_FETCH_CONNECTIONS`,
    /// `WEIGHTLOOM_FETCH_RETRIES`, `WEIGHTLOOM_FETCH_TIMEOUT` (seconds) and
    /// `WEIGHTLOOM_FETCH_CHECK` (`sizes` or `hashes`). `HTTP_PROXY`,
    /// `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` count in upper and lower case.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, FetchError> {
        let get = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let home = get("HOME").or_else(|| get("USERPROFILE"));
        let folder = |text: String| match (text.strip_prefix("~/"), &home) {
            (Some(rest), Some(home)) => Path::new(home).join(rest),
            _ => PathBuf::from(text),
        };
        let caches = get("XDG_CACHE_HOME")
            .map(&folder)
            .or_else(|| home.as_ref().map(|home| Path::new(home).join(".cache")));
        let below_caches = |set: Option<String>, name: &'static str, below: &str| match (set, &caches) {
            (Some(set), _) => Ok(folder(set)),
            (None, Some(caches)) => Ok(caches.join(below)),
            (None, None) => {
                Err(FetchError::Setting { name, problem: "neither it nor HOME is set".to_owned() })
            }
        };
        let hub_cache_set = get("HF_HUB_CACHE").or_else(|| get("HUGGINGFACE_HUB_CACHE"));
        let hf_home = below_caches(get("HF_HOME"), "HF_HOME", "huggingface");
        let hub_cache = match hub_cache_set {
            Some(set) => folder(set),
            None => hf_home.clone()?.join("hub"),
        };
        let url_cache = below_caches(get("WEIGHTLOOM_CACHE_DIR"), "WEIGHTLOOM_CACHE_DIR", "weightloom")?;

        let mut settings = Self::in_folders(hub_cache, url_cache);
        if let Some(endpoint) = get("HF_ENDPOINT") {
            settings.endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        }
        settings.token = match get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN")) {
            Some(text) => token(&text)?,
            None => {
                let path = get("HF_TOKEN_PATH").map(&folder).or_else(|| Some(hf_home.ok()?.join("token")));
                // An unreadable file counts as no token.
                let text = path.and_then(|path| fs::read_to_string(path).ok());
                text.map_or(Ok(None), |text| token(&text))?
            }
        };
        for name in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "WEIGHTLOOM_OFFLINE"] {
            if get(name).is_some_and(|value| is_true(&value)) {
                settings.network = NetworkAccess::Offline;
            }
        }
        if let Some(connections) = number("WEIGHTLOOM_FETCH_CONNECTIONS", &get)? {
            settings.connections = connections.clamp(1, 64) as usize;
        }
        if let Some(retries) = number("WEIGHTLOOM_FETCH_RETRIES", &get)? {
            settings.retry.max_retries = retries.min(1000) as u32;
        }
        if let Some(seconds) = number("WEIGHTLOOM_FETCH_TIMEOUT", &get)? {
            settings.stall_timeout = Duration::from_secs(seconds.clamp(1, 86_400));
            settings.connect_timeout = settings.stall_timeout;
        }
        settings.cache_check = match get("WEIGHTLOOM_FETCH_CHECK").as_deref() {
            None | Some("sizes") => CacheCheck::Sizes,
            Some("hashes") => CacheCheck::Hashes,
            Some(other) => {
                let problem = format!("`{other}` is neither `sizes` nor `hashes`");
                return Err(FetchError::Setting { name: "WEIGHTLOOM_FETCH_CHECK", problem });
            }
        };
        let proxy = |name: &str| get(&name.to_lowercase()).or_else(|| get(name));
        settings.proxies = Proxies {
            http: proxy("HTTP_PROXY"),
            https: proxy("HTTPS_PROXY"),
            all: proxy("ALL_PROXY"),
            except: proxy("NO_PROXY"),
        };
        Ok(settings)
    }
}

fn token(text: &str) -> Result<Option<Secret>, FetchError> {
    Secret::parse(text)
        .map_err(|error: InvalidSecret| FetchError::Setting { name: "HF_TOKEN", problem: error.to_string() })
}

fn is_true(value: &str) -> bool {
    matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true")
}

fn number(name: &'static str, get: &impl Fn(&str) -> Option<String>) -> Result<Option<u64>, FetchError> {
    let Some(text) = get(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(FetchError::Setting { name, problem: format!("`{text}` is not an integer") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<FetchSettings, FetchError> {
        FetchSettings::from_lookup(|name| {
            pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn folders_follow_the_rules_of_huggingface_hub() {
        let plain = from(&[("HOME", "/home/me")]).unwrap();
        assert_eq!(plain.hub_cache, Path::new("/home/me/.cache/huggingface/hub"));
        assert_eq!(plain.url_cache, Path::new("/home/me/.cache/weightloom"));
        assert_eq!(plain.endpoint, "https://huggingface.co");
        let xdg = from(&[("HOME", "/home/me"), ("XDG_CACHE_HOME", "/x")]).unwrap();
        assert_eq!(xdg.hub_cache, Path::new("/x/huggingface/hub"));
        assert_eq!(xdg.url_cache, Path::new("/x/weightloom"));
        let hf = from(&[("HOME", "/home/me"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/hf")]).unwrap();
        assert_eq!(hf.hub_cache, Path::new("/home/me/hf/hub"));
        let hub = from(&[("HOME", "/home/me"), ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/hub")]).unwrap();
        assert_eq!(hub.hub_cache, Path::new("/hub"));
        let own = from(&[("HOME", "/home/me"), ("WEIGHTLOOM_CACHE_DIR", "/own")]).unwrap();
        assert_eq!(own.url_cache, Path::new("/own"));
    }

    #[test]
    fn without_a_home_folder_the_error_names_the_variable() {
        let error = from(&[]).unwrap_err();
        assert!(matches!(error, FetchError::Setting { name: "HF_HOME", .. }), "{error}");
    }

    #[test]
    fn the_token_comes_from_the_variable_or_the_file_and_is_never_printed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), "hf_from_file\n").unwrap();
        let home = folder.path().to_str().unwrap();
        let file = from(&[("HOME", "/h"), ("HF_HOME", home)]).unwrap();
        assert_eq!(file.token.as_ref().unwrap().expose(), "hf_from_file");
        let variable = from(&[("HOME", "/h"), ("HF_HOME", home), ("HF_TOKEN", " hf_variable ")]).unwrap();
        assert_eq!(variable.token.as_ref().unwrap().expose(), "hf_variable");
        assert!(!format!("{variable:?}").contains("hf_variable"));
        let error = from(&[("HOME", "/h"), ("HF_TOKEN", "hf_se\ncret")]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("cret"));
    }

    #[test]
    fn any_of_three_variables_selects_offline_mode() {
        for name in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "WEIGHTLOOM_OFFLINE"] {
            assert_eq!(from(&[("HOME", "/h"), (name, "1")]).unwrap().network, NetworkAccess::Offline);
            assert_eq!(from(&[("HOME", "/h"), (name, "0")]).unwrap().network, NetworkAccess::Online);
        }
    }

    #[test]
    fn numbers_are_parsed_and_clamped() {
        let settings = from(&[("HOME", "/h"), ("WEIGHTLOOM_FETCH_CONNECTIONS", "0")]).unwrap();
        assert_eq!(settings.connections, 1);
        assert!(from(&[("HOME", "/h"), ("WEIGHTLOOM_FETCH_RETRIES", "many")]).is_err());
    }

    #[test]
    fn passwords_of_proxies_are_never_printed() {
        let settings = from(&[("HOME", "/h"), ("https_proxy", "http://me:secret@proxy")]).unwrap();
        assert_eq!(settings.proxies.https.as_deref(), Some("http://me:secret@proxy"));
        assert!(!format!("{settings:?}").contains("secret"));
    }
}
