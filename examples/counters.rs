//! Page views: counters that many threads feed, and the visitors of each page.
//!
//! `cargo run --example counters`
//!
//! A view is one batch of two merges: it adds 1 to the page's counter and the visitor to the page's
//! set. No view reads anything, so threads do not wait for each other's answers.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "an example")]

use tamis::operator::{Add, Union};
use tamis::{Db, Error, KeyspaceOptions, WriteBatch};

const THREADS: u64 = 4;
const VIEWS: u64 = 10_000;

fn main() -> Result<(), Error> {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("db"))?;
    let views = db.keyspace_with("views", KeyspaceOptions::new().merge_operator(Add::LITTLE))?;
    let visitors = db.keyspace_with("visitors", KeyspaceOptions::new().merge_operator(Union))?;

    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, views, visitors) = (&db, &views, &visitors);
            scope.spawn(move || {
                for i in 0..VIEWS {
                    let page = format!("page {}", i % 3);
                    let mut view = WriteBatch::new();
                    view.merge_in(views, &page, 1u64.to_le_bytes());
                    view.merge_in(visitors, &page, Union::encode([format!("visitor {thread}")]));
                    db.write(view).unwrap();
                }
            });
        }
    });

    let mut total = 0;
    for entry in views.iter() {
        let (page, count) = entry?;
        let count = u64::from_le_bytes(count[..].try_into().unwrap());
        let seen = visitors.get(&page)?.expect("every view adds its visitor");
        println!("{}: {count} views by {} visitors", page.escape_ascii(), Union::members(&seen).count());
        total += count;
    }
    assert_eq!(total, THREADS * VIEWS);
    db.close()
}
