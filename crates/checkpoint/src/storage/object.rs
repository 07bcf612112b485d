//! Storage in an object store or on a web server.

mod bucket;
mod connect;
mod options;
mod read;
mod runtime;
mod upload;
mod watch;

pub use options::ObjectOptions;

use std::sync::Arc;

use object_store::ObjectStoreExt;
use tokio::runtime::Handle;

use super::address::{Address, Remote};
use super::{Service, Storage, StorageError, Upload};
use crate::index::StoredFile;
use bucket::{Bucket, is_missing_file};
use upload::ObjectUpload;

/// Files in S3, Google Cloud Storage, Azure or on a web server.
///
/// Calls block and may come from any number of threads. Transient failures are
/// retried under [`ObjectOptions::retry`].
#[derive(Debug)]
pub struct ObjectStorage {
    bucket: Arc<Bucket>,
    runtime: Handle,
}

impl ObjectStorage {
    /// Opens a URL such as `s3://bucket/folder`, `gs://…`, `az://…` or
    /// `https://…`, without a request.
    pub fn open(url: &str, options: ObjectOptions) -> Result<Self, StorageError> {
        match Address::parse(url)? {
            Address::Remote(remote) => Self::at(&remote, options),
            Address::Local { path } => Err(StorageError::UnknownScheme { url: path }),
        }
    }

    /// Opens a parsed URL, without a request.
    pub fn at(remote: &Remote, options: ObjectOptions) -> Result<Self, StorageError> {
        let runtime = runtime::shared().map_err(|error| StorageError::io("reach", remote.shown(), &error))?;
        let bucket = {
            let _inside = runtime.enter();
            Arc::new(connect::connect(remote, options)?)
        };
        Ok(Self { bucket, runtime })
    }

    /// Fails for web servers, which only support reading single files.
    fn reject_web(&self, action: &'static str) -> Result<(), StorageError> {
        match self.bucket.service {
            Service::Web => Err(StorageError::Unsupported { action, location: self.location() }),
            _ => Ok(()),
        }
    }
}

impl Storage for ObjectStorage {
    fn location(&self) -> String {
        format!("`{}`", self.bucket.shown)
    }

    fn list(&self) -> Result<Vec<StoredFile>, StorageError> {
        self.reject_web("list the files of")?;
        let bucket = &*self.bucket;
        let prefix = Some(&bucket.prefix).filter(|prefix| !prefix.is_root());
        let listing = bucket.request(|| bucket.store.list_with_delimiter(prefix));
        let listing = runtime::wait_for(&self.runtime, listing)
            .map_err(|ended| bucket.failed("list", &bucket.shown, ended))?;
        let files = listing.objects.into_iter().filter_map(|object| {
            let mut parts = object.location.prefix_match(&bucket.prefix)?;
            // Web consoles represent folders by empty objects with the name of
            // the folder, which have no component left.
            let name = parts.next()?.as_ref().to_owned();
            Some(StoredFile { name, length: object.size })
        });
        let mut files: Vec<StoredFile> = files.collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        let (bucket, key) = (&*self.bucket, self.bucket.key(name)?);
        let meta = runtime::wait_for(&self.runtime, bucket.request(|| bucket.store.head(&key)))
            .map_err(|ended| bucket.failed_on("read", name, ended))?;
        bucket.record_version(name, &meta);
        Ok(meta.size)
    }

    fn read_at(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        runtime::wait_for(&self.runtime, read::read_at(&self.bucket, name, offset, into))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let mut upload = self.create(name)?;
        upload.write(bytes)?;
        upload.finish()
    }

    fn create(&self, name: &str) -> Result<Box<dyn Upload>, StorageError> {
        self.reject_web("write to")?;
        let upload = ObjectUpload::new(Arc::clone(&self.bucket), self.runtime.clone(), name)?;
        Ok(Box::new(upload))
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.reject_web("remove from")?;
        let (bucket, key) = (&*self.bucket, self.bucket.key(name)?);
        bucket.forget_version(name);
        match runtime::wait_for(&self.runtime, bucket.request(|| bucket.store.delete(&key))) {
            Err(ended) if !is_missing_file(&ended) => Err(bucket.failed("remove", name, ended)),
            _ => Ok(()),
        }
    }

    fn gap(&self) -> u64 {
        // Bytes transferred during the latency of one request.
        1 << 20
    }
}
