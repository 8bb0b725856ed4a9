//! [`Asked`]: what a pass asks for, and in words.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use tamis::FilterMode;

use crate::commands::look_up::SCANNED;
use crate::commands::range::KeyRange;
use crate::commands::workload::measure::{Question, Scan};

pub(super) type Key = Box<[u8]>;

/// Which filters are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Keys,
    Ranges,
}

/// What is asked for in a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asked {
    Keys(Question),
    /// Ranges without entries.
    Empty {
        start: Start,
        /// Length in gaps: mean distances of neighbours. 0 stands for the shortest range.
        gaps: f64,
        backward: bool,
    },
    /// The first entries from somewhere on.
    Short {
        backward: bool,
    },
}

/// Where empty ranges begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// At strings spread like the keys.
    Fresh,
    /// A tenth of a gap after a key.
    NearKeys,
}

impl Start {
    pub(super) const ALL: [Start; 2] = [Start::Fresh, Start::NearKeys];

    pub(super) fn name(self) -> &'static str {
        match self {
            Start::Fresh => "fresh",
            Start::NearKeys => "near keys",
        }
    }
}

impl Kind {
    pub(super) fn unit(self) -> &'static str {
        match self {
            Kind::Keys => "key",
            Kind::Ranges => "range",
        }
    }

    /// Sizes of filters that are measured without `--bits`.
    pub(super) fn bits(self) -> &'static [f32] {
        match self {
            Kind::Keys => &[4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0],
            Kind::Ranges => &[6.0, 8.0, 10.0, 12.0, 14.0, 16.0],
        }
    }
}

impl Asked {
    pub(super) fn kind(self) -> Kind {
        match self {
            Asked::Keys(_) => Kind::Keys,
            Asked::Empty { .. } | Asked::Short { .. } => Kind::Ranges,
        }
    }

    /// Whether each is there.
    pub(super) fn is_found(self) -> bool {
        matches!(self, Asked::Keys(Question::Existing) | Asked::Short { .. })
    }

    pub(super) fn scan(self) -> Scan {
        match self {
            Asked::Keys(_) => Scan::FIRST,
            Asked::Empty { backward, .. } => Scan { backward, ..Scan::FIRST },
            Asked::Short { backward } => Scan { entries: SCANNED, backward },
        }
    }

    /// Of ranges, the same ones in the other direction; of keys, the same.
    pub(super) fn reversed(self) -> Asked {
        match self {
            Asked::Keys(_) => self,
            Asked::Empty { start, gaps, backward } => Asked::Empty { start, gaps, backward: !backward },
            Asked::Short { backward } => Asked::Short { backward: !backward },
        }
    }

    /// What is scanned in place of a range: backward, an open one ends where it would begin.
    pub(super) fn range(self, range: &KeyRange) -> Cow<'_, KeyRange> {
        match (self.scan().backward, &range.upper) {
            (true, None) => Cow::Owned(KeyRange { lower: Vec::new(), upper: Some(range.lower.clone()) }),
            _ => Cow::Borrowed(range),
        }
    }

    /// Whether a survey knows the number of blocks but for chance: `explain_range` looks forward,
    /// and the rates of range filters are those of ranges like their keys, not of any.
    pub(super) fn is_certain(self, filters: FilterMode) -> bool {
        self.kind() == Kind::Keys || (filters == FilterMode::Ignore && !self.scan().backward)
    }

    fn direction(self) -> &'static str {
        if self.scan().backward { "backward" } else { "forward" }
    }

    pub(super) fn name(self) -> String {
        match self {
            Asked::Keys(_) => self.what(),
            _ => format!("{}, {}", self.what(), self.direction()),
        }
    }

    /// The name without a direction.
    pub(super) fn what(self) -> String {
        match self {
            Asked::Keys(Question::Existing) => "existing".to_owned(),
            Asked::Keys(Question::Missing) => "missing".to_owned(),
            Asked::Empty { start, gaps: 0.0, .. } => format!("empty, {}, shortest", start.name()),
            Asked::Empty { start, gaps: 1.0, .. } => format!("empty, {}, 1 gap", start.name()),
            Asked::Empty { start, gaps, .. } => format!("empty, {}, {gaps} gaps", start.name()),
            Asked::Short { .. } => format!("first {SCANNED} entries"),
        }
    }

    /// The fields that say what was asked for.
    pub(super) fn json(self) -> Map<String, Value> {
        let direction = self.direction();
        let fields = match self {
            Asked::Keys(_) => json!({ "keys": self.what() }),
            Asked::Empty { start, gaps, .. } => {
                json!({ "ranges": "empty", "start": start.name(), "gaps": gaps, "direction": direction })
            }
            Asked::Short { .. } => json!({ "ranges": "short", "entries": SCANNED, "direction": direction }),
        };
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}
