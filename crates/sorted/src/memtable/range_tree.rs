//! [`RangeTree`]: disjoint fragments of one keyspace, in a B-tree whose nodes never change.
//!
//! A change copies the nodes on its way, O(log n) of them, and makes a new root. A root is
//! therefore the state at one moment, and a reader that holds it sees no later change.
//!
//! A node keeps its keys in one buffer: with a million fragments, a look-up takes a few cache
//! misses for each level, of which it has 8 at most, and not one for each comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::format::key::SeqNo;
use crate::ranges::{Fragment, KeyList, Piece, RangeLayer, RangeSource};

/// Most fragments of a leaf. Copying one is a copy of bytes.
const LEAF_LEN: usize = 64;
/// Most children of another node. Copying one counts up a reference in each child, which may be a
/// cache miss.
const INNER_LEN: usize = 8;

/// The fragments of a keyspace at one moment.
#[derive(Clone)]
pub(super) struct RangeTree {
    root: Option<Arc<RangeNode>>,
    /// Bytes of the nodes of this tree and of all that share the counter; one that several trees
    /// have counts once.
    memory: Arc<AtomicUsize>,
}

struct RangeNode {
    kind: NodeKind,
    /// What the node has added to the counter.
    bytes: usize,
    memory: Arc<AtomicUsize>,
}

enum NodeKind {
    Leaf(RangeLayer),
    Inner(InnerNode),
}

struct InnerNode {
    /// Where each child begins.
    starts: KeyList,
    children: Vec<Arc<RangeNode>>,
    /// Number of fragments below each.
    lens: Vec<usize>,
    /// The newest number below each.
    newest: Vec<SeqNo>,
}

/// A fragment with borrowed keys; an empty end is none.
type Borrowed<'a> = (&'a [u8], &'a [u8], SeqNo);

/// A node that is about to get a parent.
struct Child<'a> {
    node: Arc<RangeNode>,
    /// What a parent has told of it: asking the node may be a cache miss.
    told: Option<Summary<'a>>,
}

/// What a parent holds of a node: its start, its number of fragments, and the newest number.
type Summary<'a> = (&'a [u8], usize, SeqNo);

impl RangeTree {
    /// An empty tree. Its nodes are counted in `memory`.
    pub(super) fn new(memory: &Arc<AtomicUsize>) -> RangeTree {
        RangeTree { root: None, memory: Arc::clone(memory) }
    }

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
        let mut nodes = Nodes { list: Vec::new(), memory: &self.memory };
        match &self.root {
            Some(root) => root.replaced(new[0].0, range.end.as_deref(), &new, &mut nodes),
            None => nodes.push_leaves(new.len(), new.iter().copied()),
        }
        let mut nodes = nodes.list;
        while nodes.len() > 1 {
            nodes = parents(&nodes, &self.memory).map(Child::new).collect();
        }
        let mut root = nodes.pop().map(|root| root.node);
        while let Some(NodeKind::Inner(inner)) = root.as_deref().map(|root| &root.kind)
            && let [child] = &inner.children[..]
        {
            root = Some(Arc::clone(child));
        }
        self.root = root;
    }

    /// The piece that `key` lies in or, with `before`, the keys right before it.
    pub(super) fn piece_at(&self, key: &[u8], before: bool) -> Piece<'_> {
        let last = self.last_piece();
        if last.reaches(key, before) {
            return last;
        }
        let Some(mut node) = self.root.as_deref() else { return Piece::default() };
        // Where the fragment after this node begins.
        let mut next = None;
        loop {
            match &node.kind {
                NodeKind::Inner(inner) => {
                    let until = inner.starts.count_until(key, before);
                    next = (until.max(1) < inner.children.len()).then(|| inner.starts.get(until.max(1))).or(next);
                    node = &inner.children[until.saturating_sub(1)];
                }
                NodeKind::Leaf(leaf) => {
                    let piece = leaf.piece_in(key, before);
                    return Piece { to: piece.to.or(next.filter(|_| piece.seqno == 0)), ..piece };
                }
            }
        }
    }

    /// The newest number that deletes any of the keys from `from` up to `to`; 0 if there is none.
    /// Looks at two nodes of each height at most.
    pub(super) fn newest_within(&self, from: &[u8], to: Option<&[u8]>) -> SeqNo {
        let root = self.root.as_ref().filter(|_| to.is_none_or(|to| from < to));
        root.map_or(0, |root| root.newest_within(from, to))
    }

    /// The piece at the end of the key space.
    pub(super) fn last_piece(&self) -> Piece<'_> {
        let Some(mut node) = self.root.as_deref() else { return Piece::default() };
        loop {
            match &node.kind {
                NodeKind::Leaf(leaf) => return leaf.last_piece(),
                NodeKind::Inner(inner) => match inner.children.last() {
                    Some(last) => node = last,
                    None => return Piece::default(),
                },
            }
        }
    }

    /// Number of fragments.
    pub(super) fn len(&self) -> usize {
        self.root.as_ref().map_or(0, |node| node.fragment_count())
    }
}

impl RangeNode {
    fn new(kind: NodeKind, memory: &Arc<AtomicUsize>) -> Arc<RangeNode> {
        let of_kind = match &kind {
            NodeKind::Leaf(leaf) => leaf.allocated(),
            NodeKind::Inner(inner) => {
                let of_child = size_of::<Arc<RangeNode>>() + size_of::<usize>() + size_of::<SeqNo>();
                inner.starts.allocated() + inner.children.len() * of_child
            }
        };
        // The node's two reference counts as well.
        let bytes = size_of::<RangeNode>() + 2 * size_of::<usize>() + of_kind;
        memory.fetch_add(bytes, Ordering::Relaxed);
        Arc::new(RangeNode { kind, bytes, memory: Arc::clone(memory) })
    }

    /// Number of fragments of a leaf, of children otherwise.
    fn len(&self) -> usize {
        match &self.kind {
            NodeKind::Leaf(leaf) => leaf.len(),
            NodeKind::Inner(inner) => inner.children.len(),
        }
    }

    /// Most that [`len`](RangeNode::len) can be.
    fn most(&self) -> usize {
        match &self.kind {
            NodeKind::Leaf(_) => LEAF_LEN,
            NodeKind::Inner(_) => INNER_LEN,
        }
    }

    fn fragment_count(&self) -> usize {
        match &self.kind {
            NodeKind::Leaf(leaf) => leaf.len(),
            NodeKind::Inner(inner) => inner.lens.iter().sum(),
        }
    }

    fn summary(&self) -> Summary<'_> {
        match &self.kind {
            NodeKind::Leaf(leaf) => (leaf.start(0), leaf.len(), leaf.newest()),
            NodeKind::Inner(inner) => {
                (inner.starts.get(0), self.fragment_count(), inner.newest.iter().copied().max().unwrap_or(0))
            }
        }
    }

    /// As [`RangeTree::newest_within`].
    fn newest_within(&self, from: &[u8], to: Option<&[u8]>) -> SeqNo {
        match &self.kind {
            NodeKind::Leaf(leaf) => leaf.newest_within(from, to),
            NodeKind::Inner(inner) => {
                let first = inner.starts.count_until(from, false).saturating_sub(1);
                let end = to.map_or(inner.children.len(), |to| inner.starts.count_until(to, true));
                // Those between the outer two are deleted by ranges that begin and end within.
                let between = inner.newest.get(first + 1..end.saturating_sub(1)).unwrap_or_default();
                let outer = [first, end.saturating_sub(1).max(first)];
                let outer = if outer[0] == outer[1] { &outer[..1] } else { &outer[..] };
                let outer = outer.iter().map(|&child| inner.children[child].newest_within(from, to));
                outer.chain(between.iter().copied()).max().unwrap_or(0)
            }
        }
    }

    /// Appends this node to `out`, with `new` in place of the fragments that begin at `from` or
    /// after and before `to`. It may become several nodes, or none.
    fn replaced<'a>(&'a self, from: &[u8], to: Option<&[u8]>, new: &[Borrowed<'_>], out: &mut Nodes<'a>) {
        match &self.kind {
            NodeKind::Leaf(leaf) => {
                let first = leaf.count_until(from, true);
                let rest = to.map_or(leaf.len(), |to| leaf.count_until(to, true)).max(first);
                let kept = (0..first).map(|i| leaf.get(i));
                let all = kept.chain(new.iter().copied()).chain((rest..leaf.len()).map(|i| leaf.get(i)));
                out.push_leaves(first + new.len() + leaf.len() - rest, all);
            }
            NodeKind::Inner(inner) => {
                // All fragments of the children between these two go.
                let first = inner.starts.count_until(from, false).saturating_sub(1);
                let last = to.map_or(inner.children.len(), |to| inner.starts.count_until(to, true)).max(first + 1) - 1;
                let list = Vec::with_capacity(inner.children.len() + 2);
                let mut children = Nodes { list, memory: out.memory };
                children.list.extend((0..first).map(|i| inner.child(i)));
                inner.children[first].replaced(from, to, new, &mut children);
                if last > first {
                    inner.children[last].replaced(from, to, &[], &mut children);
                }
                if last + 1 < inner.children.len() {
                    children.push(inner.child(last + 1));
                    children.list.extend((last + 2..inner.children.len()).map(|i| inner.child(i)));
                }
                parents(&children.list, out.memory).for_each(|node| out.push(Child::new(node)));
            }
        }
    }
}

/// As few nodes as possible over children of one height.
fn parents(children: &[Child<'_>], memory: &Arc<AtomicUsize>) -> impl Iterator<Item = Arc<RangeNode>> {
    let count = children.len().div_ceil(INNER_LEN);
    let bound = move |i: usize| children.len() * i / count;
    (0..count).map(move |i| RangeNode::new(NodeKind::Inner(InnerNode::of(&children[bound(i)..bound(i + 1)])), memory))
}

/// Nodes of one height that are about to get parents.
struct Nodes<'a> {
    list: Vec<Child<'a>>,
    memory: &'a Arc<AtomicUsize>,
}

impl<'a> Nodes<'a> {
    /// Appends `len` fragments in leaves of similar lengths.
    fn push_leaves<'b>(&mut self, len: usize, mut fragments: impl Iterator<Item = Borrowed<'b>>) {
        let leaves = len.div_ceil(LEAF_LEN);
        for i in 0..leaves {
            let count = len * (i + 1) / leaves - len * i / leaves;
            let mut leaf = RangeLayer::with_capacity(count);
            fragments.by_ref().take(count).for_each(|(start, end, seqno)| leaf.push(start, end, seqno));
            self.push(Child::new(RangeNode::new(NodeKind::Leaf(leaf), self.memory)));
        }
    }

    /// Appends a node, or joins it with the last one if both are small: what ranges cut out leaves
    /// no trail of small nodes.
    fn push(&mut self, child: Child<'a>) {
        let small = self.list.last().filter(|last| last.node.len() + child.node.len() <= child.node.most() / 2);
        let joined = small.and_then(|last| match (&last.node.kind, &child.node.kind) {
            (NodeKind::Leaf(a), NodeKind::Leaf(b)) => {
                let mut leaf = RangeLayer::with_capacity(a.len() + b.len());
                let all = (0..a.len()).map(|i| a.get(i)).chain((0..b.len()).map(|i| b.get(i)));
                all.for_each(|(start, end, seqno)| leaf.push(start, end, seqno));
                Some(NodeKind::Leaf(leaf))
            }
            (NodeKind::Inner(a), NodeKind::Inner(b)) => {
                let both = [a, b].into_iter().flat_map(|inner| (0..inner.children.len()).map(|i| inner.child(i)));
                Some(NodeKind::Inner(InnerNode::of(&both.collect::<Vec<_>>())))
            }
            // All nodes of a list have one height.
            _ => None,
        });
        match joined {
            Some(joined) => {
                self.list.pop();
                self.list.push(Child::new(RangeNode::new(joined, self.memory)));
            }
            None => self.list.push(child),
        }
    }
}

impl Child<'_> {
    fn new(node: Arc<RangeNode>) -> Self {
        Child { node, told: None }
    }
}

impl InnerNode {
    fn of(children: &[Child<'_>]) -> InnerNode {
        let (mut starts, len) = (KeyList::default(), children.len());
        let (mut lens, mut newest) = (Vec::with_capacity(len), Vec::with_capacity(len));
        for child in children {
            let (start, count, number) = child.told.unwrap_or_else(|| child.node.summary());
            starts.push(start);
            lens.push(count);
            newest.push(number);
        }
        InnerNode { starts, lens, newest, children: children.iter().map(|child| Arc::clone(&child.node)).collect() }
    }

    fn child(&self, i: usize) -> Child<'_> {
        Child { node: Arc::clone(&self.children[i]), told: Some((self.starts.get(i), self.lens[i], self.newest[i])) }
    }
}

impl Drop for RangeNode {
    fn drop(&mut self) {
        self.memory.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn height(node: &RangeNode) -> usize {
        match &node.kind {
            NodeKind::Leaf(leaf) => {
                assert!((1..=LEAF_LEN).contains(&leaf.len()));
                1
            }
            NodeKind::Inner(inner) => {
                assert!((1..=INNER_LEN).contains(&inner.children.len()));
                let heights: Vec<usize> = inner.children.iter().map(|child| height(child)).collect();
                assert!(heights.iter().all(|height| *height == heights[0]), "{heights:?}");
                for (i, child) in inner.children.iter().enumerate() {
                    assert_eq!(child.summary(), (inner.starts.get(i), inner.lens[i], inner.newest[i]));
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
        let memory = Arc::default();
        let mut tree = RangeTree::new(&memory);
        for i in 0..100_000u32 {
            tree.insert(&fragment(i, 300_000 - i, u64::from(i) + 1));
        }
        assert_eq!(tree.len(), 199_999);
        assert!(height(tree.root.as_ref().unwrap()) <= 8);
        // Cutting out nearly all of them leaves a small tree.
        let before = tree.clone();
        for i in 0..1000u32 {
            tree.insert(&fragment(50 + i, 299_950 - i, 200_000 + u64::from(i)));
        }
        assert_eq!(tree.len(), 2 * 50 + 2 * 1000 - 1);
        assert!(height(tree.root.as_ref().unwrap()) <= 6);
        assert_eq!(before.len(), 199_999, "an older root does not change");
        // Old nodes go with the roots that have them.
        let of_both = memory.load(Ordering::Relaxed);
        assert!(of_both > 40 * 199_999, "{of_both}");
        drop(before);
        let of_one = memory.load(Ordering::Relaxed);
        assert!((40 * tree.len()..of_both / 20).contains(&of_one), "{of_one} of {of_both}");
        drop(tree);
        assert_eq!(memory.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn ranges_in_random_places_agree_with_a_list() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut tree, mut list) = (RangeTree::new(&Arc::default()), vec![0; 2000]);
        for seqno in 1..4000u64 {
            let from = rng.u32(0..2000);
            let len = if rng.u8(0..50) == 0 { rng.u32(1..2000) } else { rng.u32(1..4) };
            let to = (from + len).min(2000);
            tree.insert(&fragment(from, to, seqno));
            list[from as usize..to as usize].fill(seqno);
            if seqno % 10 == 0 {
                let (a, b) = (rng.u32(0..2000), rng.u32(0..2000));
                let (low, high) = (a.min(b), a.max(b) + 1);
                let newest = |to: usize| list[low as usize..to].iter().copied().max().unwrap_or(0);
                let within = |to: Option<&[u8]>| tree.newest_within(&low.to_be_bytes(), to);
                assert_eq!(within(Some(&high.to_be_bytes())), newest(high as usize), "{low}..{high}");
                assert_eq!(within(None), newest(2000), "{low}..");
                assert_eq!(within(Some(&low.to_be_bytes())), 0, "no key");
            }
            if seqno % 97 == 0 {
                height(tree.root.as_ref().unwrap());
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
