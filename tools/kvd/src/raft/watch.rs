//! [`Watch`]: what a node has seen of a group's leaders, and when it stands for election itself.

use std::time::{Duration, Instant};

use rand::Rng;

/// Heartbeats in which no other node is elected once a leader was heard: for so long a node refuses
/// votes, and a leader that no majority has answered for so long refuses requests.
pub(super) const LEASE: u32 = 4;
/// Heartbeats of silence after which a node stands for election, and up to one more.
const PATIENCE: u32 = 5;
/// Further heartbeats that a node waits which others should come before.
const DEFERENCE: u32 = 20;
/// Heartbeats between two attempts to give up a lead.
const YIELD_PAUSE: u32 = 50;

/// See the module.
pub(super) struct Watch {
    heartbeat: Duration,
    /// When a leader was heard last, or another node got this one's vote.
    heard: Option<Instant>,
    /// Of the silence after which this node stands: the part that is drawn.
    delay: Duration,
    /// When this node was elected, if it leads.
    led_since: Option<Instant>,
    /// Until then, this node does not stand: an attempt has just failed.
    next_stand: Instant,
    /// Until then, it does not try again to give up its lead.
    next_yield: Instant,
    /// Whether this node is about to stand, or to give up its lead.
    is_busy: bool,
}

impl Watch {
    /// `has_led`: the node led when it stopped. It stands at once, if the others have been away as
    /// well.
    pub(super) fn new(heartbeat: Duration, has_led: bool) -> Watch {
        let now = Instant::now();
        let next_stand = if has_led { now } else { now + heartbeat * PATIENCE };
        let (heard, led_since, is_busy) = Default::default();
        let mut watch = Watch { heartbeat, heard, delay: heartbeat, led_since, next_stand, next_yield: now, is_busy };
        watch.draw();
        watch
    }

    fn draw(&mut self) {
        self.delay = self.heartbeat.mul_f64(rand::rng().random_range(0.0..1.0));
    }

    /// Notes that a leader was heard, or that another node got this one's vote.
    pub(super) fn note_heard(&mut self) {
        self.heard = Some(Instant::now());
    }

    /// Notes whether this node leads.
    pub(super) fn note_lead(&mut self, leads: bool) {
        match (leads, self.led_since) {
            (true, None) => self.led_since = Some(Instant::now()),
            (false, Some(_)) => {
                self.led_since = None;
                self.note_heard();
            }
            _ => {}
        }
    }

    /// For how long this node has led.
    pub(super) fn led_for(&self) -> Option<Duration> {
        self.led_since.map(|since| since.elapsed())
    }

    /// Whether a leader was heard so lately that no other node should be elected.
    pub(super) fn has_leader(&self) -> bool {
        self.heard.is_some_and(|heard| heard.elapsed() < self.heartbeat * LEASE)
    }

    /// Whether it is time to stand. `defers`: others should come before this node.
    pub(super) fn is_due(&self, defers: bool) -> bool {
        let now = Instant::now();
        let silence = self.heartbeat * (PATIENCE + if defers { DEFERENCE } else { 0 }) + self.delay;
        now >= self.next_stand && self.heard.is_none_or(|heard| now >= heard + silence)
    }

    /// Whether this node should stand now; it is then busy. It does not lead.
    pub(super) fn begin_to_stand(&mut self, defers: bool) -> bool {
        let begins = !self.is_busy && self.is_due(defers);
        self.is_busy |= begins;
        begins
    }

    /// Whether this node, which has led for a while, may begin to give up its lead; it is then
    /// busy.
    pub(super) fn begin_to_yield(&mut self, grace: Duration) -> bool {
        let has_led = self.led_for().is_some_and(|since| since > grace);
        let begins = !self.is_busy && has_led && Instant::now() >= self.next_yield;
        self.is_busy |= begins;
        begins
    }

    /// Whether it is about to stand.
    pub(super) fn stands(&self) -> bool {
        self.is_busy && self.led_since.is_none()
    }

    /// Ends what was begun.
    pub(super) fn end_attempt(&mut self) {
        self.draw();
        self.is_busy = false;
        self.next_stand = Instant::now() + self.heartbeat + self.delay;
        self.next_yield = Instant::now() + self.heartbeat * YIELD_PAUSE;
    }
}
