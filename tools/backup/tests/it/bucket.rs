//! Repositories in a bucket of a real server of the S3 protocol.
//!
//! The tests of `at_the_server` run in a process of their own, which finds the address of the
//! server in its environment.

use std::process::Command;
use std::sync::atomic::Ordering;

use crate::server::{Server, Spoil, proxy};

/// Runs the ignored tests whose names begin with `filter`.
#[track_caller]
fn run(port: u16, filter: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", filter, "--test-threads=2"])
        .envs(Server::environment(port))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !text.contains(" 0 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn buckets_hold_repositories() {
    let Some(server) = Server::start() else { return };
    run(server.port, "bucket::at_the_server::any::");
}

#[test]
fn a_lost_reply_is_no_lost_backup() {
    let Some(server) = Server::start() else { return };
    let (port, spoiled) = proxy(server.port, Spoil::Reply);
    run(port, "bucket::at_the_server::any::every_generation");
    assert!(spoiled.load(Ordering::Relaxed) > 3);
}

#[test]
fn a_server_without_conditional_writes_is_refused() {
    let Some(server) = Server::start() else { return };
    let (port, spoiled) = proxy(server.port, Spoil::Condition);
    run(port, "bucket::at_the_server::refused::");
    assert!(spoiled.load(Ordering::Relaxed) > 0);
}

mod at_the_server {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;

    use tamis::vfs::{FileSystem, MemoryFileSystem};
    use tamis::{Db, Error, KeyspaceOptions, Options};
    use tamis_backup::{Base, FollowOptions, Point, Repository};

    use crate::kill::kill_backups;
    use crate::server::BUCKET;

    fn address(prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}")
    }

    fn store() -> Db {
        let fs: Arc<dyn FileSystem> = Arc::new(MemoryFileSystem::new());
        let separate = KeyspaceOptions::new().separate_values(1 << 20);
        Options::new().file_system(fs).memtable_size(64 << 10).default_keyspace(separate).open("/db").unwrap()
    }

    fn contents(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
        db.iter().map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
    }

    #[track_caller]
    fn check(repository: &Repository, expected: &BTreeMap<u64, BTreeMap<Vec<u8>, Vec<u8>>>) {
        repository.verify(&mut |fault| panic!("{fault}")).unwrap();
        let numbers: Vec<u64> = repository.generations().unwrap().iter().map(|of| of.number).collect();
        assert_eq!(numbers, expected.keys().copied().collect::<Vec<_>>());
        for (number, contents_then) in expected {
            let dir = tempfile::tempdir().unwrap();
            repository.restore(*number, dir.path().join("db")).unwrap();
            assert!(contents(&Db::open(dir.path().join("db")).unwrap()) == *contents_then, "generation {number}");
        }
    }

    mod any {
        use super::*;

        #[test]
        #[ignore = "at the server that the tests of this file start; cargo test -p tamis-backup --features object-store bucket"]
        fn every_generation_restores_to_what_it_was() {
            let (db, mut expected) = (store(), BTreeMap::new());
            let repository = Repository::create_in_bucket(&address("a/generations/")).unwrap();
            for round in 0..5u32 {
                for i in 0..200u32 {
                    db.put(i.to_be_bytes(), vec![b'0'; usize::try_from(round * i % 700).unwrap()]).unwrap();
                }
                if round == 2 {
                    // Three parts and a bit, which differ.
                    let value: Vec<u8> = (0..25u32 << 18).flat_map(u32::to_le_bytes).collect();
                    db.put("long", value).unwrap();
                    db.flush().unwrap();
                }
                let made = repository.backup(&db).unwrap();
                expected.insert(made.generation, contents(&db));
            }
            let again = repository.backup(&db).unwrap();
            assert!(again.copied_bytes < 1 << 20, "{again:?}");
            expected.insert(again.generation, contents(&db));
            check(&repository, &expected);
            let pruned = Repository::open_in_bucket(&address("a/generations")).unwrap().prune(2).unwrap();
            assert_eq!(pruned.generations, 4);
            while expected.len() > 2 {
                expected.pop_first();
            }
            check(&repository, &expected);
            let made = repository.backup(&db).unwrap();
            expected.insert(made.generation, contents(&db));
            check(&repository, &expected);
        }

        #[test]
        #[ignore = "at the server that the tests of this file start; cargo test -p tamis-backup --features object-store bucket"]
        fn what_is_not_a_repository_is_left_alone() {
            assert!(matches!(Repository::open_in_bucket(&address("absent")), Err(Error::InvalidArgument(_))));
            Repository::create_in_bucket(&address("outer/inner")).unwrap();
            Repository::create_in_bucket(&address("outer/inner")).unwrap();
            assert!(matches!(Repository::create_in_bucket(&address("outer")), Err(Error::InvalidArgument(_))));
            for address in ["s4://bucket", "/tmp/backups", ""] {
                assert!(matches!(Repository::open_in_bucket(address), Err(Error::InvalidArgument(_))), "{address}");
            }
            match Repository::open_in_bucket("s3://no-such-bucket/x") {
                Err(Error::InvalidArgument(_)) => {}
                other => panic!("{other:?}"),
            }
        }

        #[test]
        #[ignore = "at the server that the tests of this file start; cargo test -p tamis-backup --features object-store bucket"]
        fn many_writers_share_a_bucket() {
            let address = address("shared");
            Repository::create_in_bucket(&address).unwrap();
            std::thread::scope(|scope| {
                for writer in 0..3u32 {
                    let address = &address;
                    scope.spawn(move || {
                        let db = store();
                        let repository = Repository::open_in_bucket(address).unwrap();
                        for round in 0..4u32 {
                            (0..50).for_each(|i| _ = db.put(format!("{round} {i}"), vec![b'v'; 1000]).unwrap());
                            db.flush().unwrap();
                            let made = repository.backup(&db).unwrap();
                            let dir = tempfile::tempdir().unwrap();
                            let copy = dir.path().join("db");
                            if writer > 0 || repository.restore(made.generation, &copy).is_ok() {
                                assert!(writer > 0 || contents(&db) == contents(&Db::open(copy).unwrap()));
                            }
                            if writer == 0 {
                                repository.prune(5).unwrap();
                            }
                        }
                    });
                }
            });
            let repository = Repository::open_in_bucket(&address).unwrap();
            let verified = repository.verify(&mut |fault| panic!("{fault}")).unwrap();
            assert!(verified.generations >= 5);
            assert!(verified.generations > repository.prune(1).unwrap().generations);
            repository.verify(&mut |fault| panic!("{fault}")).unwrap();
        }

        #[test]
        #[ignore = "at the server that the tests of this file start; cargo test -p tamis-backup --features object-store bucket"]
        fn a_store_is_followed() {
            let (db, address) = (store(), address("followed"));
            let repository = Repository::create_in_bucket(&address).unwrap();
            let follower = repository.follow(&db, FollowOptions::new()).unwrap();
            (0..50u32).for_each(|i| _ = db.put(i.to_be_bytes(), "value").unwrap());
            let good = db.last_seqno();
            let then = contents(&db);
            db.delete_range(..).unwrap();
            follower.stop().unwrap();
            repository.verify(&mut |fault| panic!("{fault}")).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let copy = dir.path().join("db");
            Repository::open_in_bucket(&address)
                .unwrap()
                .restore_to(Point::Seqno(good), Base::OnlyStore, &copy)
                .unwrap();
            assert!(contents(&Db::open(&copy).unwrap()) == then);
        }

        #[test]
        #[ignore = "at the server that the tests of this file start; cargo test -p tamis-backup --features object-store bucket"]
        fn a_kill_leaves_whole_generations() {
            let address = address("killed");
            kill_backups(Some(&address), |_| Repository::open_in_bucket(&address), 15);
        }

        #[test]
        #[ignore = "at the server that the tests of this file start; cargo test -p tamis-backup --features object-store bucket"]
        fn a_repository_may_be_used_and_dropped_within_a_runtime() {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let repository = Repository::create_in_bucket(&address("async")).unwrap();
                let made = repository.backup(&store()).unwrap();
                assert_eq!(made.generation, 1);
            });
        }
    }

    mod refused {
        use super::*;

        #[test]
        #[ignore = "at the server that the tests of this file start; cargo test -p tamis-backup --features object-store bucket"]
        fn before_anything_is_written() {
            match Repository::create_in_bucket(&address("unconditional")) {
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::Unsupported => {}
                other => panic!("{other:?}"),
            }
            assert!(!Path::new("s3:").exists());
            assert!(matches!(Repository::open_in_bucket(&address("unconditional")), Err(Error::InvalidArgument(_))));
        }
    }
}
