//! Histories that trouble strikes at one call after the other.
//!
//! A history without trouble says which calls each of its operations makes, recoveries among them.
//! For every so many calls, and for the first of each kind, the history runs again up to that
//! operation, with trouble at that call, and shows that the store lives on.

use std::collections::BTreeSet;

use super::draw::Profile;
use super::op::{Change, End, History, Op};
use super::watched::Event;
use super::{Calls, carry_out};

/// Kinds of calls that there were, and those that trouble has struck.
#[derive(Default)]
pub(super) struct Kinds {
    all: BTreeSet<String>,
    struck: BTreeSet<String>,
}

/// What is done, and to which sort of file. Not a store, not the removal of a file that is not
/// there, and not files that are ingested.
fn kind(event: &Event) -> Option<String> {
    (event.ok && event.what != "store" && !event.path.starts_with("/in")).then(|| event.kind())
}

impl Kinds {
    pub(super) fn check(&self) {
        let missed: Vec<_> = self.all.difference(&self.struck).collect();
        assert!(missed.is_empty(), "{missed:?} of {} kinds of calls were never struck", self.all.len());
    }
}

/// Strikes the calls of the history of a seed.
pub(super) fn sweep(profile: &Profile, seed: u64, every: usize, kinds: &mut Kinds) {
    let mut history = profile.history(seed);
    let end = if seed.is_multiple_of(2) { End::Kill } else { End::PowerCut(seed) };
    history.ops.push(Op::Reopen(end, history.setup));
    let whole = carry_out(profile, seed, &history);
    kinds.all.extend(whole.events.iter().filter_map(kind));
    let mut rng = fastrand::Rng::with_seed(!seed);
    let first = rng.usize(0..every);
    let begins = &whole.begins;
    for (n, (begin, end)) in std::iter::once(&0).chain(begins).zip(begins).enumerate() {
        for call in *begin..*end {
            let is_new = kind(&whole.events[call]).is_some_and(|kind| !kinds.struck.contains(&kind));
            if call % every != first && !is_new {
                continue;
            }
            // The first one strikes any call.
            let trouble = profile.troubles[if is_new { 0 } else { rng.usize(0..profile.troubles.len()) }](&mut rng);
            let (at, again) = (u16::try_from(call - begin + 1).unwrap(), rng.u8(0..4) == 0);
            // The first ones create the store.
            let birth = (n == 0).then_some((at, trouble, again));
            let mut ops = history.ops[..n].to_vec();
            if n > 0 {
                ops.insert(n - 1, Op::Arm(at, trouble, again));
            }
            let [image, end] = [(); 2].map(|()| rng.u64(..) >> 40);
            ops.extend([
                Op::Step,
                Op::Image(rng.bool().then_some(image)),
                Op::Write(vec![(0, Change::Put(1, 9)), (1, Change::Put(2, 9))], true),
                Op::Flush,
                Op::Reopen(End::PowerCut(end), history.setup),
            ]);
            let calls = carry_out(profile, seed, &History { birth, ops, ..history.clone() });
            let mut both = whole.events.iter().zip(&calls.events).skip(call);
            kinds.struck.extend(both.find(|(whole, event)| whole.ok && !event.ok).and_then(|(whole, _)| kind(whole)));
        }
    }
}

/// One seed is one history, also of calls.
pub(super) fn check_repeats(profile: &Profile, seed: u64) {
    let history = profile.history(seed);
    let [one, other]: [Calls; 2] = [(); 2].map(|()| carry_out(profile, seed, &history));
    assert!(one.events == other.events, "seed {seed} is not one history");
}
