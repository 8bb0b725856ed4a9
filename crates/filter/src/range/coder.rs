//! [`Coder`]: numbers of the keys of one segment, in order.
//!
//! A key goes on from what it shares with the key before it. Constant positions are left out, and
//! the parts of a byte come from a table.

use super::alphabet::{Alphabet, Alphabets, MAX_POSITIONS, ROOT, Value, cut};

/// Most steps that a number takes: positions with an alphabet, and then some of 257 symbols each.
const MAX_STEPS: usize = MAX_POSITIONS + 16;

/// Where the parts of each byte begin and end.
type Table = [(u16, u16); 256];

pub(super) struct Coder {
    /// Position and table. Each later position is a step too, with the last table.
    steps: Vec<(usize, usize)>,
    /// The first step from a position on.
    first: [usize; MAX_POSITIONS + 1],
    tables: Vec<Table>,
    /// The first step of the block.
    begin: usize,
    /// The step before which the number of the key before ended.
    depth: usize,
    /// Number and width of the key before, before each step from `begin` on.
    states: Box<[(Value, Value); MAX_STEPS + 1]>,
}

impl Coder {
    pub(super) fn new() -> Coder {
        Coder {
            steps: Vec::new(),
            first: [0; MAX_POSITIONS + 1],
            tables: Vec::new(),
            begin: 0,
            depth: 0,
            states: Box::new([(0, ROOT); MAX_STEPS + 1]),
        }
    }

    /// Takes the alphabets of other keys.
    pub(super) fn begin_segment(&mut self, alphabets: &Alphabets) {
        let table = |alphabet: &Alphabet| {
            let mut table = [(0, 0); 256];
            for (parts, byte) in table.iter_mut().zip(0u8..=255) {
                *parts = alphabet.parts_of(byte).unwrap_or_default();
            }
            table
        };
        self.tables.clear();
        self.tables.extend(alphabets.distinct().iter().chain([alphabets.rest()]).map(table));
        self.steps.clear();
        let positions = alphabets.positions();
        for (position, first) in self.first.iter_mut().enumerate() {
            *first = self.steps.len();
            if let Some(&table) = positions.get(position)
                && !alphabets.distinct()[usize::from(table)].is_constant()
            {
                self.steps.push((position, table.into()));
            }
        }
    }

    /// Begins a block, whose keys share the positions before `position`.
    pub(super) fn begin_block(&mut self, position: usize) {
        self.begin = self.step(position);
        self.depth = self.begin;
    }

    fn step(&self, position: usize) -> usize {
        self.first.get(position).copied().unwrap_or_else(|| self.steps.len() + position - MAX_POSITIONS)
    }

    /// [`Alphabets::number`] of a key of the block, without the prefix of all keys, which shares
    /// `shared` bytes with the key before it.
    #[inline]
    pub(super) fn number(&mut self, key: &[u8], shared: usize, shortest: Value) -> Value {
        let mut step = self.step(shared).min(self.depth).max(self.begin);
        let (mut value, mut width) = self.states[step - self.begin];
        while width >= shortest {
            let (position, table) = match self.steps.get(step) {
                Some(&step) => step,
                None => (MAX_POSITIONS + step - self.steps.len(), self.tables.len() - 1),
            };
            let Some(&byte) = key.get(position) else { break };
            let (start, end) = self.tables[table][usize::from(byte)];
            let start = cut(width, start);
            value += start;
            width = cut(width, end) - start;
            step += 1;
            self.states[step - self.begin] = (value, width);
        }
        self.depth = step;
        value
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        size_of::<Coder>() + size_of_val(&*self.states) + size_of_val(&*self.tables) + size_of_val(&*self.steps)
    }
}
