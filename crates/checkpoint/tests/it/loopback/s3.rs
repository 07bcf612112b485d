//! A real S3 server over a temporary folder.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connections;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use weightloom_checkpoint::storage::{ObjectOptions, ObjectStorage};

pub const ACCESS_KEY: &str = "HIDDENACCESSKEY";
pub const SECRET_KEY: &str = "hidden/secret/key";

/// Runs until it is dropped.
pub struct S3 {
    pub address: SocketAddr,
    folder: TempDir,
    runtime: Option<Runtime>,
}

impl S3 {
    /// A server with one empty bucket, `bucket`.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bucket")).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(folder.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let connections = Connections::new(TokioExecutor::new());
                    let _ = connections.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, folder, runtime: Some(runtime) }
    }

    /// What the server keeps that is neither a file nor about one: pieces and
    /// uploads that are under way.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap());
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(".upload"))
            .map(|entry| entry.path())
            .collect()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Options that reach a server, lose no time, and cut files into small pieces.
pub fn options(address: SocketAddr) -> ObjectOptions {
    let mut options = ObjectOptions::default();
    options.read_part = 256 << 10;
    // Servers do not take less, but for the last piece.
    options.write_part = 5 << 20;
    options.retry.max_retries = 4;
    options.retry.initial_backoff = Duration::from_millis(2);
    options.retry.max_backoff = Duration::from_millis(20);
    options.timeout = Duration::from_secs(20);
    let settings = [
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
    ];
    options.settings = settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    options
}

pub fn open(address: SocketAddr, url: &str) -> ObjectStorage {
    ObjectStorage::open(url, options(address)).unwrap()
}
