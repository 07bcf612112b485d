//! Where files come from, where they go, and how patient we are.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::FetchError;

/// The hub that is asked unless another one is set.
const HUB: &str = "https://huggingface.co";

/// Where files come from, where they go, and how patient we are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FetchSettings {
    /// The hub, without a slash at its end.
    pub endpoint: String,
    /// Who we are. Sent to the endpoint and to nobody else.
    pub token: Option<Token>,
    /// The folder with `models--…`, as `huggingface_hub` lays it out.
    pub hub_cache: PathBuf,
    /// The folder for files of other servers.
    pub url_cache: PathBuf,
    /// Whether anybody may be asked.
    pub reach: Reach,
    /// What is done about files that somebody else put into the cache.
    pub existing: Existing,
    /// Servers that requests go through.
    pub proxies: Proxies,
    /// How many ranges or files are fetched side by side.
    pub connections: usize,
    /// Bytes of one range.
    pub range_bytes: u64,
    /// How often the record of what has arrived is written.
    pub record_every: Duration,
    /// How often a request is repeated that brings no new byte.
    pub retries: u32,
    /// The wait before the first repetition; each further one is twice as
    /// long.
    pub first_wait: Duration,
    /// The longest of these waits.
    pub longest_wait: Duration,
    /// The longest wait that a server may ask for.
    pub longest_asked_wait: Duration,
    /// How long a server may take to be there.
    pub connect_timeout: Duration,
    /// How long nothing may come.
    pub stall_timeout: Duration,
}

/// Whether anybody may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Files are fetched.
    Online,
    /// Only the cache is used.
    Offline,
}

/// What is done about files in the cache that we have not checked ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// They count if they have the right size; the result says so.
    Sizes,
    /// They are read once and count if they have the right hash.
    Hashes,
}

/// Servers that requests go through.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// For `http:`.
    pub http: Option<String>,
    /// For `https:`.
    pub https: Option<String>,
    /// For both.
    pub all: Option<String>,
    /// Names that are asked without any.
    pub except: Option<String>,
}

/// A secret that says who we are. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, unless there is nothing but space in the text.
    pub fn new(text: &str) -> Result<Option<Self>, FetchError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = "it has characters in it that no token has".to_owned();
            return Err(FetchError::Setting { name: "HF_TOKEN", problem });
        }
        Ok(Some(Self(text.to_owned())))
    }

    /// The secret, for the one header that it belongs into.
    pub(super) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Their addresses may have passwords in them.
        let set = [&self.http, &self.https, &self.all].into_iter().flatten().count();
        f.debug_struct("Proxies").field("set", &set).field("except", &self.except).finish()
    }
}

impl FetchSettings {
    /// Defaults, with the caches in two folders.
    pub fn in_folders(hub_cache: impl Into<PathBuf>, url_cache: impl Into<PathBuf>) -> Self {
        Self {
            endpoint: HUB.to_owned(),
            token: None,
            hub_cache: hub_cache.into(),
            url_cache: url_cache.into(),
            reach: Reach::Online,
            existing: Existing::Sizes,
            proxies: Proxies::default(),
            connections: 8,
            range_bytes: 32 << 20,
            record_every: Duration::from_secs(2),
            retries: 6,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(30),
            longest_asked_wait: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(20),
            stall_timeout: Duration::from_secs(30),
        }
    }

    /// The settings that variables say, by the names and rules of
    /// `huggingface_hub`: `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`,
    /// `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `XDG_CACHE_HOME`. Besides
    /// there are `WEIGHTLOOM_CACHE_DIR`, `WEIGHTLOOM_OFFLINE`,
    /// `WEIGHTLOOM_FETCH_CONNECTIONS`, `WEIGHTLOOM_FETCH_RETRIES`,
    /// `WEIGHTLOOM_FETCH_TIMEOUT` (seconds) and `WEIGHTLOOM_FETCH_CHECK`
    /// (`sizes` or `hashes`). `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and
    /// `NO_PROXY` count in capitals and in small letters.
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
            (None, None) => Err(FetchError::Setting {
                name,
                problem: "it is not set, and HOME is not set either".to_owned(),
            }),
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
            Some(text) => Token::new(&text)?,
            None => {
                let path = get("HF_TOKEN_PATH").map(&folder).or_else(|| Some(hf_home.ok()?.join("token")));
                // No file, no token; one that we may not read is as good as none.
                let text = path.and_then(|path| fs::read_to_string(path).ok());
                text.map_or(Ok(None), |text| Token::new(&text))?
            }
        };
        for name in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "WEIGHTLOOM_OFFLINE"] {
            if get(name).is_some_and(|value| is_true(&value)) {
                settings.reach = Reach::Offline;
            }
        }
        if let Some(connections) = number("WEIGHTLOOM_FETCH_CONNECTIONS", &get)? {
            settings.connections = connections.clamp(1, 64) as usize;
        }
        if let Some(retries) = number("WEIGHTLOOM_FETCH_RETRIES", &get)? {
            settings.retries = retries.min(1000) as u32;
        }
        if let Some(seconds) = number("WEIGHTLOOM_FETCH_TIMEOUT", &get)? {
            settings.stall_timeout = Duration::from_secs(seconds.clamp(1, 86_400));
            settings.connect_timeout = settings.stall_timeout;
        }
        settings.existing = match get("WEIGHTLOOM_FETCH_CHECK").as_deref() {
            None | Some("sizes") => Existing::Sizes,
            Some("hashes") => Existing::Hashes,
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

fn is_true(value: &str) -> bool {
    matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true")
}

fn number(name: &'static str, get: &impl Fn(&str) -> Option<String>) -> Result<Option<u64>, FetchError> {
    let Some(text) = get(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(FetchError::Setting { name, problem: format!("`{text}` is no whole number") }),
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
    fn without_any_home_the_variable_is_named() {
        let error = from(&[]).unwrap_err();
        assert!(matches!(error, FetchError::Setting { name: "HF_HOME", .. }), "{error}");
    }

    #[test]
    fn the_token_comes_from_the_variable_or_the_file_and_is_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), "hf_from_file\n").unwrap();
        let home = folder.path().to_str().unwrap();
        let file = from(&[("HOME", "/h"), ("HF_HOME", home)]).unwrap();
        assert_eq!(file.token.as_ref().unwrap().secret(), "hf_from_file");
        let variable = from(&[("HOME", "/h"), ("HF_HOME", home), ("HF_TOKEN", " hf_variable ")]).unwrap();
        assert_eq!(variable.token.as_ref().unwrap().secret(), "hf_variable");
        assert!(!format!("{variable:?}").contains("hf_variable"));
        let error = from(&[("HOME", "/h"), ("HF_TOKEN", "hf_se\ncret")]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("cret"));
    }

    #[test]
    fn any_of_three_variables_switches_fetching_off() {
        for name in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "WEIGHTLOOM_OFFLINE"] {
            assert_eq!(from(&[("HOME", "/h"), (name, "1")]).unwrap().reach, Reach::Offline);
            assert_eq!(from(&[("HOME", "/h"), (name, "0")]).unwrap().reach, Reach::Online);
        }
    }

    #[test]
    fn numbers_are_numbers() {
        let settings = from(&[("HOME", "/h"), ("WEIGHTLOOM_FETCH_CONNECTIONS", "0")]).unwrap();
        assert_eq!(settings.connections, 1);
        assert!(from(&[("HOME", "/h"), ("WEIGHTLOOM_FETCH_RETRIES", "many")]).is_err());
    }

    #[test]
    fn the_passwords_of_proxies_are_not_shown() {
        let settings = from(&[("HOME", "/h"), ("https_proxy", "http://me:secret@proxy")]).unwrap();
        assert_eq!(settings.proxies.https.as_deref(), Some("http://me:secret@proxy"));
        assert!(!format!("{settings:?}").contains("secret"));
    }
}
