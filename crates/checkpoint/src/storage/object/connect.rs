//! Makes clients: from the environment, then from explicit settings.
//!
//! The environment is read by the client library, which knows the names that
//! each service's tools use. Nothing else of this crate looks at it.

use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::ClientConfigKey;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};

use super::super::address::{Remote, redact};
use super::super::{RemoteProblem, Service, StorageError};
use super::bucket::Bucket;
use super::options::ObjectOptions;
use super::watch::Watching;

/// Once: repeating is our own business, see `patience`.
fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Applies settings to a builder: what the environment says, then what the
/// options say, then what we need.
macro_rules! configured {
    ($builder:expr, $client:path, $remote:expr, $options:expr) => {{
        let mut builder = $builder.with_retry(once()).with_http_connector(Watching);
        for (key, value) in &$options.settings {
            let known = key.to_ascii_lowercase().parse().map_err(|_| StorageError::UnknownSetting {
                key: key.clone(),
                location: format!("`{}`", $remote.shown()),
            })?;
            builder = builder.with_config(known, value);
        }
        for (key, value) in limits($options) {
            builder = builder.with_config($client(key), value);
        }
        builder
    }};
}

/// Limits of every request.
fn limits(options: &ObjectOptions) -> [(ClientConfigKey, String); 2] {
    let milliseconds = options.timeout.as_millis().max(1);
    [
        (ClientConfigKey::Timeout, format!("{milliseconds}ms")),
        (ClientConfigKey::ConnectTimeout, format!("{}ms", milliseconds.min(5_000))),
    ]
}

/// The far end of a place.
pub(super) fn connect(remote: &Remote, options: ObjectOptions) -> Result<Bucket, StorageError> {
    let failed = |error: object_store::Error| StorageError::Remote {
        action: "reach",
        file: remote.shown(),
        service: remote.service,
        fault: RemoteProblem::Settings,
        message: redact(&error.to_string()),
    };
    let name = &remote.authority;
    let (store, parts): (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>) = match remote.service {
        Service::S3 => {
            use object_store::aws::AmazonS3ConfigKey as Key;
            // One by one: not all that speak S3 know how to remove many files
            // at once, and we never do.
            let builder = AmazonS3Builder::from_env().with_disable_bulk_delete(true);
            let builder = configured!(builder, Key::Client, remote, &options);
            both(builder.with_bucket_name(name).build().map_err(failed)?)
        }
        Service::Google => {
            use object_store::gcp::GoogleConfigKey as Key;
            let builder = configured!(GoogleCloudStorageBuilder::from_env(), Key::Client, remote, &options);
            both(builder.with_bucket_name(name).build().map_err(failed)?)
        }
        Service::Azure => {
            use object_store::azure::AzureConfigKey as Key;
            let builder = configured!(MicrosoftAzureBuilder::from_env(), Key::Client, remote, &options);
            both(builder.with_container_name(name).build().map_err(failed)?)
        }
        Service::Web => {
            let builder = configured!(HttpBuilder::new(), std::convert::identity, remote, &options);
            // Whoever writes http:// means it.
            let plain = remote.is_plain().to_string();
            let builder = builder.with_config(ClientConfigKey::AllowHttp, plain).with_url(remote.web_url());
            (Arc::new(builder.build().map_err(failed)?), None)
        }
    };
    // The address of a web server has its path in it already.
    let segments = if remote.service == Service::Web { &[][..] } else { &remote.segments };
    let prefix = Path::parse(segments.join("/"))
        .map_err(|_| StorageError::Url { url: remote.shown(), problem: "a part of its path is no name" })?;
    Ok(Bucket::new(store, parts, remote.service, prefix, remote.shown(), options))
}

/// A store as one that takes files whole and in pieces.
fn both<S: ObjectStore + MultipartStore>(
    store: S,
) -> (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>) {
    let store = Arc::new(store);
    (Arc::clone(&store) as Arc<dyn ObjectStore>, Some(store))
}
