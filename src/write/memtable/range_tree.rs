//! [`RangeTree`]: disjoint fragments of one keyspace, in a B-tree whose nodes never change.
//!
//! A change copies the nodes on its way, O(log n) of them, and makes a new root. A root is
//! therefore the state at one moment, and a reader that holds it sees no later change.
//!
//! A node keeps its keys in one buffer: with a million fragments, a look-up takes a few cache
//! misses for each level, of which it has 8 at most, and not one for each comparison.

use std::sync::Arc;

use crate::format::key::SeqNo;
use crate::sorted::ranges::{Fragment, KeyList, Piece, RangeLayer, RangeSource};

/// Most fragments of a leaf. Copying one is a copy of bytes.
const LEAF_LEN: usize = 64;
/// Most children of another node. Copying one counts up a reference in each child, which may be a
/// cache miss.
const INNER_LEN: usize = 8;

/// The fragments of a keyspace at one moment.
#[derive(Clone, Default)]
pub(super) struct RangeTree(Option<Arc<Node>>);

enum Node {
    Leaf(RangeLayer),
    Inner(Inner),
}

struct Inner {
    /// Where each child begins.
    starts: KeyList,
    children: Vec<Arc<Node>>,
    /// Number of fragments below each.
    lens: Vec<usize>,
}

/// A fragment with borrowed keys; an empty end is none.
type Borrowed<'a> = (&'a [u8], &'a [u8], SeqNo);

/// A node that is about to get a parent.
struct Child<'a> {
    node: Arc<Node>,
    /// Its start and its number of fragments, if a parent has told: asking the node may be a cache
    /// miss.
    told: Option<(&'a [u8], usize)>,
}

impl RangeTree {
    /// Adds a range that is newer than all others: it cuts out what it covers.
    pub(super) fn insert(&mut self, range: &Fragment) {
        let cut = self.piece_at(&range.start, false);
        // What a fragment has before and behind the new one keeps its number there.
        let before = (cut.seqno > 0 && *cut.from < *range.start).then_some((cut.from, &*range.start, cut.seqno));
        let behind = range.end.as_deref().and_then(|end| {
            let cut = self.piece_at(end, false);
            (cut.seqno > 0 && *cut.from < *end).then(|| (end, cut.to.unwrap_or_default(), cut.seqno))
        });
        let new = (&*range.start, range.stored_end(), range.seqno);
        let new: Vec<Borrowed<'_>> = before.into_iter().chain([new]).chain(behind).collect();
        let mut nodes = Vec::new();
        match &self.0 {
            Some(root) => root.replaced(new[0].0, range.end.as_deref(), &new, &mut nodes),
            None => push_leaves(&mut nodes, new.len(), new.iter().copied()),
        }
        while nodes.len() > 1 {
            nodes = parents(&nodes).map(Child::new).collect();
        }
        let mut root = nodes.pop().map(|root| root.node);
        while let Some(Node::Inner(inner)) = root.as_deref()
            && let [child] = &inner.children[..]
        {
            root = Some(Arc::clone(child));
        }
        self.0 = root;
    }

    /// The piece that `key` lies in or, with `before`, the keys right before it.
    pub(super) fn piece_at(&self, key: &[u8], before: bool) -> Piece<'_> {
        let last = self.last_piece();
        if last.reaches(key, before) {
            return last;
        }
        let Some(mut node) = self.0.as_deref() else { return Piece::default() };
        // Where the fragment after this node begins.
        let mut next = None;
        while let Node::Inner(inner) = node {
            let until = inner.starts.count_until(key, before);
            next = (until.max(1) < inner.children.len()).then(|| inner.starts.get(until.max(1))).or(next);
            node = &inner.children[until.saturating_sub(1)];
        }
        let Node::Leaf(leaf) = node else { return Piece::default() };
        let piece = leaf.piece_in(key, before);
        Piece { to: piece.to.or(next.filter(|_| piece.seqno == 0)), ..piece }
    }

    /// The piece at the end of the key space.
    pub(super) fn last_piece(&self) -> Piece<'_> {
        let Some(mut node) = self.0.as_deref() else { return Piece::default() };
        loop {
            match node {
                Node::Leaf(leaf) => return leaf.last_piece(),
                Node::Inner(inner) => match inner.children.last() {
                    Some(last) => node = last,
                    None => return Piece::default(),
                },
            }
        }
    }

    /// Number of fragments.
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |node| node.fragment_count())
    }

    pub(super) fn fragments(&self) -> Vec<Fragment> {
        fn visit(node: &Node, out: &mut Vec<Fragment>) {
            match node {
                Node::Leaf(leaf) => out.extend(leaf.fragments()),
                Node::Inner(inner) => inner.children.iter().for_each(|child| visit(child, out)),
            }
        }
        let mut out = Vec::with_capacity(self.len());
        self.0.iter().for_each(|root| visit(root, &mut out));
        out
    }
}

impl Node {
    /// Number of fragments of a leaf, of children otherwise.
    fn len(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.len(),
            Node::Inner(inner) => inner.children.len(),
        }
    }

    /// Most that [`len`](Node::len) can be.
    fn most(&self) -> usize {
        match self {
            Node::Leaf(_) => LEAF_LEN,
            Node::Inner(_) => INNER_LEN,
        }
    }

    fn fragment_count(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.len(),
            Node::Inner(inner) => inner.lens.iter().sum(),
        }
    }

    fn start(&self) -> &[u8] {
        match self {
            Node::Leaf(leaf) => leaf.start(0),
            Node::Inner(inner) => inner.starts.get(0),
        }
    }

    /// Appends this node to `out`, with `new` in place of the fragments that begin at `from` or
    /// after and before `to`. It may become several nodes, or none.
    fn replaced(&self, from: &[u8], to: Option<&[u8]>, new: &[Borrowed<'_>], out: &mut Vec<Child<'_>>) {
        match self {
            Node::Leaf(leaf) => {
                let first = leaf.count_until(from, true);
                let rest = to.map_or(leaf.len(), |to| leaf.count_until(to, true)).max(first);
                let kept = (0..first).map(|i| leaf.get(i));
                let all = kept.chain(new.iter().copied()).chain((rest..leaf.len()).map(|i| leaf.get(i)));
                push_leaves(out, first + new.len() + leaf.len() - rest, all);
            }
            Node::Inner(inner) => {
                // All fragments of the children between these two go.
                let first = inner.starts.count_until(from, false).saturating_sub(1);
                let last = to.map_or(inner.children.len(), |to| inner.starts.count_until(to, true)).max(first + 1) - 1;
                let mut children = Vec::with_capacity(inner.children.len() + 2);
                children.extend((0..first).map(|i| inner.child(i)));
                inner.children[first].replaced(from, to, new, &mut children);
                if last > first {
                    inner.children[last].replaced(from, to, &[], &mut children);
                }
                if last + 1 < inner.children.len() {
                    push(&mut children, inner.child(last + 1));
                    children.extend((last + 2..inner.children.len()).map(|i| inner.child(i)));
                }
                parents(&children).for_each(|node| push(out, Child::new(node)));
            }
        }
    }
}

/// Appends `len` fragments in leaves of similar lengths.
fn push_leaves<'a>(out: &mut Vec<Child<'_>>, len: usize, mut fragments: impl Iterator<Item = Borrowed<'a>>) {
    let leaves = len.div_ceil(LEAF_LEN);
    for i in 0..leaves {
        let count = len * (i + 1) / leaves - len * i / leaves;
        let mut leaf = RangeLayer::with_capacity(count);
        fragments.by_ref().take(count).for_each(|(start, end, seqno)| leaf.push(start, end, seqno));
        push(out, Child::new(Arc::new(Node::Leaf(leaf))));
    }
}

/// As few nodes as possible over children of one height.
fn parents(children: &[Child<'_>]) -> impl Iterator<Item = Arc<Node>> {
    let count = children.len().div_ceil(INNER_LEN);
    let bound = move |i: usize| children.len() * i / count;
    (0..count).map(move |i| Arc::new(Node::Inner(Inner::of(&children[bound(i)..bound(i + 1)]))))
}

/// Appends a node, or joins it with the last one if both are small: what ranges cut out leaves no
/// trail of small nodes.
fn push<'a>(nodes: &mut Vec<Child<'a>>, child: Child<'a>) {
    let small = nodes.last().filter(|last| last.node.len() + child.node.len() <= child.node.most() / 2);
    let joined = small.and_then(|last| match (&*last.node, &*child.node) {
        (Node::Leaf(a), Node::Leaf(b)) => {
            let mut leaf = RangeLayer::with_capacity(a.len() + b.len());
            let all = (0..a.len()).map(|i| a.get(i)).chain((0..b.len()).map(|i| b.get(i)));
            all.for_each(|(start, end, seqno)| leaf.push(start, end, seqno));
            Some(Node::Leaf(leaf))
        }
        (Node::Inner(a), Node::Inner(b)) => {
            let both = [a, b].into_iter().flat_map(|inner| (0..inner.children.len()).map(|i| inner.child(i)));
            Some(Node::Inner(Inner::of(&both.collect::<Vec<_>>())))
        }
        // All nodes of a list have one height.
        _ => None,
    });
    match joined {
        Some(joined) => {
            nodes.pop();
            nodes.push(Child::new(Arc::new(joined)));
        }
        None => nodes.push(child),
    }
}

impl Child<'_> {
    fn new(node: Arc<Node>) -> Self {
        Child { node, told: None }
    }
}

impl Inner {
    fn of(children: &[Child<'_>]) -> Inner {
        let (mut starts, mut lens) = (KeyList::default(), Vec::with_capacity(children.len()));
        for child in children {
            let (start, count) = child.told.unwrap_or_else(|| (child.node.start(), child.node.fragment_count()));
            starts.push(start);
            lens.push(count);
        }
        Inner { starts, lens, children: children.iter().map(|child| Arc::clone(&child.node)).collect() }
    }

    fn child(&self, i: usize) -> Child<'_> {
        Child { node: Arc::clone(&self.children[i]), told: Some((self.starts.get(i), self.lens[i])) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn height(node: &Node) -> usize {
        match node {
            Node::Leaf(leaf) => {
                assert!((1..=LEAF_LEN).contains(&leaf.len()));
                1
            }
            Node::Inner(inner) => {
                assert!((1..=INNER_LEN).contains(&inner.children.len()));
                let heights: Vec<usize> = inner.children.iter().map(|child| height(child)).collect();
                assert!(heights.iter().all(|height| *height == heights[0]), "{heights:?}");
                for (i, child) in inner.children.iter().enumerate() {
                    assert_eq!(child.start(), inner.starts.get(i));
                }
                1 + heights[0]
            }
        }
    }

    fn fragment(start: u32, end: u32, seqno: SeqNo) -> Fragment {
        Fragment { start: start.to_be_bytes().as_slice().into(), end: Some(end.to_be_bytes().as_slice().into()), seqno }
    }

    #[test]
    fn nested_and_scattered_ranges_make_a_low_tree() {
        let mut tree = RangeTree::default();
        for i in 0..100_000u32 {
            tree.insert(&fragment(i, 300_000 - i, u64::from(i) + 1));
        }
        assert_eq!(tree.len(), 199_999);
        assert!(height(tree.0.as_ref().unwrap()) <= 8);
        // Cutting out nearly all of them leaves a small tree.
        let before = tree.clone();
        for i in 0..1000u32 {
            tree.insert(&fragment(50 + i, 299_950 - i, 200_000 + u64::from(i)));
        }
        assert_eq!(tree.len(), 2 * 50 + 2 * 1000 - 1);
        assert!(height(tree.0.as_ref().unwrap()) <= 6);
        assert_eq!(before.len(), 199_999, "an older root does not change");
    }

    #[test]
    fn ranges_in_random_places_agree_with_a_list() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut tree, mut list) = (RangeTree::default(), vec![0; 2000]);
        for seqno in 1..4000u64 {
            let from = rng.u32(0..2000);
            let len = if rng.u8(0..50) == 0 { rng.u32(1..2000) } else { rng.u32(1..4) };
            let to = (from + len).min(2000);
            tree.insert(&fragment(from, to, seqno));
            list[from as usize..to as usize].fill(seqno);
            if seqno % 97 == 0 {
                height(tree.0.as_ref().unwrap());
                for (key, expected) in (0u32..).zip(&list) {
                    let piece = tree.piece_at(&key.to_be_bytes(), false);
                    assert_eq!(piece.seqno, *expected);
                    assert_eq!(tree.piece_at(&(key + 1).to_be_bytes(), true), piece, "before {}", key + 1);
                    let holds = |key: u32| {
                        *piece.from <= key.to_be_bytes()[..] && piece.to.is_none_or(|to| key.to_be_bytes()[..] < *to)
                    };
                    assert!(holds(key));
                    assert!((0u32..).zip(&list).all(|(key, seqno)| !holds(key) || seqno == expected));
                }
            }
        }
    }
}
