//! Clients' times since 1970 beside the log's time.

use super::*;

#[test]
fn setting_the_time_moves_clients_times_and_leaves_keys_their_lives() {
    let machine = machine();
    let get_at = |key: &str, now_ms| get(&machine, key, now_ms);
    let left = |key: &str| {
        let query = Query::MillisLeft(Bytes::from(key.to_owned()));
        machine.read(&query, 0).unwrap().reply
    };
    let at = |at| Deadline::New(NewDeadline::At(at));
    run(&machine, 100_000, set("before", "v", expire_in(5000)));
    run(&machine, 100_000, Body::SetTime(20_000));
    assert_eq!((machine.time_ms(), machine.ahead_ms()), (100_000, 80_000));
    assert_eq!(left("before"), Reply::Integer(5000));
    run(&machine, 100_000, set("at", "v", at(21_000)));
    assert_eq!(left("at"), Reply::Integer(1000));
    assert_eq!((get_at("at", 100_999), get_at("at", 101_000)), (Reply::bulk("v"), Reply::Nil));
    run(&machine, 100_000, set("past", "v", at(20_000)));
    assert_eq!(get_at("past", 0), Reply::Nil);
    // What leaves the group has the time on the wall.
    let shown = |seconds| {
        let query = Query::Deadline { key: Bytes::from_static(b"at"), seconds };
        machine.read(&query, 0).unwrap().reply
    };
    assert_eq!((shown(false), shown(true)), (Reply::Integer(21_000), Reply::Integer(21)));
    let records = Records::of(machine.keyspace()).unwrap();
    assert_eq!(records.time_ms(), 20_000);
    let mut deadlines = Vec::new();
    let visited = records.visit(|record| {
        deadlines.push((record.key.to_vec(), record.deadline_ms));
        Ok::<_, Error>(())
    });
    visited.unwrap();
    deadlines.sort();
    assert_eq!(deadlines, [(b"at".to_vec(), Some(21_000)), (b"before".to_vec(), Some(25_000))]);
    // Whatever number comes, and after a restart.
    for wall_ms in [u64::MAX, 0, 150_000] {
        run(&machine, 100_000, Body::SetTime(wall_ms));
        run(&machine, 100_000, set("at", "v", at(i64::MAX)));
        run(&machine, 100_000, set("at", "v", at(i64::MIN)));
    }
    let again = Machine::open(&machine.db, 0).unwrap();
    assert_eq!((again.time_ms(), again.ahead_ms()), (100_000, -50_000));
    run(&machine, 100_000, Body::SetTime(100_000));
    assert_eq!(machine.keyspace().get("c").unwrap().unwrap().len(), 40, "as before the first time was set");
}
