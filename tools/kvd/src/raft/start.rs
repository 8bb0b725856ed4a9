//! Starts a node's part in its cluster.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::net::TcpListener;

use super::cluster::{Cluster, Settings};
use super::log::Syncer;
use super::network::Pool;
use super::server;
use super::starter::Starter;
use super::watch::LEASE;
use crate::error::{Error, Result};
use crate::store::Store;

impl Cluster {
    /// Opens the store and takes up this node's part in every group. `listener` is where other
    /// nodes connect.
    pub async fn start(settings: Settings, listener: TcpListener) -> Result<Arc<Cluster>> {
        let (id, heartbeat) = (settings.id, u64::try_from(settings.heartbeat.as_millis()).unwrap_or(u64::MAX));
        let config = openraft::Config {
            cluster_name: "kvd".to_owned(),
            heartbeat_interval: heartbeat,
            // `Cluster::campaign` decides when a node stands. What is left are the time for votes
            // to come and, the longest, that in which none is given after a leader was heard.
            enable_elect: false,
            // `Cluster::beat` sends heartbeats for all groups together.
            enable_tick: false,
            election_timeout_min: heartbeat.saturating_mul(u64::from(LEASE) - 1),
            election_timeout_max: heartbeat.saturating_mul(u64::from(LEASE)),
            install_snapshot_timeout: u64::from(u32::MAX),
            replication_lag_threshold: settings.snapshot_after,
            // `Cluster::look_after` decides both.
            snapshot_policy: openraft::SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            ..openraft::Config::default()
        };
        if settings.groups == 0 {
            return Err(Error::Config("a cluster has at least one group".to_owned()));
        }
        let config = Arc::new(config.validate().map_err(|error| Error::Config(error.to_string()))?);
        let store = super::blocking(|| Store::open(settings.store.clone(), &settings.dir))?.knowing(settings.version);
        let count = super::blocking(|| store.bind(id, settings.groups))?;
        let number = Arc::new(AtomicU64::new(super::blocking(|| store.cluster())?));
        let pool =
            Pool::new(settings.trust.clone(), Arc::clone(&number), settings.routes.clone(), store.versions.clone());
        let db = store.db.clone();
        let (delay, skip) = (settings.sync_delay, settings.skip_sync);
        let syncer = Syncer::start(move || {
            std::thread::sleep(delay);
            if skip { Ok(()) } else { db.sync() }
        })
        .map_err(Error::io("start", "the thread that syncs logs"))?;
        let starter = Starter { id, config, store, pool, syncer };
        let mut groups = Vec::new();
        for group in 0..count {
            groups.push(starter.start(group).await?);
        }
        let cluster = Arc::new(Cluster::new(settings, starter, number, groups));
        {
            let mut tasks = cluster.tasks.lock();
            tasks.spawn(server::serve(Arc::clone(&cluster), listener));
            let looking = Arc::clone(&cluster);
            tasks.spawn(async move { looking.look_around().await });
            tasks.spawn(Arc::clone(&cluster).campaign());
            tasks.spawn(Arc::clone(&cluster).beat());
            tasks.spawn(Arc::clone(&cluster).freshen());
            let identity = Arc::clone(&cluster);
            tasks.spawn(async move { identity.look_after_identity().await });
            let greeting = Arc::clone(&cluster);
            tasks.spawn(async move { greeting.greet_others().await });
            tasks.spawn(Arc::clone(&cluster).raise_versions());
            tasks.spawn(Arc::clone(&cluster).look_at_space());
            for group in 0..count {
                let cluster = Arc::clone(&cluster);
                tasks.spawn(async move { cluster.look_after(group).await });
            }
        }
        Ok(cluster)
    }
}
