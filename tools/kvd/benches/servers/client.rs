//! [`Client`]: a connection to a server of any kind.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use tamis::{Db, WriteBatch, WriteOptions};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::servers::Servers;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A tamis store in this process.
    Store,
    Kvd,
    Redis,
    Etcd,
}

pub(crate) enum Client {
    Store(Arc<Db>),
    Redis(MultiplexedConnection),
    Etcd(Etcd),
}

impl Client {
    /// Connects to the leader.
    pub(crate) async fn connect(servers: &Servers) -> Client {
        match servers.kind {
            Kind::Store => Client::Store(Arc::clone(servers.store.as_ref().unwrap())),
            Kind::Kvd | Kind::Redis => Client::Redis(redis(servers.leader()).await.unwrap()),
            Kind::Etcd => Client::Etcd(Etcd::connect(servers.leader()).await.unwrap()),
        }
    }

    /// Writes one value under each key, in one flight.
    pub(crate) async fn set(&mut self, keys: &[String], value: &[u8]) {
        match self {
            Client::Store(db) => {
                let (db, keys, value) = (Arc::clone(db), keys.to_vec(), value.to_vec());
                let write = move || {
                    let mut batch = WriteBatch::new();
                    keys.iter().for_each(|key| batch.put(key, &value));
                    db.write_with(batch, WriteOptions::new().sync(true)).unwrap();
                };
                tokio::task::spawn_blocking(write).await.unwrap();
            }
            Client::Redis(connection) => {
                let mut commands = Pipeline::with_capacity(keys.len());
                keys.iter().for_each(|key| _ = commands.set(key, value).ignore());
                commands.query_async::<()>(connection).await.unwrap();
            }
            Client::Etcd(etcd) => {
                let puts = keys.iter().map(|key| {
                    let mut etcd = etcd.clone();
                    let put = Put { key: key.clone().into_bytes(), value: value.to_vec() };
                    async move { etcd.ask::<Put, PutDone>("/etcdserverpb.KV/Put", put).await.unwrap() }
                });
                join_all(puts).await;
            }
        }
    }

    /// Reads keys that are there, in one flight.
    pub(crate) async fn get(&mut self, keys: &[String]) {
        match self {
            Client::Store(db) => keys.iter().for_each(|key| assert!(db.get(key).unwrap().is_some())),
            Client::Redis(connection) => {
                let mut commands = Pipeline::with_capacity(keys.len());
                keys.iter().for_each(|key| _ = commands.get(key));
                let values: Vec<Option<Vec<u8>>> = commands.query_async(connection).await.unwrap();
                assert!(values.iter().all(Option::is_some));
            }
            Client::Etcd(etcd) => {
                let gets = keys.iter().map(|key| {
                    let mut etcd = etcd.clone();
                    let range = Range { key: key.clone().into_bytes() };
                    async move { etcd.ask::<Range, Found>("/etcdserverpb.KV/Range", range).await.unwrap() }
                });
                assert!(join_all(gets).await.iter().all(|found| found.count == 1));
            }
        }
    }
}

pub(crate) async fn redis(address: &str) -> redis::RedisResult<MultiplexedConnection> {
    redis::Client::open(format!("redis://{address}/"))?.get_multiplexed_async_connection().await
}

// The messages of etcd's API that this load needs: api/etcdserverpb/rpc.proto of etcd 3.4.

#[derive(Clone, PartialEq, prost::Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutDone {}

#[derive(Clone, PartialEq, prost::Message)]
struct Range {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Found {
    #[prost(int64, tag = "4")]
    count: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusWanted {}

#[derive(Clone, PartialEq, prost::Message)]
struct Header {
    #[prost(uint64, tag = "2")]
    member: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone)]
pub(crate) struct Etcd(Grpc<Channel>);

impl Etcd {
    pub(crate) async fn connect(address: &str) -> Result<Etcd, tonic::transport::Error> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        Ok(Etcd(Grpc::new(channel)))
    }

    async fn ask<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, tonic::Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.0.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = self.0.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    pub(crate) async fn leads(&mut self) -> bool {
        let status = self.ask::<StatusWanted, Status>("/etcdserverpb.Maintenance/Status", StatusWanted {}).await;
        status.is_ok_and(|status| status.header.is_some_and(|header| header.member == status.leader))
    }
}
