//! SCAN and DBSIZE over several groups.

use std::collections::BTreeSet;

use super::support::{Frame, command, show, start_with};
use kvd::resp::Config;

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_goes_through_all_groups_and_its_cursor_is_good_on_any_connection() {
    let server = start_with(Config::default(), 5).await;
    let mut client = server.client().await;
    let names: BTreeSet<_> = (0..400).map(|i| format!("key{i}")).chain((0..50).map(|i| format!("{{t}}{i}"))).collect();
    for name in &names {
        assert_eq!(client.call(&format!("set {name} v")).await, "+OK");
    }
    assert_eq!(client.call("dbsize").await, "450");
    for options in ["", " count 1", " count 1000"] {
        let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
        loop {
            let mut client = server.client().await;
            client.send(&command(&format!("scan {cursor}{options}"))).await;
            let Some(Frame::Array(data)) = client.receive().await else { panic!("an array") };
            let [next, Frame::Array(keys)] = &data[..] else { panic!("a pair") };
            found.extend(keys.iter().map(|key| show(key).trim_matches('"').to_owned()));
            cursor = show(next).trim_matches('"').to_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found.len(), names.len(), "each once");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), names);
    }
    // Of other types than strings there is nothing, in the first of five groups as in all.
    let second_group = kvd::machine::position_of_slot(kvd::machine::slots_of(1, 5).start);
    client
        .check(&[
            ("scan 18446744073709551615", "[\"0\" []]"),
            ("scan 0 count 1000 type hash", &format!("[\"{second_group}\" []]")),
            ("cluster countkeysinslot 15891", "50"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_whose_group_has_lost_its_leader_does_not_pass_it_over() {
    let server = start_with(Config::default(), 5).await;
    let mut client = server.client().await;
    let in_group = |group| kvd::machine::position_of_slot(kvd::machine::slots_of(group, 5).start) + 1;
    client.check(&[(&format!("scan {} count 1000", in_group(4)), "[\"0\" []]")]).await;
    server.replica.lose(0);
    server.replica.lose(3);
    let second = in_group(2) - 1;
    client.check(&[("scan 0 count 1000", &format!("[\"{second}\" []]"))]).await;
    for position in [in_group(0), in_group(3) - 1, in_group(3)] {
        let reply = client.call(&format!("scan {position}")).await;
        assert!(reply.starts_with("-ERR the scan is in a group that has another leader now"), "{reply}");
    }
}
