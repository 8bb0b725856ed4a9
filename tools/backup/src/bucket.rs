//! [`Bucket`]: a repository's objects in an object store that speaks the protocol of S3.
//!
//! There is no lock. `put_new` is a conditional write (`If-None-Match: *`); [`Bucket::probe`]
//! checks that the store keeps to it. What is longer than a part is uploaded in parts, of which a
//! few are in memory; the object appears with the last request. If that fails, the parts are given
//! up. Those of a process that was killed stay invisible and cost space: a rule of the bucket
//! should end unfinished uploads after some days.
//!
//! A runtime of its own does the work, so that callers need none and may have one.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
};
use tamis::vfs::FileLock;
use tamis::{Error, Result};
use tokio::runtime::{Builder, Runtime};

use crate::journal::token;
use crate::storage::{Fill, Listed, Storage, Take};
use crate::{MARKER_NAME, invalid};

/// Bytes of a part of a longer object.
const PART: usize = 8 << 20;
/// Parts on their way at a time.
const PARTS_IN_FLIGHT: usize = 4;
/// How often a request is made that the client library does not repeat.
const ATTEMPTS: usize = 4;
/// The folder of the objects of [`Bucket::probe`].
const PROBES: &str = "probe";

pub(crate) struct Bucket {
    store: Arc<AmazonS3>,
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
    address: String,
    prefix: String,
    /// Whether conditional writes are known to work.
    is_probed: Mutex<bool>,
}

impl Bucket {
    /// The bucket and prefix of an address like `s3://bucket/prefix`.
    pub(crate) fn open(address: &str) -> Result<Bucket> {
        let Some((name, prefix)) = address.strip_prefix("s3://").map(|rest| rest.split_once('/').unwrap_or((rest, "")))
        else {
            return Err(invalid(format_args!("{address:?} is no address of a bucket, like s3://bucket/prefix")));
        };
        // Fails if the process has chosen another one, which then is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = AmazonS3Builder::from_env().with_bucket_name(name).build();
        let store = store.map_err(|error| failed("open", address, error))?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| io_error("open", address, error))?;
        let prefix = prefix.trim_matches('/').to_owned();
        let address = address.trim_end_matches('/').to_owned();
        Ok(Bucket { store: Arc::new(store), runtime: Some(runtime), address, prefix, is_probed: Mutex::new(false) })
    }

    fn location(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.prefix))
    }

    fn address_of(&self, name: &str) -> String {
        if name.is_empty() { self.address.clone() } else { format!("{}/{name}", self.address) }
    }

    /// Starts a future on the runtime; its output arrives.
    fn start<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> mpsc::Receiver<T> {
        let (sender, receiver) = mpsc::channel();
        if let Some(runtime) = &self.runtime {
            // Nobody waits for it if this fails.
            runtime.spawn(async move { _ = sender.send(future.await) });
        }
        receiver
    }

    fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Outcome<T> {
        received(&self.start(future))
    }

    /// Has two conditional writes race for one name, and a third follow: no two may win.
    fn probe(&self) -> Result<()> {
        let name = format!("{PROBES}/{:016x}", token());
        let location = self.location(&name);
        let race = ["one", "other"].map(|content| self.start(conditional(&self.store, &location, content.into())));
        let results = race.map(|receiver| received(&receiver).map(drop));
        // One that comes later must be refused, too.
        let late = self.run(conditional(&self.store, &location, "late".into())).map(drop);
        let _ = self.remove(&[name]);
        let results: Vec<Outcome<()>> = results.into_iter().chain([late]).collect();
        let is_refused = |result: &Outcome<()>| matches!(result, Err(StoreError::AlreadyExists { .. }));
        if results.iter().filter(|result| result.is_ok()).count() > 1 {
            return Err(self.unsupported());
        }
        match results.iter().any(is_refused) {
            true => Ok(()),
            // Nothing is shown, because requests have failed.
            false => Err(failed("write conditionally to", &self.address, first_error(results))),
        }
    }

    fn unsupported(&self) -> Error {
        let what = "it lets two writers create one object (If-None-Match is not enforced), so that backups could \
                    overwrite each other";
        io_error("back up to", &self.address, io::Error::new(io::ErrorKind::Unsupported, what))
    }

    fn list_under(&self, folder: &str) -> Result<Vec<object_store::ObjectMeta>> {
        let (store, location) = (Arc::clone(&self.store), self.location(folder));
        let listed = self.run(async move { store.list(Some(&location)).try_collect().await });
        listed.map_err(|error| failed("list", &self.address_of(folder), error))
    }
}

/// The result of a request.
type Outcome<T> = std::result::Result<T, StoreError>;

fn received<T>(receiver: &mpsc::Receiver<Outcome<T>>) -> Outcome<T> {
    // The task sends, or has panicked.
    receiver.recv().unwrap_or_else(|error| Err(StoreError::Generic { store: "S3", source: error.into() }))
}

/// A conditional write.
fn conditional(
    store: &Arc<AmazonS3>,
    location: &Path,
    content: PutPayload,
) -> impl Future<Output = Outcome<object_store::PutResult>> + Send + 'static {
    let (store, location) = (Arc::clone(store), location.clone());
    async move { store.put_opts(&location, content, PutMode::Create.into()).await }
}

impl Storage for Bucket {
    fn path(&self, name: &str) -> PathBuf {
        self.address_of(name).into()
    }

    fn prepare(&self) -> Result<()> {
        let root = self.location("");
        let others = self.list_under("")?;
        let name = |location: &Path| location.as_ref()[root.as_ref().len()..].trim_start_matches('/').to_owned();
        let is_other = |name: &String| name != MARKER_NAME && !name.starts_with(PROBES);
        match others.iter().map(|meta| name(&meta.location)).find(is_other) {
            None => Ok(()),
            Some(name) => Err(invalid(format_args!(
                "{} holds {name}; a backup repository is created under an unused prefix",
                self.address
            ))),
        }
    }

    fn begin(&self) -> Result<Option<Box<dyn FileLock>>> {
        let mut is_probed = self.is_probed.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_probed {
            self.probe()?;
            *is_probed = true;
        }
        Ok(None)
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>> {
        let listed = self.list_under(folder)?.into_iter().filter_map(|meta| {
            let name = format!("{folder}/{}", meta.location.filename()?);
            Some(Listed { name, size: meta.size, modified: Some(meta.last_modified.into()) })
        });
        Ok(listed.collect())
    }

    fn read(&self, name: &str, take: &mut Take<'_>) -> Result<()> {
        let fail = |error| failed("read", &self.address_of(name), error);
        let (mut offset, mut len, mut attempts) = (0, u64::MAX, 0);
        while offset < len {
            let (store, location) = (Arc::clone(&self.store), self.location(name));
            // What was received need not be fetched again: objects do not change.
            let range = (offset > 0).then_some(GetRange::Offset(offset));
            let options = GetOptions { range, ..GetOptions::default() };
            let result = self.run(async move { store.get_opts(&location, options).await }).map_err(fail)?;
            len = result.meta.size;
            let mut pieces = result.into_stream();
            let broken = loop {
                let receiver = self.start(async move { (pieces.next().await, pieces) });
                let (piece, rest) = receiver.recv().map_err(|_| stopped(&self.address_of(name)))?;
                pieces = rest;
                match piece {
                    Some(Ok(piece)) => {
                        offset += piece.len() as u64;
                        take(&piece)?;
                    }
                    Some(Err(error)) => break Some(error),
                    None => break None,
                }
            };
            attempts += 1;
            match broken {
                Some(error) if attempts == ATTEMPTS => return Err(fail(error)),
                None if offset < len && attempts == ATTEMPTS => return Err(stopped(&self.address_of(name))),
                _ => {}
            }
        }
        Ok(())
    }

    fn exists(&self, name: &str) -> Result<bool> {
        let (store, location) = (Arc::clone(&self.store), self.location(name));
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.run(async move { store.get_opts(&location, options).await }) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(failed("look up", &self.address_of(name), error)),
        }
    }

    fn put(&self, name: &str, fill: &mut Fill<'_>) -> Result<()> {
        let mut upload = Upload { bucket: self, name, buffer: Vec::new(), multipart: None, in_flight: Vec::new() };
        match fill(&mut |bytes| upload.append(bytes)) {
            Ok(()) => upload.finish(),
            Err(error) => {
                upload.abort();
                Err(error)
            }
        }
    }

    fn put_new(&self, name: &str, content: &[u8]) -> Result<bool> {
        let content = PutPayload::from(content.to_vec());
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.run(conditional(&self.store, &self.location(name), content.clone())) {
                Ok(_) => return Ok(true),
                Err(StoreError::AlreadyExists { .. }) => return Ok(false),
                // It may have been written: then the next attempt says that it exists.
                Err(StoreError::Generic { .. }) if attempts < ATTEMPTS => {}
                Err(error) => return Err(failed("write", &self.address_of(name), error)),
            }
        }
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let store = Arc::clone(&self.store);
        let locations: Vec<_> = names.iter().map(|name| Ok(self.location(name))).collect();
        let removed = self.run(async move {
            let mut removed = store.delete_stream(stream::iter(locations).boxed());
            while let Some(result) = removed.next().await {
                match result {
                    Ok(_) | Err(StoreError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        removed.map_err(|error| failed("remove objects of", &self.address, error))
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // Waiting is not allowed within another runtime, and nothing is under way.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("address", &self.address).finish()
    }
}

/// An object that is being written.
struct Upload<'a> {
    bucket: &'a Bucket,
    name: &'a str,
    /// What has not been sent, at most a part.
    buffer: Vec<u8>,
    /// If the object has more than one part.
    multipart: Option<Box<dyn MultipartUpload>>,
    in_flight: Vec<mpsc::Receiver<Outcome<()>>>,
}

impl Upload<'_> {
    fn failed(&self, error: StoreError) -> Error {
        failed("write", &self.bucket.address_of(self.name), error)
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.buffer.len() == PART {
                self.send_part()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(PART - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn send_part(&mut self) -> Result<()> {
        let part = PutPayload::from(std::mem::take(&mut self.buffer));
        if self.multipart.is_none() {
            let (store, location) = (Arc::clone(&self.bucket.store), self.bucket.location(self.name));
            let begun = self.bucket.run(async move { store.put_multipart(&location).await });
            self.multipart = Some(begun.map_err(|error| self.failed(error))?);
        }
        while self.in_flight.len() >= PARTS_IN_FLIGHT {
            let first = self.in_flight.remove(0);
            received(&first).map_err(|error| self.failed(error))?;
        }
        if let Some(multipart) = &mut self.multipart {
            self.in_flight.push(self.bucket.start(multipart.put_part(part)));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        if self.multipart.is_none() {
            let (store, location) = (Arc::clone(&self.bucket.store), self.bucket.location(self.name));
            let content = PutPayload::from(std::mem::take(&mut self.buffer));
            let written = self.bucket.run(async move { store.put(&location, content).await });
            return written.map(drop).map_err(|error| self.failed(error));
        }
        let sent = self.send_part().and_then(|()| {
            std::mem::take(&mut self.in_flight)
                .iter()
                .try_for_each(|part| received(part).map_err(|error| self.failed(error)))
        });
        let Some(mut multipart) = self.multipart.take() else { return sent };
        if let Err(error) = sent {
            self.multipart = Some(multipart);
            self.abort();
            return Err(error);
        }
        let (completed, rest) = match self.bucket.start(async move { (multipart.complete().await, multipart) }).recv() {
            Ok(completed) => completed,
            Err(_) => return Err(stopped(&self.bucket.address_of(self.name))),
        };
        completed.map(drop).map_err(|error| {
            self.multipart = Some(rest);
            let error = self.failed(error);
            self.abort();
            error
        })
    }

    /// Gives up the parts, if that is possible.
    fn abort(&mut self) {
        for part in std::mem::take(&mut self.in_flight) {
            let _ = part.recv();
        }
        if let Some(mut multipart) = self.multipart.take() {
            let _ = self.bucket.run(async move { multipart.abort().await });
        }
    }
}

fn failed(operation: &'static str, address: &str, error: StoreError) -> Error {
    let kind = match &error {
        StoreError::NotFound { .. } => io::ErrorKind::NotFound,
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => io::ErrorKind::Unsupported,
        StoreError::InvalidPath { .. } => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io_error(operation, address, io::Error::new(kind, error))
}

fn first_error(results: Vec<Outcome<()>>) -> StoreError {
    let error = results.into_iter().find_map(Result::err);
    error.unwrap_or_else(|| StoreError::Generic { store: "S3", source: "no write was refused".into() })
}

fn stopped(address: &str) -> Error {
    io_error("read", address, io::Error::new(io::ErrorKind::UnexpectedEof, "the transfer stopped before the end"))
}

fn io_error(operation: &'static str, address: &str, source: io::Error) -> Error {
    Error::Io { operation, path: address.into(), source: Arc::new(source) }
}
