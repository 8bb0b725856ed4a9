//! [`Events`]: a store's queue of events, and the thread that passes them to the listener.
//!
//! Events arise in the middle of reads and under locks. There they are only queued. A thread of
//! their own delivers them, so a listener may take its time and use the store. The queue is
//! bounded: a listener that falls behind loses events and holds no store up.
//!
//! Stores may share the thread, a [`Delivery`]. It calls one listener at a time, in the order in
//! which events arose. It runs while there are open queues.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::event::Event;
#[cfg(feature = "tracing")]
use super::event::Severity;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread::{self, JoinHandle, ThreadId};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Events of a store that wait for its listener at most.
const CAPACITY: usize = 4096;

type Callback = dyn Fn(&Event) + Send + Sync;

/// The callback that receives events, if there is one.
#[derive(Clone, Default)]
pub struct Listener(Option<Arc<Callback>>);

impl Listener {
    pub fn new(listener: impl Fn(&Event) + Send + Sync + 'static) -> Listener {
        Listener(Some(Arc::new(listener)))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Some(..)" } else { "None" })
    }
}

/// A thread that calls the listeners of stores.
#[derive(Default)]
pub struct Delivery(Arc<DeliveryState>);

/// A handle to the events of one store; without a listener it does nothing. When the last handle is
/// dropped, what is queued is still delivered.
#[derive(Clone, Default)]
pub struct Events(Option<Arc<Subscription>>);

struct Subscription {
    shared: Arc<DeliveryState>,
    inbox: Arc<Inbox>,
}

#[derive(Default)]
struct DeliveryState {
    queue: Mutex<EventQueue>,
    /// Notified when an event is queued, and when an inbox is closed.
    changed: Condvar,
    /// Notified when an event has been delivered, when the thread ends, and when it need not end.
    delivered: Condvar,
}

#[derive(Default)]
struct EventQueue {
    /// The events of all stores, oldest first.
    events: VecDeque<(Arc<Inbox>, Event)>,
    /// Number of inboxes that are not closed. The thread ends when there are none.
    open: usize,
    thread: Option<JoinHandle<()>>,
    /// The thread that delivers, if one runs.
    running: Option<ThreadId>,
}

/// A store's part of the queue. Changed with the queue locked.
struct Inbox {
    callback: Option<Arc<Callback>>,
    /// Events that are queued or being delivered.
    waiting: AtomicUsize,
    /// Events that found no place.
    lost: AtomicU64,
    is_closed: AtomicBool,
}

impl Delivery {
    /// Passes the events of a store to `listener` from now on, by the thread. If the system refuses
    /// a thread, events are lost.
    pub fn connect(&self, listener: &Listener) -> Events {
        if listener.0.is_none() && !cfg!(any(feature = "metrics", feature = "tracing")) {
            return Events(None);
        }
        let inbox = Arc::new(Inbox {
            callback: listener.0.clone(),
            waiting: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        let mut queue = self.0.queue.lock();
        queue.open += 1;
        self.0.delivered.notify_all();
        if queue.running.is_none() {
            let shared = Arc::clone(&self.0);
            match thread::spawn("tamis-events", move || shared.deliver()) {
                Ok(thread) => {
                    queue.running = Some(thread.thread().id());
                    queue.thread = Some(thread);
                }
                Err(_) => queue.close(&inbox),
            }
        }
        drop(queue);
        Events(Some(Arc::new(Subscription { shared: Arc::clone(&self.0), inbox })))
    }

    /// Whether the thread runs.
    pub fn is_running(&self) -> bool {
        self.0.queue.lock().running.is_some()
    }
}

impl Events {
    /// Queues an event, which is made only if there is a listener. May be called under any lock.
    #[inline]
    pub fn send(&self, event: impl FnOnce() -> Event) {
        if let Some(subscription) = &self.0 {
            subscription.shared.push(&subscription.inbox, event());
        }
    }

    /// Whether there is a listener.
    #[inline]
    pub fn has_listener(&self) -> bool {
        self.0.is_some()
    }

    /// Number of events that were lost.
    pub fn lost(&self) -> u64 {
        self.0.as_ref().map_or(0, |subscription| subscription.inbox.lost.load(Ordering::Relaxed))
    }

    /// Waits until all events have been delivered; later ones are lost. Called by a listener, of
    /// this store or of another with the same thread, does not wait.
    pub fn finish(&self) {
        let Some(Subscription { shared, inbox }) = self.0.as_deref() else { return };
        let mut queue = shared.queue.lock();
        queue.close(inbox);
        shared.changed.notify_one();
        if queue.running == Some(thread::current().id()) {
            return;
        }
        while inbox.waiting.load(Ordering::Relaxed) > 0 {
            shared.delivered.wait(&mut queue);
        }
        // Another store may connect meanwhile: then the thread goes on.
        while queue.open == 0 && queue.running.is_some() {
            shared.delivered.wait(&mut queue);
        }
        let ended = if queue.running.is_none() { queue.thread.take() } else { None };
        drop(queue);
        if let Some(thread) = ended {
            let _ = thread.join();
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.queue.lock().close(&self.inbox);
        self.shared.changed.notify_one();
    }
}

impl EventQueue {
    fn close(&mut self, inbox: &Inbox) {
        if !inbox.is_closed.swap(true, Ordering::Relaxed) {
            self.open -= 1;
        }
    }
}

impl DeliveryState {
    fn push(&self, inbox: &Arc<Inbox>, event: Event) {
        let mut queue = self.queue.lock();
        if inbox.is_closed.load(Ordering::Relaxed) || inbox.waiting.load(Ordering::Relaxed) >= CAPACITY {
            inbox.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        inbox.waiting.fetch_add(1, Ordering::Relaxed);
        queue.events.push_back((Arc::clone(inbox), event));
        drop(queue);
        self.changed.notify_one();
    }

    /// Delivers until no inbox is open and nothing is queued.
    fn deliver(&self) {
        let mut queue = self.queue.lock();
        loop {
            while let Some((inbox, event)) = queue.events.pop_front() {
                // A listener that panics on one event gets the next.
                let tell = || drop(catch_unwind(AssertUnwindSafe(|| tell(&event, inbox.callback.as_deref()))));
                MutexGuard::unlocked(&mut queue, tell);
                inbox.waiting.fetch_sub(1, Ordering::Relaxed);
                self.delivered.notify_all();
                // The last reference drops the listener, which may be the last to hold a store.
                MutexGuard::unlocked(&mut queue, || drop((inbox, event)));
            }
            if queue.open == 0 {
                queue.running = None;
                self.delivered.notify_all();
                return;
            }
            self.changed.wait(&mut queue);
        }
    }
}

/// Passes an event to whoever listens.
fn tell(event: &Event, callback: Option<&Callback>) {
    #[cfg(feature = "tracing")]
    trace(event);
    #[cfg(feature = "metrics")]
    record(event);
    if let Some(callback) = callback {
        callback(event);
    }
}

/// Passes an event to the subscriber of the crate `tracing`.
#[cfg(feature = "tracing")]
fn trace(event: &Event) {
    match event.severity() {
        Severity::Error => tracing::error!(target: "tamis", "{event}"),
        Severity::Warning => tracing::warn!(target: "tamis", "{event}"),
        Severity::Info => tracing::info!(target: "tamis", "{event}"),
        Severity::Debug => tracing::debug!(target: "tamis", "{event}"),
    }
}

/// Passes the durations in an event to the recorder of the crate `metrics`.
#[cfg(feature = "metrics")]
fn record(event: &Event) {
    match event {
        Event::FlushEnded { duration, .. } => metrics::histogram!("tamis_flush_seconds").record(*duration),
        Event::CompactionEnded { compaction, duration, .. } => {
            let reason = compaction.reason.to_string();
            metrics::histogram!("tamis_compaction_seconds", "reason" => reason).record(*duration);
        }
        Event::SlowOperation { operation, duration, .. } => {
            metrics::histogram!("tamis_slow_operation_seconds", "operation" => *operation).record(*duration);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc;

    use super::*;
    use crate::error::Error;

    fn event(n: usize) -> Event {
        Event::FilterDegraded { table: PathBuf::from(n.to_string()), reason: Error::Closed }
    }

    fn number(event: &Event) -> usize {
        let Event::FilterDegraded { table, .. } = event else { panic!("{event}") };
        table.to_str().unwrap().parse().unwrap()
    }

    #[test]
    fn events_are_delivered_in_order_by_one_thread_before_finish_returns() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&told);
        let events = Delivery::default().connect(&Listener::new(move |event| {
            listener.lock().push((number(event), thread::current().id()));
        }));
        (0..100).for_each(|n| events.clone().send(|| event(n)));
        events.finish();
        let told = told.lock();
        assert!(told.iter().map(|(n, _)| *n).eq(0..100));
        assert!(told.iter().all(|(_, thread)| *thread == told[0].1 && *thread != thread::current().id()));
        events.send(|| event(100));
        events.finish();
        assert_eq!((told.len(), events.lost()), (100, 1));
    }

    #[test]
    fn finish_does_not_wait_for_a_store_that_connects_meanwhile() {
        let delivery = Delivery::default();
        let (begun, begins) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let slow = delivery.connect(&Listener::new(move |_| {
            let _ = begun.send(());
            let _ = wait.lock().recv();
        }));
        let first = delivery.connect(&Listener::new(|_| ()));
        slow.send(|| event(0));
        begins.recv().unwrap();
        drop(slow);
        let finishing = std::thread::spawn(move || first.finish());
        while delivery.0.queue.lock().open > 0 {
            thread::yield_now();
        }
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let second = delivery.connect(&Listener::new(move |_| _ = count.fetch_add(1, Ordering::Relaxed)));
        go.send(()).unwrap();
        finishing.join().unwrap();
        assert!(delivery.is_running());
        second.send(|| event(1));
        second.finish();
        assert_eq!((told.load(Ordering::Relaxed), delivery.is_running()), (1, false));
    }

    #[test]
    fn a_slow_listener_loses_events_and_holds_nothing_up() {
        let (begun, begins) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let (wait, told) = (Mutex::new(wait), Arc::new(Mutex::new(0)));
        let count = Arc::clone(&told);
        let events = Delivery::default().connect(&Listener::new(move |_| {
            let _ = begun.send(());
            let _ = wait.lock().recv();
            *count.lock() += 1;
        }));
        events.send(|| event(0));
        begins.recv().unwrap();
        (0..CAPACITY + 10).for_each(|n| events.send(|| event(n)));
        assert_eq!(events.lost(), 11, "the one being delivered counts");
        drop(go);
        events.finish();
        assert_eq!(*told.lock(), CAPACITY);
    }

    #[test]
    fn a_panic_costs_one_event_and_a_listener_may_finish_its_own_delivery() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (listener, own) = (Arc::clone(&told), Arc::new(Mutex::new(None::<Events>)));
        let of_listener = Arc::clone(&own);
        let events = Delivery::default().connect(&Listener::new(move |event| {
            let n = number(event);
            assert!(n != 1, "not told");
            listener.lock().push(n);
            if let Some(events) = of_listener.lock().take() {
                events.finish();
            }
        }));
        (0..2).for_each(|n| events.send(|| event(n)));
        while told.lock().is_empty() {
            thread::yield_now();
        }
        *own.lock() = Some(events.clone());
        events.send(|| event(2));
        while told.lock().len() < 2 {
            thread::yield_now();
        }
        assert_eq!(*told.lock(), [0, 2]);
    }

    #[test]
    fn without_a_listener_no_event_is_made() {
        let events = Events::default();
        events.send(|| unreachable!("there is no listener"));
        events.finish();
        assert!(!events.has_listener());
    }
}
