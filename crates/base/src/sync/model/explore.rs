//! [`Explore`]: runs a model under many schedules.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, Runner};

use super::time;

/// Bytes of stack of each thread: unoptimised code of a whole store runs on it.
const STACK: usize = 1 << 20;

/// How many schedules of a model are run, and which. A schedule that fails prints its own seed,
/// which the environment variable `SHUTTLE_RANDOM_SEED` repeats.
#[derive(Clone, Copy, Debug)]
pub struct Explore {
    pub seed: u64,
    pub schedules: usize,
    /// Whether time may come to any sleeper's deadline while others can run. Otherwise time stands
    /// still while a thread can run, and a wake-up that was forgotten shows in [`time::elapsed`].
    pub hasty: bool,
}

impl Explore {
    /// Runs `model` under schedules in which any thread may be next at each step, and under as many
    /// in which a thread runs on but for three changes.
    pub fn run(self, model: impl Fn() + Clone + Send + Sync + 'static) {
        self.run_by(RandomScheduler::new_from_seed(self.seed, self.schedules), model.clone());
        self.run_by(PctScheduler::new_from_seed(self.seed, 3, self.schedules), model);
    }

    fn run_by(self, inner: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) {
        let mut config = Config::new();
        config.stack_size = STACK;
        Runner::new(WithTime { inner, hasty: self.hasty, random: 0 }, config).run(model);
    }
}

/// Lets sleepers go on only when their time has come.
struct WithTime<S> {
    inner: S,
    hasty: bool,
    /// Of the schedule's seed.
    random: u64,
}

impl<S> WithTime<S> {
    /// One time in 16.
    fn hurries(&mut self) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.hasty && self.random.is_multiple_of(16)
    }
}

impl<S: Scheduler> Scheduler for WithTime<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        time::reset();
        let schedule = self.inner.new_execution()?;
        self.random = schedule.seed | 1;
        Some(schedule)
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        let wakes_at = |task: &Task| time::asleep_until(task.id().into());
        let awake: Vec<&Task> = runnable.iter().copied().filter(|task| wakes_at(task).is_none()).collect();
        // A parked thread may be woken early, but need not be.
        let can_go_on = awake.iter().any(|task| !task.blocked());
        let next_sleeper = runnable.iter().filter_map(|task| Some((wakes_at(task)?, task.id()))).min();
        match next_sleeper {
            Some((_, task)) if !can_go_on || self.hurries() => Some(task),
            _ => self.inner.next_task(&awake, current, is_yielding),
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.inner.next_u64()
    }
}
