//! Construction of clients: from the environment, then from explicit settings.
//!
//! The client library reads the environment, because it knows the variables of
//! each service. Nothing else in this crate does.

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
use super::watch::RecordingConnector;

/// No retries in the client library: `RetryPolicy` decides about them.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Applies settings to a builder: environment, options, then time limits.
macro_rules! configured {
    ($builder:expr, $client:path, $remote:expr, $options:expr) => {{
        let mut builder = $builder.with_retry(no_retries()).with_http_connector(RecordingConnector);
        for (key, value) in &$options.settings {
            let known = key.to_ascii_lowercase().parse().map_err(|_| StorageError::UnknownSetting {
                key: key.clone(),
                location: format!("`{}`", $remote.shown()),
            })?;
            builder = builder.with_config(known, value);
        }
        for (key, value) in time_limits($options) {
            builder = builder.with_config($client(key), value);
        }
        builder
    }};
}

/// Time limits of every request.
fn time_limits(options: &ObjectOptions) -> [(ClientConfigKey, String); 2] {
    let milliseconds = options.timeout.as_millis().max(1);
    [
        (ClientConfigKey::Timeout, format!("{milliseconds}ms")),
        (ClientConfigKey::ConnectTimeout, format!("{}ms", milliseconds.min(5_000))),
    ]
}

/// Connects to a bucket or web server.
pub(super) fn connect(remote: &Remote, options: ObjectOptions) -> Result<Bucket, StorageError> {
    let failed = |error: object_store::Error| StorageError::Remote {
        action: "connect to",
        file: remote.shown(),
        service: remote.service,
        fault: RemoteProblem::Settings,
        message: redact(&error.to_string()),
    };
    let name = &remote.authority;
    let (store, parts): (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>) = match remote.service {
        Service::S3 => {
            use object_store::aws::AmazonS3ConfigKey as Key;
            // Not every S3-compatible service supports bulk deletes, and we
            // never use them.
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
            // An explicit http:// allows it.
            let plain = remote.is_plain().to_string();
            let builder = builder.with_config(ClientConfigKey::AllowHttp, plain).with_url(remote.web_url());
            (Arc::new(builder.build().map_err(failed)?), None)
        }
    };
    // The URL of a web server already contains the path.
    let segments = if remote.service == Service::Web { &[][..] } else { &remote.segments };
    let prefix = Path::parse(segments.join("/")).map_err(|_| StorageError::Url {
        url: remote.shown(),
        problem: "a component of its path is not a valid name",
    })?;
    Ok(Bucket::new(store, parts, remote.service, prefix, remote.shown(), options))
}

/// A store for whole files and for multipart uploads.
fn both<S: ObjectStore + MultipartStore>(
    store: S,
) -> (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>) {
    let store = Arc::new(store);
    (Arc::clone(&store) as Arc<dyn ObjectStore>, Some(store))
}
