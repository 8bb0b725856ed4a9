//! What a group notes of its log: which proposals it has seen, how long it is, and what a node must
//! know to read it.

use std::sync::Arc;

use openraft::EntryPayload;
use tamis::WriteBatch;
use tamis_openraft::{Appending, Events};

use super::library::{Entry, Types, version_of};
use super::state::State;
use super::types::{LogId, Logged, Vote};
use crate::machine::{Machine, Version};
use crate::store::VERSION;

pub(crate) type LogStore = tamis_openraft::LogStore<Types, Machine, State>;
pub(crate) type Syncer = tamis_openraft::Syncer<Types, State>;

/// An append that is being made.
struct Append<'a> {
    state: &'a State,
    proposals: Vec<Arc<Logged>>,
    version: Version,
}

impl Events<Types> for State {
    type Waiting = Vec<Arc<Logged>>;

    fn append(&self) -> impl Appending<Types, Vec<Arc<Logged>>> + Send {
        Append { state: self, proposals: Vec::new(), version: self.version() }
    }

    fn synced(proposals: Vec<Arc<Logged>>) {
        proposals.iter().for_each(|logged| logged.note_passed());
    }

    fn vote(&self, vote: &Vote) {
        self.note_promised(*vote);
    }

    fn committed(&self, last: &LogId) {
        self.note_committed(last.index);
    }

    fn check(&self, entry: &Entry) -> tamis_openraft::Result<()> {
        let checked = self.store.versions.check(version_of(entry), "an entry");
        checked.map_err(tamis_openraft::Error::machine)
    }
}

impl Appending<Types, Vec<Arc<Logged>>> for Append<'_> {
    fn entry(&mut self, entry: &Entry, len: usize) {
        self.version = self.version.max(version_of(entry));
        if let EntryPayload::Normal(proposal) = &entry.payload {
            self.proposals.extend(proposal.note_logged());
        }
        self.state.retention.note_appended(len);
    }

    fn end(&mut self, batch: &mut WriteBatch) -> tamis_openraft::Result<()> {
        if self.version > self.state.version() {
            self.state.store.put_item(batch, self.state.group, VERSION, &self.version)?;
        }
        Ok(())
    }

    fn written(self) -> Vec<Arc<Logged>> {
        self.state.raise_version(self.version);
        self.proposals
    }
}
