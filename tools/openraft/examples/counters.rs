//! Counters in a Raft group of one node, which are there again after a restart.
//!
//! `cargo run -p tamis-openraft --example counters -- DIR visits 3`
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{BasicNode, Config, OptionalSend, Raft, Snapshot, TokioRuntime, Vote};
use tamis::{Db, Keyspace, WriteBatch};
use tamis_openraft::{LogStore, Position, Result, SnapshotData, StateMachine, StateStore, Store, Syncer};

// What an entry asks for, what it answers, and how a snapshot travels.
openraft::declare_raft_types!(Types: D = (String, u64), R = u64, NodeId = u64, Node = BasicNode,
    Entry = openraft::Entry<Types>, SnapshotData = SnapshotData, AsyncRuntime = TokioRuntime);

struct Counters(Keyspace, Db);

impl StateMachine<Types> for Counters {
    fn open(db: &Db, keyspace: Keyspace) -> Result<Counters> {
        Ok(Counters(keyspace, db.clone()))
    }

    fn keyspace(&self) -> &Keyspace {
        &self.0
    }

    fn apply(&self, data: Option<&(String, u64)>, position: &Position) -> Result<u64> {
        let mut batch = WriteBatch::new();
        position.pairs().for_each(|(name, value)| batch.put_in(&self.0, [b"raft/", name].concat(), value));
        let Some((name, add)) = data else { return Ok(self.1.write(batch).map(|_| 0)?) };
        let key = format!("counter/{name}");
        let before = self.0.get(&key)?.map_or(0, |value| value.as_ref().try_into().map_or(0, u64::from_le_bytes));
        batch.put_in(&self.0, key, (before + add).to_le_bytes());
        self.1.write(batch)?;
        Ok(before + add)
    }

    fn position(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.0.get([b"raft/", name].concat())?.map(|value| value.to_vec()))
    }
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn Error>> {
    let [dir, name, add] = std::env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "DIR NAME ADD")?;
    let db = Db::open(dir)?;
    let store = Store::open(&db)?;
    let states = StateStore::<Types, Counters>::open(&store, 0)?;
    let syncer = Syncer::start({
        let db = db.clone();
        move || db.sync()
    })?;
    LogStore::<Types, Counters>::end_lead(&store, 0, &1)?;
    let log = LogStore::<Types, Counters>::new(&store, 0, states.state(), Arc::new(()), syncer);
    let raft = Raft::<Types>::new(1, Arc::new(Config::default().validate()?), Nobody, log, states).await?;
    if !raft.is_initialized().await? {
        raft.initialize(BTreeMap::from([(1, BasicNode::default())])).await?;
    }
    raft.wait(None).current_leader(1, "the node leads itself").await?;
    println!("{}", raft.client_write((name, add.parse()?)).await?.data);
    raft.shutdown().await?;
    Ok(())
}

/// The network of a group of one node.
struct Nobody;
type CallError = RPCError<u64, BasicNode, RaftError<u64>>;

fn nobody() -> Unreachable {
    Unreachable::new(&std::io::Error::other("there are no other nodes"))
}

impl RaftNetworkFactory<Types> for Nobody {
    type Network = Nobody;

    async fn new_client(&mut self, _: u64, _: &BasicNode) -> Nobody {
        Nobody
    }
}

impl RaftNetwork<Types> for Nobody {
    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> std::result::Result<AppendEntriesResponse<u64>, CallError> {
        Err(nobody().into())
    }

    async fn vote(&mut self, _: VoteRequest<u64>, _: RPCOption) -> std::result::Result<VoteResponse<u64>, CallError> {
        Err(nobody().into())
    }

    async fn full_snapshot(
        &mut self,
        _: Vote<u64>,
        _: Snapshot<Types>,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> std::result::Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        Err(nobody().into())
    }
}
