//! [`Coder`]: numbers of the keys of one segment, in order.
//!
//! A key goes on from what it shares with the key before it. Constant positions are left out, and
//! the parts of a byte come from a table.

use super::alphabet::{Alphabet, Alphabets, Integer, MAX_POSITIONS, Precision, Value};

/// Most steps that a number takes: positions with an alphabet, and then some of 257 symbols each.
const MAX_STEPS: usize = MAX_POSITIONS + 16;

/// Where the parts of each byte begin and end.
type Table = [(u16, u16); 256];

pub(super) struct Coder {
    segment: Steps,
    /// The first step of the block.
    begin: usize,
    narrow: States<u64>,
    wide: States<u128>,
}

/// The steps of a segment's numbers.
struct Steps {
    /// Position and table. Each later position is a step too, with the last table.
    steps: Vec<(usize, usize)>,
    /// The first step from a position on.
    first: [usize; MAX_POSITIONS + 1],
    tables: Vec<Table>,
}

/// What was computed of the key before.
struct States<N> {
    /// The step before which its number ended.
    depth: usize,
    /// Its number and width before each step from the first of the block on.
    states: Box<[(N, N); MAX_STEPS + 1]>,
}

impl<N: Integer> States<N> {
    fn new() -> States<N> {
        States { depth: 0, states: Box::new([(N::default(), N::ROOT); MAX_STEPS + 1]) }
    }
}

impl Coder {
    pub(super) fn new() -> Coder {
        Coder {
            segment: Steps { steps: Vec::new(), first: [0; MAX_POSITIONS + 1], tables: Vec::new() },
            begin: 0,
            narrow: States::new(),
            wide: States::new(),
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
        let Steps { steps, first, tables } = &mut self.segment;
        tables.clear();
        tables.extend(alphabets.distinct().iter().chain([alphabets.rest()]).map(table));
        steps.clear();
        let positions = alphabets.positions();
        for (position, first) in first.iter_mut().enumerate() {
            *first = steps.len();
            if let Some(&table) = positions.get(position)
                && !alphabets.distinct()[usize::from(table)].is_constant()
            {
                steps.push((position, table.into()));
            }
        }
    }

    /// Begins a block, whose keys share the positions before `position`.
    pub(super) fn begin_block(&mut self, position: usize) {
        self.begin = self.segment.step(position);
        (self.narrow.depth, self.wide.depth) = (self.begin, self.begin);
    }

    /// [`Alphabets::number`] of a key of the block, without the prefix of all keys, which shares
    /// `shared` bytes with the key before it.
    #[inline]
    pub(super) fn number(&mut self, key: &[u8], shared: usize, shortest: Value, precision: Precision) -> Value {
        let Coder { segment, begin, narrow, wide } = self;
        match precision {
            Precision::Narrow => segment.number(narrow, *begin, key, shared, u64::of(shortest)).value(),
            Precision::Wide => segment.number(wide, *begin, key, shared, shortest),
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        let states = size_of_val(&*self.narrow.states) + size_of_val(&*self.wide.states);
        size_of::<Coder>() + states + size_of_val(&*self.segment.tables) + size_of_val(&*self.segment.steps)
    }
}

impl Steps {
    fn step(&self, position: usize) -> usize {
        self.first.get(position).copied().unwrap_or_else(|| self.steps.len() + position - MAX_POSITIONS)
    }

    #[inline]
    fn number<N: Integer>(&self, before: &mut States<N>, begin: usize, key: &[u8], shared: usize, shortest: N) -> N {
        let mut step = self.step(shared).min(before.depth).max(begin);
        let (mut value, mut width) = before.states[step - begin];
        while width >= shortest {
            let (position, table) = match self.steps.get(step) {
                Some(&step) => step,
                None => (MAX_POSITIONS + step - self.steps.len(), self.tables.len() - 1),
            };
            let Some(&byte) = key.get(position) else { break };
            let (start, end) = self.tables[table][usize::from(byte)];
            let start = width.cut(start);
            value = value + start;
            width = width.cut(end) - start;
            step += 1;
            before.states[step - begin] = (value, width);
        }
        before.depth = step;
        value
    }
}
