//! A job queue that survives its workers.
//!
//! `cargo run --example queue`
//!
//! Jobs are keyed by their number, so that the first key is the oldest job. Taking a job moves it
//! from `waiting` to `running` in one transaction: two workers never get the same job, and a crash
//! leaves it in one of the two. After a restart, jobs that are still running wait again.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "an example")]

use tamis::{ByteOrder, Db, Error, Keyspace, Value, WriteOptions};

struct Queue {
    db: Db,
    waiting: Keyspace,
    running: Keyspace,
}

/// A job that a worker has taken. [`Queue::finish`] ends it.
struct Job {
    number: Value,
    work: Value,
}

impl Queue {
    /// Opens the queue. Jobs that no worker has finished wait again.
    fn open(dir: &std::path::Path) -> Result<Queue, Error> {
        let db = Db::open(dir)?;
        let (waiting, running) = (db.keyspace("waiting")?, db.keyspace("running")?);
        db.transact(|tx| {
            let unfinished: Vec<_> = tx.keyspace(&running).range(..).collect::<Result<_, Error>>()?;
            for (number, work) in unfinished {
                tx.delete_in(&running, &number);
                tx.put_in(&waiting, &number, &work);
            }
            Ok::<_, Error>(())
        })?;
        Ok(Queue { db, waiting, running })
    }

    /// Adds a job. When this returns, the job survives a power cut.
    fn push(&self, work: &str) -> Result<(), Error> {
        let number = self.db.fetch_add("last job", 1u64, ByteOrder::Big)? + 1;
        self.waiting.put_with(number.to_be_bytes(), work, WriteOptions::new().sync(true))?;
        Ok(())
    }

    /// Takes the oldest waiting job.
    fn take(&self) -> Result<Option<Job>, Error> {
        self.db.transact(|tx| {
            let Some((number, work)) = tx.keyspace(&self.waiting).range(..).next().transpose()? else {
                return Ok(None);
            };
            tx.delete_in(&self.waiting, &number);
            tx.put_in(&self.running, &number, &work);
            Ok(Some(Job { number, work }))
        })
    }

    fn finish(&self, job: &Job) -> Result<(), Error> {
        self.running.delete(&job.number)?;
        Ok(())
    }
}

/// Works until the queue is empty. Returns how many jobs it has done.
fn work(queue: &Queue) -> Result<usize, Error> {
    let mut done = 0;
    while let Some(job) = queue.take()? {
        assert!(job.work.starts_with(b"mail to "));
        queue.finish(&job)?;
        done += 1;
    }
    Ok(done)
}

fn main() -> Result<(), Error> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let queue = Queue::open(&dir.path().join("db"))?;
    for customer in 0..200 {
        queue.push(&format!("mail to {customer}"))?;
    }
    let done: Vec<usize> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(|| work(&queue).unwrap())).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    println!("jobs done by each worker: {done:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::open(dir.path()).unwrap();
        (0..100).for_each(|n| queue.push(&format!("mail to {n}")).unwrap());
        let done: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(|| work(&queue).unwrap())).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert_eq!((done, queue.running.iter().count()), (100, 0));
    }

    #[test]
    fn a_job_whose_worker_died_waits_again_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::open(dir.path()).unwrap();
        (0..3).for_each(|n| queue.push(&format!("mail to {n}")).unwrap());
        assert_eq!(&queue.take().unwrap().unwrap().work[..], b"mail to 0");
        drop(queue);
        let queue = Queue::open(dir.path()).unwrap();
        assert_eq!(&queue.take().unwrap().unwrap().work[..], b"mail to 0");
    }
}
