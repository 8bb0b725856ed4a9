//! Executors for background work: threads, or a queue that a test steps through.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fork::Process;
use crate::sync::{
    Condvar, Mutex, MutexGuard,
    thread::{self, JoinHandle},
    time,
};

/// A piece of background work.
pub type Job = Box<dyn FnOnce() + Send>;

/// How urgent a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Priority {
    /// Writers may be waiting for it: a flush. Waits for no compaction.
    High,
    /// Compactions that keep writers from waiting, and what is done in a moment, such as the
    /// removal of files. Waits for no job of the priorities below.
    Medium,
    /// A compaction, which may take minutes.
    Low,
    /// A part of a running compaction, which does that part itself if no other thread takes it.
    Help,
}

/// Runs flushes and compactions. Several stores may share one.
///
/// Background work never looks whether other work waits: one that has no thread for jobs of high
/// and medium priority alone lets writers wait for compactions.
pub trait Executor: Send + Sync {
    /// Queues a job. Must not run it at once: the caller may hold locks of its store.
    fn spawn(&self, priority: Priority, job: Job);

    /// Runs a job once, about `delay` from now. Best effort: the default drops the job. A store
    /// asks for this to drop what expires while nothing else happens; without it, the store does so
    /// when other work ends or begins.
    fn spawn_after(&self, delay: Duration, job: Job) {
        drop((delay, job));
    }

    /// Number of jobs that can run at the same time, with one of high or medium priority among
    /// them. With 1, a store runs nothing in parallel with its callers: opening recovers logs on
    /// the calling thread alone.
    fn parallelism(&self) -> usize;

    /// Runs one queued job on the calling thread, if this executor leaves jobs to its callers;
    /// returns whether it did.
    ///
    /// A thread that waits for background work calls this first, so that a store on a
    /// [`SteppedExecutor`] never waits for itself.
    fn step(&self) -> bool;
}

/// An executor with its own threads. Dropping it runs the jobs still queued, then ends the threads.
/// Jobs whose delay has not passed are dropped.
///
/// A job of a higher priority goes first. One thread takes only jobs of high and medium priority:
/// these wait for each other, but for no compaction.
pub struct ThreadPool {
    shared: Arc<PoolShared>,
    threads: Vec<JoinHandle<()>>,
    /// The process that has the threads.
    process: Process,
}

#[derive(Default)]
struct PoolShared {
    queue: Mutex<PoolQueue>,
    /// Wakes threads for all jobs.
    wake: Condvar,
    /// Wakes the thread for urgent ones.
    wake_urgent: Condvar,
}

#[derive(Default)]
struct PoolQueue {
    /// By priority, the highest first.
    jobs: [VecDeque<Job>; 4],
    /// Jobs with a delay, and when they become jobs of high priority.
    delayed: Vec<(Instant, Job)>,
    /// Whether the thread for urgent jobs waits for one.
    urgent_waits: bool,
    closing: bool,
}

/// Which jobs a thread of the pool takes.
#[derive(Clone, Copy)]
enum Accepts {
    All,
    /// Those of high and medium priority.
    Urgent,
}

impl PoolQueue {
    fn push(&mut self, priority: Priority, job: Job) {
        let rank = match priority {
            Priority::High => 0,
            Priority::Medium => 1,
            Priority::Low => 2,
            Priority::Help => 3,
        };
        self.jobs[rank].push_back(job);
    }

    fn pop(&mut self, accepts: Accepts) -> Option<Job> {
        if !self.delayed.is_empty() {
            let now = time::now();
            self.jobs[0].extend(self.delayed.extract_if(.., |(at, _)| *at <= now).map(|(_, job)| job));
        }
        let accepted = match accepts {
            Accepts::All => &mut self.jobs[..],
            Accepts::Urgent => &mut self.jobs[..2],
        };
        accepted.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Whether the thread for urgent jobs takes all of them, without another's help.
    fn is_left_to_urgent(&self) -> bool {
        self.urgent_waits && self.jobs[..2].iter().map(VecDeque::len).sum::<usize>() <= 1
    }
}

impl ThreadPool {
    /// A pool of `threads` threads (at least one) for all jobs, named `tamis-N`, and one for those
    /// of high and medium priority, named `tamis-flush`.
    pub fn new(threads: usize) -> ThreadPool {
        let shared = Arc::new(PoolShared::default());
        let spawn = |(name, accepts)| {
            let shared = Arc::clone(&shared);
            thread::spawn(name, move || shared.run(accepts)).ok()
        };
        // The flush thread last, so that a pool of one thread takes all jobs.
        let of_all = (0..threads.max(1)).map(|i| (format!("tamis-{i}"), Accepts::All));
        let threads = of_all.chain([("tamis-flush".to_owned(), Accepts::Urgent)]).map_while(spawn).collect();
        ThreadPool { shared, threads, process: Process::current() }
    }
}

impl PoolShared {
    fn wake_all(&self) {
        self.wake.notify_all();
        self.wake_urgent.notify_all();
    }

    fn run(&self, accepts: Accepts) {
        let wake = match accepts {
            Accepts::All => &self.wake,
            Accepts::Urgent => &self.wake_urgent,
        };
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.pop(accepts) {
                if queue.jobs.iter().any(|jobs| !jobs.is_empty()) {
                    // This thread may have been woken for another job than it takes.
                    self.wake.notify_one();
                }
                // A store's job reports its own panics. A panic must not end a thread that other
                // stores share.
                let _ = MutexGuard::unlocked(&mut queue, || catch_unwind(AssertUnwindSafe(job)));
            } else if queue.closing {
                return;
            } else {
                let is_urgent = matches!(accepts, Accepts::Urgent);
                queue.urgent_waits |= is_urgent;
                match queue.delayed.iter().map(|(at, _)| *at).min() {
                    Some(at) => _ = wake.wait_until(&mut queue, at),
                    None => wake.wait(&mut queue),
                }
                queue.urgent_waits &= !is_urgent;
            }
        }
    }
}

impl Executor for ThreadPool {
    fn spawn(&self, priority: Priority, job: Job) {
        let mut queue = self.shared.queue.lock();
        queue.push(priority, job);
        let is_urgent = matches!(priority, Priority::High | Priority::Medium);
        let is_left_to_urgent = queue.is_left_to_urgent();
        drop(queue);
        // No more threads than needed: each may take the caller's processor for some milliseconds.
        if is_urgent {
            self.shared.wake_urgent.notify_one();
        }
        if !(is_urgent && is_left_to_urgent) {
            self.shared.wake.notify_one();
        }
    }

    fn spawn_after(&self, delay: Duration, job: Job) {
        // A time that the system cannot tell never comes.
        if let Some(at) = time::now().checked_add(delay) {
            self.shared.queue.lock().delayed.push((at, job));
            self.shared.wake_all();
        }
    }

    fn parallelism(&self) -> usize {
        self.threads.len().max(1)
    }

    fn step(&self) -> bool {
        // If the system gave the pool no thread, its callers do the work: slow, but not stuck.
        let job = if self.threads.is_empty() { self.shared.queue.lock().pop(Accepts::All) } else { None };
        job.map(|job| job()).is_some()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The threads are not in this process, and their queue may be locked for ever.
            return self.threads.drain(..).for_each(mem::forget);
        }
        self.shared.queue.lock().closing = true;
        self.shared.wake_all();
        while self.step() {}
        let current = thread::current().id();
        for thread in self.threads.drain(..) {
            // The last handle of a store may be dropped by one of its own jobs.
            if thread.thread().id() != current {
                let _ = thread.join();
            }
        }
    }
}

/// An executor without threads. Jobs run only in [`Executor::step`], in the order in which they
/// were queued, so that one seed gives one run.
#[derive(Default)]
pub struct SteppedExecutor {
    jobs: Mutex<VecDeque<Job>>,
}

impl SteppedExecutor {
    /// An executor without jobs.
    pub fn new() -> SteppedExecutor {
        SteppedExecutor::default()
    }

    /// Number of queued jobs.
    pub fn pending(&self) -> usize {
        self.jobs.lock().len()
    }
}

impl Executor for SteppedExecutor {
    fn spawn(&self, _priority: Priority, job: Job) {
        self.jobs.lock().push_back(job);
    }

    fn parallelism(&self) -> usize {
        1
    }

    fn step(&self) -> bool {
        let job = self.jobs.lock().pop_front();
        match job {
            Some(job) => {
                job();
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn dropping_a_pool_runs_its_queued_jobs_first() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = ThreadPool::new(2);
        for i in 0..100 {
            let done = Arc::clone(&done);
            pool.spawn(
                if i % 2 == 0 { Priority::High } else { Priority::Low },
                Box::new(move || {
                    done.fetch_add(1, Ordering::Relaxed);
                }),
            );
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn jobs_of_high_and_medium_priority_do_not_wait_for_the_others() {
        let pool = ThreadPool::new(2);
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..3 {
            let wait = Arc::clone(&wait);
            pool.spawn(
                Priority::Low,
                Box::new(move || {
                    let _ = wait.lock().recv();
                }),
            );
        }
        let (done, is_done) = std::sync::mpsc::channel();
        for priority in [Priority::Help, Priority::Medium, Priority::High] {
            let done = done.clone();
            pool.spawn(priority, Box::new(move || done.send(priority).unwrap()));
        }
        let urgent = [is_done.recv().unwrap(), is_done.recv().unwrap()];
        assert!([Priority::Medium, Priority::High].iter().all(|priority| urgent.contains(priority)), "{urgent:?}");
        drop(release);
        assert_eq!(is_done.recv(), Ok(Priority::Help));
    }

    #[test]
    fn jobs_that_are_spawned_at_once_run_at_once() {
        for priorities in [[Priority::High; 2], [Priority::High, Priority::Low], [Priority::Low; 2]] {
            let pool = ThreadPool::new(2);
            let together = Arc::new(std::sync::Barrier::new(2));
            let (done, is_done) = std::sync::mpsc::channel();
            for _ in 0..50 {
                for priority in priorities {
                    let (together, done) = (Arc::clone(&together), done.clone());
                    let meet = move || {
                        together.wait();
                        done.send(()).unwrap();
                    };
                    pool.spawn(priority, Box::new(meet));
                }
                // Each waits for the other: two threads must have been woken.
                for _ in priorities {
                    is_done.recv_timeout(Duration::from_secs(60)).expect("both run");
                }
            }
        }
    }

    #[test]
    fn a_higher_priority_goes_first() {
        let pool = ThreadPool::new(1);
        let (began, has_begun) = std::sync::mpsc::channel();
        let waits = [Priority::Low, Priority::High].map(|priority| {
            let (release, wait) = std::sync::mpsc::channel::<()>();
            let began = began.clone();
            pool.spawn(
                priority,
                Box::new(move || {
                    began.send(()).unwrap();
                    let _ = wait.recv();
                }),
            );
            // The flush thread may have taken the second one only.
            has_begun.recv().unwrap();
            release
        });
        let [release, release_flush] = waits;
        let order = Arc::new(Mutex::new(Vec::new()));
        for priority in [Priority::Help, Priority::Low, Priority::Medium, Priority::High] {
            let order = Arc::clone(&order);
            pool.spawn(priority, Box::new(move || order.lock().push(priority)));
        }
        drop(release);
        while order.lock().last() != Some(&Priority::Help) {
            std::thread::yield_now();
        }
        drop(release_flush);
        assert_eq!(*order.lock(), [Priority::High, Priority::Medium, Priority::Low, Priority::Help]);
    }

    #[test]
    fn a_panicking_job_ends_no_thread() {
        let pool = ThreadPool::new(1);
        pool.spawn(Priority::High, Box::new(|| panic!("a panic that is part of the test")));
        let (done, is_done) = std::sync::mpsc::channel();
        pool.spawn(Priority::High, Box::new(move || done.send(()).unwrap()));
        is_done.recv().unwrap();
    }

    #[test]
    fn a_delayed_job_runs_later_or_ends_with_the_pool() {
        let pool = ThreadPool::new(2);
        let (done, is_done) = std::sync::mpsc::channel();
        for (delay, name) in [(Duration::MAX, "never"), (Duration::from_secs(1 << 30), "far"), (Duration::ZERO, "now")]
        {
            let done = done.clone();
            pool.spawn_after(delay, Box::new(move || done.send(name).unwrap()));
        }
        pool.spawn_after(Duration::from_millis(1), Box::new(move || done.send("soon").unwrap()));
        let mut names = [is_done.recv().unwrap(), is_done.recv().unwrap()];
        names.sort_unstable();
        assert_eq!(names, ["now", "soon"]);
        drop(pool);
        assert!(is_done.recv().is_err(), "the others are dropped");
    }

    #[test]
    fn stepped_jobs_run_in_order_and_only_when_stepped() {
        let executor = SteppedExecutor::new();
        let log = Arc::new(Mutex::new(Vec::new()));
        for i in 0..3 {
            let log = Arc::clone(&log);
            executor.spawn(Priority::Low, Box::new(move || log.lock().push(i)));
        }
        assert_eq!(executor.pending(), 3);
        while executor.step() {}
        assert_eq!(*log.lock(), [0, 1, 2]);
    }
}
