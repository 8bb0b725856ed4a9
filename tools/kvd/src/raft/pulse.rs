//! What each node asks all others again and again, whatever groups they share: what their clocks
//! show, and what time it is in the groups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::cluster::Cluster;
use super::group::Group;
use super::others::{ROUND, is_off};
use super::wire::{Answer, Call, Greeting};
use crate::clock::millis;
use crate::machine::GroupId;
use crate::replica::{NodeId, Replica};

/// What a node has said of itself.
struct Heard {
    asked: Instant,
    at: Instant,
    greeting: Greeting,
}

impl Cluster {
    /// Answers another node.
    pub(super) fn greeted(&self, from: NodeId) -> Greeting {
        let knows = self.knows(from);
        if knows {
            self.others.note_caller(from);
        }
        let settled = self.all().filter(|(_, group)| group.state.is_settled());
        let times = settled.map(|(number, group)| (number, group.state.now_ms())).collect();
        let leads = |(number, group): (GroupId, Arc<Group>)| Some((number, group.leads_in()?));
        let leads = self.all().filter_map(leads).collect();
        let (version, is_low) = (self.settings.version, self.space.is_low());
        Greeting { version, is_low, wall_ms: self.settings.wall.now_ms(), times, knows, leads }
    }

    /// Asks all others, again and again.
    pub(super) async fn greet_others(&self) {
        loop {
            self.greet_once().await;
            let is_settled = self.member_groups().all(|(_, group)| group.state.is_settled());
            let pause = self.settings.heartbeat;
            sleep(if is_settled { pause.max(ROUND) } else { pause }).await;
        }
    }

    async fn greet_once(&self) {
        let (id, limit) = (self.settings.id, self.settings.heartbeat.max(ROUND));
        let others = self.members().into_iter().filter(|(other, _)| *other != id && self.number() != 0);
        let asked = others.map(|(other, member)| async move {
            let asked = Instant::now();
            let answer = timeout(limit, self.pool.call(other, &member.raft, &Call::Greet { from: id })).await;
            match answer {
                Ok(Ok(Answer::Greeting(greeting))) => Some((other, Heard { asked, at: Instant::now(), greeting })),
                Ok(Err(error)) => {
                    self.note_outdated(&error);
                    None
                }
                _ => None,
            }
        });
        let heard: BTreeMap<NodeId, Heard> = join_all(asked).await.into_iter().flatten().collect();
        {
            let mut clocks = self.others.clocks.lock();
            clocks.note(id, self.settings.wall.now_ms(), Instant::now(), 0);
            for (other, Heard { asked, at, greeting }) in &heard {
                let half = (*at - *asked) / 2;
                clocks.note(*other, greeting.wall_ms, *asked + half, millis(half));
            }
        }
        for (other, Heard { greeting, .. }) in &heard {
            self.others.note_said(*other, greeting.version, greeting.is_low);
            let leads = greeting.leads.range(..self.groups());
            self.others.note_answer(*other, greeting.knows, &leads.map(|(group, term)| (*group, *term)).collect());
        }
        for (number, group) in self.member_groups() {
            self.keep_time(number, &group, &heard);
        }
        self.tell_of_clock();
    }

    /// Pulls a group's time to where the voters' clocks are, and settles it when it can be.
    fn keep_time(&self, number: GroupId, group: &Group, heard: &BTreeMap<NodeId, Heard>) {
        let (voters, state) = (group.voters(), &group.state);
        let Some(median) = self.others.median(&voters) else { return };
        state.pull_to(median, Instant::now());
        if !state.is_settled() {
            let of_others = heard.values().filter_map(|Heard { at, greeting, .. }| {
                let time = greeting.times.get(&number)?;
                Some(time.saturating_add(millis(at.elapsed())))
            });
            let answered = voters.iter().filter(|voter| **voter == self.settings.id || heard.contains_key(voter));
            match of_others.max() {
                Some(time) => state.settle(time),
                None if 2 * answered.count() > voters.len() => state.settle(state.machine().log_ms(median)),
                None => {}
            }
        }
        let ahead_ms = self.others.group_ahead_ms(group).unwrap_or(0);
        let mut off = self.others.off.lock();
        if !is_off(ahead_ms) {
            off.remove(&number);
        } else if off.insert(number) {
            tracing::warn!(
                group = number,
                ahead_ms,
                "the group's time is not that of the members' clocks: `kvd set-time`"
            );
        }
    }

    /// Says when this node's clock begins to be far off, and when it ends to be.
    fn tell_of_clock(&self) {
        let ahead_ms = self.others.ahead_ms(self.settings.id, &self.voters()).unwrap_or(0);
        let is_off = is_off(ahead_ms);
        if self.others.is_off.swap(is_off, Ordering::Relaxed) != is_off {
            match is_off {
                true => tracing::warn!(ahead_ms, "this node's clock is not that of the other members"),
                false => tracing::info!(ahead_ms, "this node's clock is that of the other members again"),
            }
        }
    }
}
