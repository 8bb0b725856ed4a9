//! Jobs in another order than they came.

use parking_lot::Mutex;
use tamis::{Executor, Job, Priority};

/// Runs jobs when it is stepped, as if three could run at the same time, in an order that its seed
/// determines.
pub(crate) struct ShuffledExecutor(Mutex<(Vec<Job>, fastrand::Rng)>);

impl ShuffledExecutor {
    pub(crate) fn new(seed: u64) -> ShuffledExecutor {
        ShuffledExecutor(Mutex::new((Vec::new(), fastrand::Rng::with_seed(seed))))
    }
}

impl Executor for ShuffledExecutor {
    fn spawn(&self, _priority: Priority, job: Job) {
        self.0.lock().0.push(job);
    }

    fn parallelism(&self) -> usize {
        3
    }

    fn step(&self) -> bool {
        let job = {
            let (jobs, rng) = &mut *self.0.lock();
            (!jobs.is_empty()).then(|| jobs.swap_remove(rng.usize(0..jobs.len())))
        };
        job.map(|job| job()).is_some()
    }
}
