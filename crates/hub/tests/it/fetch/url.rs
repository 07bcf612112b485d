//! Single files from web servers, and their cache.

use std::fs;
use std::path::Path;

use weightloom_hub::fetch::{Completeness, Expected, FetchError, NetworkAccess, Secret, fetch_url};

use super::server::{Act, File, Server};
use super::{noise, settings, sha256};

const NOBODY: &str = "http://127.0.0.1:9";

#[test]
fn an_unchanged_file_costs_one_request() {
    for tagged in [true, false] {
        let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
        let settings = settings(folder.path(), NOBODY);
        let mut file = File::new(noise(40_000, 1));
        match tagged {
            true => file = file.etag("one"),
            false => file.modified = Some("Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
        }
        server.put("/a.bin", file);
        let fetch = || fetch_url(&settings, &server.at("/a.bin"), &Expected::default(), &()).unwrap();
        let first = fetch();
        server.forget();
        assert_eq!(fetch(), first);
        assert_eq!((server.seen().len(), server.sent()), (1, 0));
        let newer = noise(50_000, 2);
        server.put("/a.bin", File::new(newer.clone()).etag("two"));
        assert!(fs::read(fetch().path).unwrap() == newer);
    }
}

#[test]
fn files_keep_their_names_and_urls_stay_separate() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let settings = settings(folder.path(), NOBODY);
    for (path, name) in [
        ("/a/model.gguf", "model.gguf"),
        ("/b/model.gguf", "model.gguf"),
        ("/", "file"),
        ("/c?x=1", "c"),
        ("/c?x=2", "c"),
    ] {
        server.put(path, File::new(path.as_bytes()));
        let fetched = fetch_url(&settings, &server.at(path), &Expected::default(), &()).unwrap();
        assert_eq!(fs::read(&fetched.path).unwrap(), path.as_bytes());
        assert_eq!(fetched.path.file_name(), Some(name.as_ref()));
        assert!(fetched.path.starts_with(folder.path().join("own/downloads")));
    }
}

#[test]
fn escapes_in_a_url_do_not_leave_the_cache() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let settings = settings(folder.path(), NOBODY);
    server.put("/a/..%2f..%2fevil", File::new(b"x".to_vec()));
    let fetched = fetch_url(&settings, &server.at("/a/..%2f..%2fevil"), &Expected::default(), &()).unwrap();
    assert_eq!(fetched.path.file_name(), Some("..%2f..%2fevil".as_ref()));
    assert_eq!(
        fetched.path.parent().and_then(Path::parent),
        Some(folder.path().join("own/downloads").as_path())
    );
}

#[test]
fn offline_mode_uses_only_matching_files() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let mut settings = settings(folder.path(), NOBODY);
    let bytes = noise(40_000, 1);
    server.put("/a.bin", File::new(bytes.clone()).etag("one"));
    let url = server.at("/a.bin");
    let online = fetch_url(&settings, &url, &Expected::default(), &()).unwrap();
    settings.network = NetworkAccess::Offline;
    server.forget();
    let right = Expected { size: None, sha256: Some(sha256(&bytes)) };
    let wrong = Expected { size: None, sha256: Some(sha256(b"other")) };
    assert_eq!(fetch_url(&settings, &url, &Expected::default(), &()).unwrap(), online);
    assert_eq!(fetch_url(&settings, &url, &right, &()).unwrap().completeness, Completeness::Checked);
    for (url, expected) in [(url.clone(), wrong), (server.at("/b.bin"), right)] {
        let error = fetch_url(&settings, &url, &expected, &()).unwrap_err();
        assert!(matches!(error, FetchError::NotCached { .. }), "{error}");
    }
    fs::write(&online.path, b"cut").unwrap();
    let error = fetch_url(&settings, &url, &Expected::default(), &()).unwrap_err();
    assert!(matches!(error, FetchError::NotCached { .. }), "{error}");
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn a_file_in_the_cache_with_another_hash_is_replaced() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let settings = settings(folder.path(), NOBODY);
    server.put("/a", File::new(noise(40_000, 1)).etag("one"));
    fetch_url(&settings, &server.at("/a"), &Expected::default(), &()).unwrap();
    let newer = noise(40_000, 2);
    server.put("/a", File::new(newer.clone()).etag("one"));
    let expected = Expected { size: None, sha256: Some(sha256(&newer)) };
    let fetched = fetch_url(&settings, &server.at("/a"), &expected, &()).unwrap();
    assert!(fs::read(fetched.path).unwrap() == newer);
}

#[test]
fn the_token_goes_to_the_hub_only() {
    let (server, hub, folder) = (Server::start(), Server::start(), tempfile::tempdir().unwrap());
    let mut settings = settings(folder.path(), &hub.url());
    settings.token = Secret::parse("hf_secret").unwrap();
    server.put("/a", File::new(b"1".to_vec()));
    hub.put("/a", File::new(b"2".to_vec()));
    // Also if somebody else sends us there and back.
    server.put("/b", File::new(b"").always(Act::Status(302, vec![("Location", hub.at("/b"))])));
    hub.put("/b", File::new(b"").always(Act::Status(302, vec![("Location", server.at("/a"))])));
    for url in [server.at("/a"), hub.at("/a"), server.at("/b")] {
        fetch_url(&settings, &url, &Expected::default(), &()).unwrap();
    }
    assert!(server.seen().iter().all(|seen| !seen.headers.contains_key("authorization")));
    assert!(hub.seen().iter().all(|seen| seen.headers.contains_key("authorization")));
}

#[test]
fn errors_of_urls_leave_out_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), NOBODY);
    for url in
        ["", "no url", "ftp://host/x", "http://", "http://me:secret@host/x", "ssh://me:secret@host?secret"]
    {
        let error = fetch_url(&settings, url, &Expected::default(), &()).unwrap_err();
        assert!(matches!(error, FetchError::Url { .. }), "{error}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
    let server = Server::start();
    let error = fetch_url(&settings, &server.at("/x?key=secret"), &Expected::default(), &()).unwrap_err();
    assert!(matches!(error, FetchError::NotFound { .. }), "{error}");
    assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    let odd = Expected { size: None, sha256: Some("abc".to_owned()) };
    assert!(fetch_url(&settings, &server.at("/x"), &odd, &()).is_err());
}

#[test]
fn requests_use_the_proxy_unless_the_host_is_excepted() {
    let (proxy, server, folder) = (Server::start(), Server::start(), tempfile::tempdir().unwrap());
    let mut settings = settings(folder.path(), NOBODY);
    settings.proxies.http = Some(proxy.url());
    settings.proxies.except = Some("127.0.0.1".to_owned());
    // A name that nobody has.
    proxy.put("http://models.invalid/a", File::new(b"1".to_vec()));
    server.put("/a", File::new(b"2".to_vec()));
    for (url, bytes) in [("http://models.invalid/a".to_owned(), b"1"), (server.at("/a"), b"2")] {
        let fetched = fetch_url(&settings, &url, &Expected::default(), &()).unwrap();
        assert_eq!(fs::read(fetched.path).unwrap(), bytes);
    }
    assert_eq!((proxy.seen().len(), server.seen().len()), (1, 1));
    settings.proxies.http = Some("http://me:secret@".to_owned());
    let error = fetch_url(&settings, "http://models.invalid/b", &Expected::default(), &()).unwrap_err();
    assert!(matches!(error, FetchError::Setting { name: "HTTP_PROXY", .. }), "{error}");
    assert!(!format!("{error:?}").contains("secret"));
}
