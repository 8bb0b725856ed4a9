//! What cluster clients are told.

use kvd::replica::Node;
use kvd::resp::Config;

use super::support::{assert_kind, start_with};

#[tokio::test(flavor = "multi_thread")]
async fn clients_learn_which_node_leads_which_slots() {
    let server = start_with(Config::default(), 2).await;
    let mut client = server.client().await;
    let node = |id| Node { id, host: format!("10.0.0.{id}"), port: 7000 };
    server.replica.set_nodes(vec![node(1), node(2)], Some(1));
    let (first, second) = (format!("{:040x}", 1), format!("{:040x}", 2));
    let entry = |host: &str, id: &str| format!("[\"{host}\" 7000 \"{id}\" []]");
    let nodes = format!("{} {}", entry("10.0.0.1", &first), entry("10.0.0.2", &second));
    client
        .check(&[
            ("cluster myid", &format!("\"{first}\"")),
            ("cluster keyslot foo", "12182"),
            ("cluster slots", &format!("[[0 8191 {nodes}] [8192 16383 {nodes}]]")),
        ])
        .await;
    let lines = client.call("cluster nodes").await;
    let expected = format!(
        "\"{first} 10.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-8191 8192-16383\\n\
         {second} 10.0.0.2:7000@17000 slave {first} 0 0 0 connected\\n\""
    );
    assert_eq!(lines, expected);
    let shards = client.call("cluster shards").await;
    assert!(shards.contains("\"slots\" [0 8191]") && shards.contains("\"role\" \"replica\""), "{shards}");
    assert!(client.call("cluster info").await.contains("cluster_state:ok\\r\\ncluster_slots_assigned:16384"));
    // Without a leader, slots are not lost: clients ask a member, which tells them to try again.
    server.replica.set_nodes(vec![node(1), node(2)], None);
    client.check(&[("cluster slots", &format!("[[0 8191 {nodes}] [8192 16383 {nodes}]]"))]).await;
    assert!(client.call("cluster info").await.contains("cluster_state:fail\\r\\ncluster_slots_assigned:16384"));
    assert_kind(&client.call("get foo").await, "CLUSTERDOWN");
    server.replica.set_nodes(Vec::new(), None);
    client.check(&[("cluster slots", "[]"), ("cluster shards", "[]")]).await;
}
