//! `kvd backup` and `kvd restore`: a repository of copies of a node's store, and a new cluster made
//! of one.
//!
//! A backup reads the store beside the node, takes no lock and needs no majority. It holds the
//! state of each group as the node last flushed it, and the log after that; a restore applies the
//! log, as a [recovery](recover) does. Between two generations, a backup that follows the store
//! keeps its log, so that a restore reaches any second as long as the node has not removed entries
//! from its log that the earlier generation lacks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use clap::Args;
use indicatif::HumanBytes;
use tamis::Db;
use tamis::vfs::{FileSystem, OsFileSystem};
use tamis_backup::{Backup, Base, FollowOptions, Point, Repository, Restored, StoreId};

use crate::error::{Error, Result};
use crate::node::{raise_file_limit, signals};
use crate::raft::{Member, Recovered, recover};
use crate::replica::NodeId;

/// Between two looks at what a backup that follows the store has done.
const PAUSE: Duration = Duration::from_millis(100);

/// What to back up, and where to.
#[derive(Debug, Args)]
pub(crate) struct BackupArguments {
    /// Directory of a node's store, which may be in use
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Directory of the repository, or its address (s3://BUCKET/PREFIX)
    #[arg(long, value_name = "REPOSITORY")]
    to: PathBuf,
    /// Afterwards, remove all generations of this store but the last N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Go on until SIGINT or SIGTERM, and keep the log between the generations
    #[arg(long)]
    follow: bool,
    /// Make a generation this often, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "follow",
          value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
}

/// What to restore, and where to.
#[derive(Debug, Args)]
pub(crate) struct RestoreArguments {
    /// Directory of the repository, or its address (s3://BUCKET/PREFIX)
    #[arg(long, value_name = "REPOSITORY")]
    from: PathBuf,
    /// Directory of the new node's store. DIR.restoring is used, and removed in the end
    #[arg(long, value_name = "DIR")]
    pub(crate) to: PathBuf,
    /// The generation; the last one if this is not given
    #[arg(long, value_name = "N", conflicts_with = "at")]
    generation: Option<u64>,
    /// The time as of which to restore, like 2026-11-25T08:15:00Z
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_rfc3339_weak)]
    at: Option<SystemTime>,
    /// The node's store, if the repository has those of several; `kvtool backups` lists them
    #[arg(long, value_name = "STORE", conflicts_with = "generation")]
    store: Option<StoreId>,
    /// The new node, with which to start it
    #[arg(value_name = "ID=RAFT,RESP", value_parser = crate::cli::member)]
    pub(crate) member: (NodeId, Member),
}

/// Opens the store of a node beside it.
fn open_store(dir: &Path) -> Result<Db> {
    let db = Db::open_read_only(dir)?;
    if db.existing_keyspace("raft-meta")?.is_none() {
        return Err(Error::Config(format!("{} is no store of kvd", dir.display())));
    }
    Ok(db)
}

/// Makes a backup, or makes them until a signal comes.
pub(crate) async fn backup(arguments: BackupArguments) -> Result<()> {
    let mut stop = signals()?;
    let stopped = Arc::new(AtomicBool::new(false));
    let of_work = Arc::clone(&stopped);
    let mut work = tokio::task::spawn_blocking(move || arguments.run(&of_work));
    let done = tokio::select! {
        done = &mut work => done,
        () = stop.recv() => {
            stopped.store(true, Ordering::Relaxed);
            work.await
        }
    };
    done.unwrap_or_else(|error| Err(Error::Config(error.to_string())))
}

impl BackupArguments {
    fn run(&self, stopped: &AtomicBool) -> Result<()> {
        raise_file_limit();
        let (db, repository) = (open_store(&self.from)?, Repository::create_at(&self.to)?);
        if self.follow {
            self.follow(&db, &repository, stopped)?
        } else {
            self.once(&db, &repository)?
        }
        Ok(db.close()?)
    }

    fn once(&self, db: &Db, repository: &Repository) -> Result<()> {
        let Backup { generation, store, files, bytes, copied_files, copied_bytes, .. } = repository.backup(db)?;
        println!(
            "Generation {generation}: {} in {files} files, of which {} in {copied_files} were copied.",
            HumanBytes(bytes),
            HumanBytes(copied_bytes),
        );
        if let Some(keep) = self.keep {
            repository.prune_store(store, keep as usize)?;
        }
        Ok(())
    }

    fn follow(&self, db: &Db, repository: &Repository, stopped: &AtomicBool) -> Result<()> {
        let mut options = FollowOptions::new().generation_every(Duration::from_secs(self.every));
        options.keep = self.keep.map(|keep| keep as usize);
        let follower = repository.follow(db, options)?;
        let (mut generation, mut restarts, mut has_failed) = (0, 0, false);
        while !stopped.load(Ordering::Relaxed) && !follower.has_ended() {
            let status = follower.status();
            if let Some(error) = status.error.as_ref().filter(|_| !has_failed) {
                eprintln!("kvd: {error}; it is tried again");
            }
            has_failed = status.error.is_some();
            if let Some(reason) = status.restarted_for.filter(|_| status.restarts != restarts) {
                restarts = status.restarts;
                eprintln!("kvd: {reason}: begins anew with a generation");
            }
            if status.generation != generation {
                generation = status.generation;
                println!("Generation {generation}.");
            }
            std::thread::sleep(PAUSE);
        }
        Ok(follower.stop()?)
    }
}

/// What is in a directory, but for what a new file system has in it; nothing if there is none.
fn files_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let names = match OsFileSystem::new().list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names.map_err(Error::io("read", dir.display()))?,
    };
    Ok(names.into_iter().filter(|name| *name != *"lost+found").map(|name| dir.join(name)).collect())
}

/// Makes the store of a new cluster of one node.
pub(crate) fn restore(arguments: &RestoreArguments) -> Result<Vec<Recovered>> {
    let RestoreArguments { from, to, generation, at, store, member: (id, member) } = arguments;
    if !files_in(to)?.is_empty() {
        return Err(Error::Config(format!("{} is not empty; remove it, or name another", to.display())));
    }
    let repository = Repository::open_at(from)?;
    let base = match (generation, store) {
        (Some(number), _) => Base::Generation(*number),
        (None, Some(store)) => Base::Store(*store),
        (None, None) => Base::OnlyStore,
    };
    let mut scratch = to.clone().into_os_string();
    scratch.push(".restoring");
    let scratch = PathBuf::from(scratch);
    let (generation, last) = match at {
        Some(time) => {
            let Restored { generation, time, .. } = repository.restore_to(Point::Time(*time), base, &scratch)?;
            (generation, time)
        }
        None => {
            let generation = repository.restore(repository.last(base)?.number, &scratch)?;
            let time = generation.time;
            (generation, time)
        }
    };
    println!("Generation {}: the store as of {}.", generation.number, humantime::format_rfc3339_millis(last));
    let recovered = recover(&tamis::Options::new(), &scratch, to, *id, member).map_err(|error| match error {
        Error::Decode { place, rule } => {
            let cure = "restore as of an earlier time, and let the node keep more of its log (--keep-log), \
                        or make generations more often (--every)";
            Error::Decode { place, rule: format!("{rule}; {cure}") }
        }
        error => error,
    });
    let removed = fs::remove_dir_all(&scratch).map_err(Error::io("remove", scratch.display()));
    if matches!(recovered, Err(Error::Decode { .. })) {
        // The next attempt, as of another time, begins with nothing. After other errors the
        // directory may be somebody else's.
        files_in(to)?.iter().for_each(|file| _ = OsFileSystem::new().remove(file));
        let _ = fs::remove_dir(to);
    }
    removed.and(recovered)
}
