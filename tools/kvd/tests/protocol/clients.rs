//! The client of the crate redis: plain, pipelined, in transactions, and as a cluster client.

use redis::{Commands, ConnectionLike, Value};

use super::support::{start, start_with};
use kvd::resp::Config;

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_client_works() {
    let server = start().await;
    server
        .blocking(|address| {
            for protocol in ["resp2", "resp3"] {
                let url = format!("redis://{address}/?protocol={protocol}");
                let mut client = redis::Client::open(url).unwrap().get_connection().unwrap();
                let _: () = client.set_ex("k", "v", 100).unwrap();
                assert_eq!(client.get::<_, Option<String>>("k").unwrap().as_deref(), Some("v"));
                assert_eq!(client.ttl::<_, i64>("k").unwrap(), 100);
                assert_eq!(client.get::<_, Option<String>>("nosuch").unwrap(), None);
                assert_eq!(client.mget::<_, Vec<Option<i64>>>(&["{t}a", "{t}b"]).unwrap(), [None, None]);
                assert_eq!(client.incr::<_, _, i64>("n", 5).unwrap() % 5, 0);
                let keys: Vec<String> = client.scan::<String>().unwrap().map(Result::unwrap).collect();
                assert_eq!(keys.len(), 2);
                let error = client.incr::<_, _, i64>("k", 1).unwrap_err();
                assert_eq!(error.detail(), Some("value is not an integer or out of range"));
                assert!(client.check_connection());
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelines_and_transactions_work() {
    let server = start().await;
    server
        .blocking(|address| {
            let mut client = redis::Client::open(format!("redis://{address}")).unwrap().get_connection().unwrap();
            let mut pipe = redis::pipe();
            for i in 0..5000 {
                pipe.set(format!("k{i}"), i).ignore();
            }
            pipe.get("k4999");
            assert_eq!(pipe.query::<Vec<i64>>(&mut client).unwrap(), [4999]);
            let (one, two): (i64, i64) = redis::pipe().atomic().incr("n", 1).incr("n", 1).query(&mut client).unwrap();
            assert_eq!((one, two), (1, 2));
            let sum: (i64,) = redis::transaction(&mut client, &["n"], |client, pipe| {
                let old: i64 = client.get("n")?;
                pipe.set("n", old * 10).ignore().get("n").query(client)
            })
            .unwrap();
            assert_eq!(sum, (20,));
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_client_works() {
    let server = start_with(Config::default(), 3).await;
    server
        .blocking(|address| {
            let client = redis::cluster::ClusterClient::new(vec![format!("redis://{address}")]).unwrap();
            let mut client = client.get_connection().unwrap();
            for i in 0..100 {
                let _: () = client.set(format!("k{i}"), i).unwrap();
            }
            assert_eq!(client.get::<_, i64>("k77").unwrap(), 77);
            let cas = redis::cmd("KVD.CAS").arg("k77").arg("IF").arg(77).arg("SET").arg(78).query::<i64>(&mut client);
            assert_eq!(cas.unwrap(), 1);
            let mut pipe = redis::cluster::cluster_pipe();
            for i in 0..100 {
                pipe.get(format!("k{i}"));
            }
            let values: Vec<i64> = pipe.query(&mut client).unwrap();
            assert_eq!(values.iter().sum::<i64>(), 99 * 50 + 1);
            let size = redis::cmd("DBSIZE").query::<Value>(&mut client);
            assert!(size.is_ok(), "{size:?}");
        })
        .await;
}
