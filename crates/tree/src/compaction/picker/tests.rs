//! Tables of cases: a tree, and the task picked for it.

use super::*;
use crate::format::span::KeySpan;

const MIB: u64 = 1 << 20;

/// A table "number smallest largest size-in-MiB [tombstones [older versions]]" of 100 entries.
fn table(line: &str) -> TableMeta {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number: u64 = words[0].parse().unwrap();
    let count = |at: usize| words.get(at).map_or(0, |word| word.parse().unwrap());
    TableMeta {
        number,
        size: words[3].parse::<u64>().unwrap() * MIB,
        checksum: 0,
        entries: 100,
        keys: 100 - count(5),
        tombstones: count(4),
        deadlines: Default::default(),
        references: Default::default(),
        smallest_seqno: number * 100,
        largest_seqno: number * 100 + 99,
        cleared: 0,
        ingested: None,
        range_end: None,
        kept: 0,
        smallest: words[1].as_bytes().into(),
        largest: words[2].as_bytes().into(),
    }
}

/// Calls `check` with a picker for the tree in `levels` ("level: number smallest largest size
/// ...", newest first in level 0).
fn with_picker<R>(
    levels: &[impl AsRef<str>],
    oldest_snapshot: SeqNo,
    running: &[Task],
    check: impl FnOnce(Picker<'_>) -> R,
) -> R {
    let tables: Vec<(usize, TableMeta)> = levels
        .iter()
        .map(|line| {
            let (level, rest) = line.as_ref().split_once(':').unwrap();
            (level.parse().unwrap(), table(rest))
        })
        .collect();
    let levels: [Vec<&TableMeta>; LEVELS] =
        std::array::from_fn(|level| tables.iter().filter(|(l, _)| *l == level).map(|(_, t)| t).collect());
    check(Picker {
        levels: &levels,
        running,
        shape: Shape::USUAL,
        base_size: 64 * MIB,
        fits_one_table: &|_| true,
        is_idle: false,
        oldest_snapshot,
        now: 0,
        moves_to_last: true,
        weights: &TombstoneWeights::new(),
        value_garbage: &ValueGarbage::default(),
        deleted: &DeletedBytes::new(),
        hidden: &HiddenBytes::new(),
        flushed: SeqNo::MAX,
        combines: true,
    })
}

/// The picked task as "start->output [move]: inputs".
fn picked(levels: &[impl AsRef<str>], running: &[Task]) -> String {
    with_picker(levels, SeqNo::MAX, running, |picker| picker.pick().map_or("nothing".into(), |(_, task)| words(&task)))
}

/// `count` runs of level 0, each of "smallest largest size", numbered downwards to 1, with the
/// tables `below`.
fn with_runs(count: u64, run: &str, below: &[&str]) -> Vec<String> {
    let runs = (1..=count).rev().map(|number| format!("0:{number} {run}"));
    runs.chain(below.iter().map(|table| (*table).to_owned())).collect()
}

/// As many runs as start a compaction.
const TWELVE: &str = "0/1 0/2 0/3 0/4 0/5 0/6 0/7 0/8 0/9 0/10 0/11 0/12";

fn words(task: &Task) -> String {
    let inputs: Vec<String> = task.inputs.iter().map(|(level, number)| format!("{level}/{number}")).collect();
    let how = if task.is_move { " move" } else { "" };
    format!("{}->{}{how}: {}", task.start_level, task.output_level, inputs.join(" "))
}

#[test]
fn a_small_store_compacts_level_0_into_the_last_level() {
    assert_eq!(picked(&with_runs(11, "a z 16", &[]), &[]), "nothing");
    let tree = with_runs(12, "a z 16", &["6:21 b c 100", "6:20 zz zzz 100"]);
    assert_eq!(picked(&tree, &[]), format!("0->6: {TWELVE} 6/21"));
}

#[test]
fn disjoint_runs_are_moved() {
    let run = |n: u8| format!("0:{n} {0}0 {0}9 16", char::from(b'a' + n));
    let mut tree: Vec<String> = (1..=12).rev().map(run).collect();
    tree.push("6:21 x z 100".into());
    assert_eq!(picked(&tree, &[]), format!("0->6 move: {TWELVE}"));
}

#[test]
fn a_large_last_level_gets_a_level_above_it() {
    let targets = |size: u64| with_picker(&[&format!("6:1 a z {size}")], 0, &[], |p| p.level_targets());
    assert_eq!([500, 512, 513].map(|size| targets(size).base_level), [6, 6, 5]);
    assert_eq!(targets(5_000).base_level, 5);
    assert_eq!(targets(5_000).sizes[5], 500 * MIB);
    assert_eq!(targets(500_000).base_level, 3);
    assert_eq!([10 << 20, 1 << 40].map(|size| targets(size).base_level), [1, 1], "10 TiB, and any more");
}

#[test]
fn a_level_that_is_too_large_compacts_the_table_with_the_least_overlap() {
    let tree = ["5:1 a c 400", "5:2 d f 400", "6:3 a b 3000", "6:4 c d 2000", "6:5 g z 1"];
    assert_eq!(picked(&tree, &[]), "5->6: 5/2 6/4");
}

#[test]
fn a_task_that_conflicts_with_a_running_one_waits() {
    let tree = with_runs(12, "a c 16", &[]);
    let running = Task {
        start_level: 5,
        output_level: 6,
        inputs: vec![(5, 77)],
        keys: KeySpan::closed(b"b", b"x"),
        bytes: 1,
        is_move: false,
        is_drop: false,
        reason: Default::default(),
        resumes: None,
        runs: (0, 0),
    };
    assert_eq!(picked(&tree, std::slice::from_ref(&running)), "nothing");
    let elsewhere = Task { keys: KeySpan::closed(b"d", b"x"), ..running };
    assert_eq!(picked(&tree, &[elsewhere]), format!("0->6: {TWELVE}"));
}

#[test]
fn a_table_is_rewritten_in_its_level_and_nothing_passes_it() {
    let mut tree = with_runs(12, "a c 16", &["5:27 a b 16 60", "6:28 a c 16"]);
    tree.insert(0, "0:13 m z 16".into());
    let pick = |number: u64, running: &[Task]| {
        with_picker(&tree, SeqNo::MAX, running, |picker| match picker.pick_table(number) {
            Requested::Task(task) => words(&task),
            other => format!("{other:?}"),
        })
    };
    let task = |number: u64| {
        with_picker(&tree, SeqNo::MAX, &[], |picker| match picker.pick_table(number) {
            Requested::Task(task) => task,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(pick(1, &[]), "0->0: 0/1");
    assert_eq!(pick(27, &[]), "5->5: 5/27");
    assert_eq!(pick(77, &[]), "Done", "it is gone");
    // The newer runs overlap the oldest one and may not pass it: they wait. The tables below do
    // not.
    assert_eq!(picked(&tree, &[task(1)]), "5->6: 5/27 6/28");
    assert_eq!(picked(&tree, &[task(27)]), format!("0->4: {TWELVE} 0/13"), "not beyond it");
    assert_eq!(picked(&tree, &[]), format!("0->6: {TWELVE} 0/13 5/27 6/28"));
    let compaction = with_picker(&tree, SeqNo::MAX, &[], |picker| picker.pick().unwrap().1);
    assert_eq!(pick(1, std::slice::from_ref(&compaction)), "Wait");
    assert_eq!(pick(28, &[compaction]), "Wait");
    assert_eq!(pick(28, &[task(27)]), "6->6: 6/28", "they are on different levels");
    assert_eq!(pick(4, &[task(4)]), "Wait");
    assert_eq!(pick(4, &[task(1)]), "0->0: 0/4", "each stays in its place");
}

#[test]
fn tombstones_move_down_and_vanish_in_the_last_level() {
    assert_eq!(picked(&["0:1 a c 16 60", "6:2 b d 16"], &[]), "0->6: 0/1 6/2");
    // 60 of the 100 entries beneath are dropped: 96 MiB.
    assert_eq!(picked(&["0:1 a c 16 60", "6:2 b d 160"], &[]), "0->6: 0/1 6/2");
    assert_eq!(picked(&["0:1 a c 16 20", "6:2 b d 160"], &[]), "nothing", "too much would be rewritten");
    // More than a quarter of what is read must be freed: 8 and 8.16 of 32 MiB.
    assert_eq!(picked(&["0:1 a c 16 50", "6:2 b d 16"], &[]), "nothing");
    assert_eq!(picked(&["0:1 a c 16 51", "6:2 b d 16"], &[]), "0->6: 0/1 6/2");
    assert_eq!(picked(&["0:1 a c 16 0 60", "6:2 b d 16"], &[]), "nothing", "older versions alone can wait");
    assert_eq!(picked(&["5:1 a c 16 60", "6:2 d e 3000"], &[]), "5->6 move: 5/1");
    assert_eq!(picked(&["5:1 a c 16 60", "5:3 d e 16", "6:2 a c 100"], &[]), "5->6: 5/1 5/3 6/2");
    assert_eq!(picked(&["5:1 a c 16 20", "6:2 b d 160"], &[]), "nothing", "also from a free level");
    assert_eq!(picked(&["6:1 a c 16 60"], &[]), "6->6: 6/1");
    with_picker(&["6:1 a c 16 60"], 150, &[], |picker| {
        assert_eq!(picker.pick(), None, "a snapshot still sees what the tombstones hide");
    });
}

#[test]
fn a_full_level_0_that_is_little_beside_the_base_level_becomes_a_run_of_a_free_level() {
    let with_below = |below: &[&str]| picked(&with_runs(12, "a c 8", below), &[]);
    assert_eq!(with_below(&["6:20 a c 96"]), format!("0->6: {TWELVE} 6/20"), "it is as much");
    assert_eq!(with_below(&["6:20 a c 97"]), format!("0->5: {TWELVE}"));
    assert_eq!(with_below(&["5:21 a c 100", "6:20 a c 197"]), format!("0->4: {TWELVE}"));
    assert_eq!(with_below(&["5:21 a c 100", "6:20 a c 196"]), format!("0->6: {TWELVE} 5/21 6/20"), "all together are");
    let others = ["1:25 d f 100", "5:21 d f 100", "6:20 a c 300"];
    assert_eq!(with_below(&others), format!("0->5: {TWELVE}"), "beside what it does not overlap");
    let full = ["1:25 a c 1", "3:23 a c 1", "6:20 a c 300"];
    assert_eq!(with_below(&full), format!("0->6: {TWELVE} 1/25 3/23 6/20"), "no level is free");
    let elsewhere = ["5:21 a c 100", "5:22 d f 100", "6:20 b c 100", "6:19 d f 300"];
    assert_eq!(with_below(&elsewhere), format!("0->6: {TWELVE} 5/21 6/20"), "only what overlaps counts");
    let apart = (1..=12).rev().map(|n| format!("0:{n} b{n:02}a b{n:02}z 8"));
    let apart: Vec<String> = apart.chain(["6:20 a c 500".to_owned()]).collect();
    assert_eq!(picked(&apart, &[]), format!("0->5 move: {TWELVE}"));
    // The levels below are being compacted meanwhile.
    let tree = with_runs(12, "a c 8", &["5:21 a c 500", "6:20 a c 4500"]);
    let running = with_picker(&tree[12..], SeqNo::MAX, &[], |picker| picker.pick().unwrap().1);
    assert_eq!(words(&running), "5->6: 5/21 6/20");
    assert_eq!(picked(&tree, std::slice::from_ref(&running)), format!("0->4: {TWELVE}"));
    let emptied = with_runs(12, "a c 8", &["6:20 a c 4500"]);
    assert_eq!(picked(&emptied, &[running]), format!("0->4: {TWELVE}"), "where the running one reads no more");
}

#[test]
fn runs_of_free_levels_stay_until_the_store_is_idle() {
    let pick = |tree: &[&str], is_idle| {
        with_picker(tree, SeqNo::MAX, &[], |picker| {
            let picker = Picker { is_idle, ..picker };
            assert_eq!(picker.pick().is_some(), picker.debt() != Debt::default());
            picker.pick().map_or("nothing".into(), |(_, task)| words(&task))
        })
    };
    let tree = ["4:22 a c 20", "5:21 a c 20", "6:20 a c 280"];
    assert_eq!(pick(&tree, false), "nothing");
    assert_eq!(pick(&tree, true), "4->6: 4/22 5/21 6/20");
    let large = ["4:22 a c 20", "5:21 a c 20", "6:20 a c 281"];
    assert_eq!(
        (pick(&large, false), pick(&large, true)),
        ("nothing".into(), "4->5: 4/22 5/21".into()),
        "not of what is below"
    );
    assert_eq!(pick(&["4:22 a c 5", "5:21 a c 20", "6:20 a c 300"], true), "4->5: 4/22 5/21");
    assert_eq!(pick(&["4:22 a c 5", "5:21 a c 21", "6:20 a c 300"], true), "nothing", "one is too large");
    assert_eq!(pick(&["3:23 a c 3", "4:22 a c 3", "5:21 a c 25", "6:20 a c 300"], true), "3->4: 3/23 4/22", "not that");
    assert_eq!(pick(&["0:31 a c 3", "0:30 a c 3", "4:21 a c 25", "6:20 a c 300"], true), "0->3: 0/30 0/31");
    assert_eq!(pick(&["0:31 a c 3", "0:30 d f 3", "4:21 a f 25", "6:20 a f 300"], true), "0->3 move: 0/30 0/31");
    assert_eq!(
        pick(&["0:31 a c 3", "0:30 a c 3", "1:21 a c 25", "6:20 a c 300"], true),
        "0->0: 0/30 0/31",
        "none is free"
    );
    assert_eq!(pick(&["0:31 a c 3", "0:30 d f 3", "1:21 a f 25", "6:20 a f 300"], true), "0->0: 0/30 0/31", "no move");
    assert_eq!(pick(&["0:31 a c 3", "0:30 a c 3", "4:21 a c 24", "6:20 a c 300"], true), "0->4: 0/30 0/31 4/21");
    assert_eq!(pick(&["0:30 a c 3", "5:21 a c 3", "6:20 a c 40"], true), "0->6: 0/30 5/21 6/20");
    // A worthwhile task waits for a running one, and so does a less worthwhile one.
    let tree = ["4:22 a c 20", "5:21 a c 20", "6:20 a c 280"];
    let running = with_picker(&tree, SeqNo::MAX, &[], |picker| match picker.pick_table(20) {
        Requested::Task(task) => task,
        other => panic!("{other:?}"),
    });
    with_picker(&tree, SeqNo::MAX, std::slice::from_ref(&running), |picker| {
        assert_eq!(Picker { is_idle: true, ..picker }.pick(), None);
    });
    with_picker(&large, SeqNo::MAX, &[running], |picker| {
        let (_, task) = Picker { is_idle: true, ..picker }.pick().unwrap();
        assert_eq!(words(&task), "4->5: 4/22 5/21", "it is not in the way");
    });
    assert_eq!(pick(&["5:21 d f 20", "6:20 a c 280"], true), "5->6 move: 5/21");
    assert_eq!(pick(&["0:30 x z 1", "5:21 a c 20", "6:20 a c 100"], true), "5->6: 5/21 6/20", "level 0 has too little");
}

#[test]
fn a_range_takes_everything_that_overlaps_it_and_what_that_overlaps() {
    let tree = ["0:4 a c 1", "0:3 c f 1", "5:2 e h 1", "6:1 a b 1", "6:9 x z 1"];
    let pick = |from: &[u8], to: &[u8]| {
        with_picker(&tree, SeqNo::MAX, &[], |picker| {
            match picker.pick_range(&KeySpan { lower: Some(from.to_vec()), upper: Some(to.to_vec()) }, false) {
                Requested::Task(task) => words(&task),
                other => format!("{other:?}"),
            }
        })
    };
    assert_eq!(pick(b"a", b"b"), "0->6: 0/3 0/4 5/2 6/1");
    assert_eq!(pick(b"g", b"h"), "5->6: 5/2", "newer runs stay above");
    assert_eq!(pick(b"x", b"y"), "Done");
    assert_eq!(pick(b"i", b"k"), "Done");
}

#[test]
fn runs_that_are_small_beside_the_base_level_are_merged_with_others_of_their_size() {
    assert_eq!(picked(&with_runs(12, "a c 1", &["6:20 a c 300"]), &[]), format!("0->0: {TWELVE}"));
    // From a quarter of a full level 0 on, they become a run of a free level.
    let outputs = [15, 16].map(|count| picked(&with_runs(count, "a c 1", &["6:20 a c 300"]), &[])[..4].to_owned());
    assert_eq!(outputs, ["0->0", "0->5"]);
    // No level is free.
    let mut tree = with_runs(11, "a c 1", &["0:0 a c 9", "1:21 a c 1", "6:20 a c 500"]);
    assert_eq!(
        picked(&tree, &[]),
        "0->0: 0/1 0/2 0/3 0/4 0/5 0/6 0/7 0/8 0/9 0/10 0/11",
        "the large run costs more than it saves"
    );
    tree.insert(0, "0:12 a c 9".into());
    tree.insert(0, "0:13 a c 9".into());
    assert_eq!(picked(&tree, &[]), "0->0: 0/1 0/2 0/3 0/4 0/5 0/6 0/7 0/8 0/9 0/10 0/11");
    let running = with_picker(&tree, SeqNo::MAX, &[], |picker| picker.pick_runs(2).unwrap());
    assert_eq!(picked(&tree, &[running]), "nothing", "what is left are three runs");
    assert_eq!(
        picked(&with_runs(12, "a c 8", &["1:21 a c 1", "6:20 a c 300"]), &[]),
        format!("0->6: {TWELVE} 1/21 6/20"),
        "it is worth it"
    );
}

#[test]
fn the_last_runs_are_merged_when_the_store_is_idle() {
    let idle = |tree: &[String]| {
        with_picker(tree, SeqNo::MAX, &[], |picker| {
            let picker = Picker { is_idle: true, ..picker };
            assert_eq!(picker.pick().is_some(), picker.debt() != Debt::default());
            let task = picker.pick().map(|(_, task)| task);
            if let Some(running) = task.clone() {
                let picker = Picker { running: &[running], ..picker };
                assert!(picker.pick().is_none() && picker.debt() != Debt::default(), "it is owed until it is done");
            }
            task.map_or("nothing".into(), |task| words(&task))
        })
    };
    // A full level 0 has 64 MiB here, and therefore a memtable has more than 5.
    let tree = with_runs(2, "a c 8", &["6:20 a c 100"]);
    assert_eq!(idle(&tree), "0->6: 0/1 0/2 6/20");
    assert_eq!(picked(&tree, &[]), "nothing", "more may come");
    assert_eq!(idle(&with_runs(2, "a c 8", &["6:20 a c 113"])), "0->5: 0/1 0/2", "too much would be rewritten below");
    assert_eq!(idle(&with_runs(2, "a c 2", &["6:20 a c 113"])), "nothing", "too little above");
    assert_eq!(idle(&with_runs(1, "a c 8", &["6:20 a c 8"])), "nothing", "one run is few");
    assert_eq!(idle(&with_runs(2, "a c 2", &["6:20 a c 8"])), "nothing", "flushed by hand, time and again");
    assert_eq!(idle(&["0:2 c d 8".into(), "0:1 a b 8".into(), "6:20 e f 500".into()]), "0->6 move: 0/1 0/2");
}

#[test]
fn level_0_is_relieved_while_a_task_takes_its_oldest_runs_issue_13() {
    let tree = |count: u64| with_runs(count, "a c 5", &["6:0 a c 40"]);
    let task = with_picker(&tree(12), SeqNo::MAX, &[], |picker| picker.pick().unwrap().1);
    assert_eq!(words(&task), format!("0->6: {TWELVE} 6/0"));
    let running = [task];
    assert_eq!(picked(&tree(23), &running), "nothing", "they are few, and move down together when it has ended");
    let newer: Vec<String> = (13..=24).map(|number| format!("0/{number}")).collect();
    assert_eq!(picked(&tree(24), &running), format!("0->0: {}", newer.join(" ")));
    let relief = |tree: &[String], running: &[Task]| {
        with_picker(tree, SeqNo::MAX, running, |picker| {
            picker.pick_relief().map_or("nothing".into(), |task| words(&task))
        })
    };
    assert_eq!(relief(&tree(23), &running), "nothing");
    assert_eq!(relief(&tree(24), &running), format!("0->0: {}", newer.join(" ")));
    // Memory for four runs is used for four.
    let inputs_within = |most: usize| {
        with_picker(&tree(24), SeqNo::MAX, &running, |picker| {
            let task = Picker { fits_one_table: &|runs| runs.len() <= most, ..picker }.pick_relief();
            task.map(|task| task.inputs.len())
        })
    };
    assert_eq!([1, 2, 4, 6].map(inputs_within), [None, Some(2), Some(4), Some(6)]);
    // Without a running task, only the limit on compactions is in the way: they become a run of a
    // free level.
    let all: Vec<String> = (1..=24).map(|number| format!("0/{number}")).collect();
    assert_eq!(relief(&tree(24), &[]), format!("0->5: {}", all.join(" ")));
    // Merging two newer runs is not worth it.
    let task = with_picker(&tree(22), SeqNo::MAX, &[], |picker| picker.pick().unwrap().1);
    assert_eq!(relief(&tree(24), &[task]), "nothing");
    // Nor is merging six large ones, unless there are many.
    let task = with_picker(&tree(18), SeqNo::MAX, &[], |picker| picker.pick().unwrap().1);
    let with_large = |more: u64| {
        let large = (19..=24 + more).rev().map(|number| format!("0:{number} a c 30"));
        relief(&large.chain(tree(18)).collect::<Vec<_>>(), std::slice::from_ref(&task))
    };
    assert_eq!((with_large(7).as_str(), with_large(8).starts_with("0->0")), ("nothing", true));
    // Two memtables, here 10.67 MiB, are worth one run less: 48 MiB for five runs less, but not 54.
    let with_six = |size: u64| {
        let six = (19..=24).rev().map(|number| format!("0:{number} a c {size}"));
        relief(&six.chain(tree(18)).collect::<Vec<_>>(), std::slice::from_ref(&task))
    };
    assert_eq!([8, 9].map(with_six), ["0->0: 0/19 0/20 0/21 0/22 0/23 0/24", "nothing"]);
}

#[test]
fn older_runs_go_down_while_newer_ones_are_merged_issue_13() {
    let tree = with_runs(24, "a c 16", &["6:0 a c 100"]);
    let merge = with_picker(&tree, SeqNo::MAX, &[], |picker| {
        let newest: Vec<(usize, &TableMeta)> = picker.levels[0][..12].iter().map(|&run| (0, run)).collect();
        build_task(0, 0, &newest, false).unwrap()
    });
    assert_eq!(picked(&tree, std::slice::from_ref(&merge)), format!("0->6: {TWELVE} 6/0"));
    // Neither do runs pass one that is rewritten in its place.
    let rewrite = with_picker(&tree, SeqNo::MAX, &[], |picker| match picker.pick_table(13) {
        Requested::Task(task) => task,
        other => panic!("{other:?}"),
    });
    assert_eq!(picked(&tree, &[rewrite]), format!("0->6: {TWELVE} 6/0"));
    // The others wait if the move does not pay off.
    let tree = with_runs(23, "a c 1", &["6:0 a c 300"]);
    let merge = with_picker(&tree, SeqNo::MAX, &[], |picker| {
        let newest: Vec<(usize, &TableMeta)> = picker.levels[0][..11].iter().map(|&run| (0, run)).collect();
        build_task(0, 0, &newest, false).unwrap()
    });
    assert_eq!(picked(&tree, &[merge]), "nothing");
    // A run between two others passes neither.
    let tree = with_runs(24, "a c 16", &["6:0 a c 100"]);
    let merge = with_picker(&tree, SeqNo::MAX, &[], |picker| {
        let newest: Vec<(usize, &TableMeta)> = picker.levels[0][..12].iter().map(|&run| (0, run)).collect();
        build_task(0, 0, &newest, false).unwrap()
    });
    let between =
        with_picker(&tree, SeqNo::MAX, &[], |picker| build_task(0, 5, &[(0, picker.levels[0][12])], false).unwrap());
    assert!(between.conflicts(&Task { output_level: 4, ..between.clone() }) && !between.conflicts(&merge));
}

#[test]
fn garbage_counts_as_debt_until_it_is_dropped_issue_13() {
    let tree = ["0:1 a c 16 60", "6:2 b d 160"];
    let debt = |running: &[Task], oldest_snapshot| with_picker(&tree, oldest_snapshot, running, |picker| picker.debt());
    let task = with_picker(&tree, SeqNo::MAX, &[], |picker| picker.pick().unwrap().1);
    let owed = Debt { data: 16 * MIB, garbage: 96 * MIB };
    assert_eq!((debt(&[], SeqNo::MAX), debt(&[task], SeqNo::MAX)), (owed, owed));
    assert_eq!(debt(&[], 150), Debt::default(), "a snapshot sees what was deleted");
    // In the last level, a tenth is enough when idle.
    for (tombstones, when_idle, when_busy) in [(10, 0, 0), (11, 1, 0), (26, 1, 1)] {
        let table = [format!("6:1 a c 16 {tombstones}")];
        let is_picked = |is_idle| {
            with_picker(&table, SeqNo::MAX, &[], |picker| u8::from(Picker { is_idle, ..picker }.pick().is_some()))
        };
        assert_eq!((is_picked(true), is_picked(false)), (when_idle, when_busy), "{tombstones}");
    }
}

#[test]
fn garbage_is_not_worth_any_cost_and_is_kept_for_a_snapshot() {
    // One table of level 5, with 60 tombstones in 100 entries, overlaps all of level 6.
    assert_eq!(picked(&["5:1 a z 16 60", "6:2 a z 3000"], &[]), "5->6: 5/1 6/2", "it frees more than half");
    let small = |i: u64| format!("6:{i} {i} {i}9 40");
    let tree: Vec<String> = ["5:1 1 8 16 30".into()].into_iter().chain((2..8).map(small)).collect();
    let tree: Vec<&str> = tree.iter().map(String::as_str).chain(["6:9 9 99 3000"]).collect();
    assert_eq!(picked(&tree, &[]), "nothing", "240 MiB would be read for 16, and 12 freed");
    with_picker(&["5:1 a z 16 60", "6:2 a z 16", "6:3 zz zzz 3000"], 150, &[], |picker| {
        assert_eq!(picker.pick(), None, "a snapshot needs all of it");
    });
}

#[test]
fn runs_are_merged_beside_a_task_that_meets_the_cheapest_of_them() {
    let run = |number: u64| match number {
        2 | 8 => format!("0:{number} m n 1"),
        3..8 => format!("0:{number} a z 1"),
        _ => format!("0:{number} a z 4"),
    };
    let tree: Vec<String> = (1..=20).rev().map(run).collect();
    with_picker(&tree, SeqNo::MAX, &[], |picker| {
        let taken: Vec<(usize, &TableMeta)> = [12, 18].map(|at| (0, picker.levels[0][at])).to_vec();
        let running = [build_task(0, 6, &taken, false).unwrap()];
        assert_eq!(words(&running[0]), "0->6: 0/2 0/8");
        let picked = Picker { running: &running, ..picker }.pick_runs(2).unwrap();
        assert!(picked.inputs.len() == 12 && picked.inputs[0] == (0, 9), "{}", words(&picked));
    });
}

/// An ingested run may come to level 0 before the flush of a memtable with older writes. Merged
/// with older runs it would take those above that memtable's run.
#[test]
fn no_runs_are_merged_around_one_that_is_still_to_be_flushed_issue_29() {
    let tree: Vec<String> = (1..=20).rev().map(|number| format!("0:{number} a z 4")).collect();
    with_picker(&tree, SeqNo::MAX, &[], |picker| {
        assert_eq!(picker.pick_runs(2).unwrap().inputs.len(), 20);
        let picked = Picker { flushed: 1899, ..picker }.pick_runs(2).unwrap();
        assert_eq!((picked.inputs.len(), picked.runs), (18, (199, 1899)), "run 18 is the last that is flushed");
    });
    with_picker(&tree, SeqNo::MAX, &[], |picker| {
        // Run 20 has writes from before and after run 19: it may lose the later ones, and its
        // place.
        let straddling = TableMeta { smallest_seqno: 1950, ..picker.levels[0][0].clone() };
        let mut levels = picker.levels.clone();
        levels[0][0] = &straddling;
        let busy = [build_task(0, 0, &[(0, levels[0][0])], false).unwrap()];
        let picked = Picker { levels: &levels, running: &busy, ..picker }.pick_runs(2).unwrap();
        assert_eq!((picked.inputs.len(), picked.runs), (18, (199, 1899)));
    });
}

#[test]
fn of_all_windows_of_runs_the_cheapest_is_merged() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut found = 0;
    for _ in 0..500 {
        let count = rng.u64(2..14);
        let tree: Vec<String> = (1..=count).rev().map(|n| format!("0:{n} a z {}", rng.u64(1..40))).collect();
        with_picker(&tree, SeqNo::MAX, &[], |picker| {
            let runs = &picker.levels[0];
            let busy = [build_task(0, 6, &[(0, runs[rng.usize(0..runs.len())])], false).unwrap()];
            let (flushed, fewest) = (100 * rng.u64(count / 2..=count + 1), rng.usize(2..5));
            let picker = Picker { running: &busy[..rng.usize(0..2)], flushed, ..picker };
            let may_merge = |run: &&TableMeta| !picker.is_busy(0, run) && run.largest_seqno <= flushed;
            let starts = 0..runs.len();
            let windows = starts.flat_map(|start| (start + fewest..=runs.len()).map(move |end| start..end));
            let tasks = windows.filter(|window| runs[window.clone()].iter().all(may_merge)).filter_map(|window| {
                let inputs: Vec<(usize, &TableMeta)> = runs[window].iter().map(|&run| (0, run)).collect();
                picker.unless_conflicting(build_task(0, 0, &inputs, false)?)
            });
            let cheapest = tasks.min_by_key(|task| task.bytes / (task.inputs.len() as u64 - 1).pow(2));
            found += usize::from(cheapest.is_some());
            assert_eq!(picker.pick_runs(fewest), cheapest, "{tree:?}, {flushed}, {fewest}");
        });
    }
    assert!(found > 200, "{found}");
}

thread_local! {
    /// Comparisons of a table with a range.
    pub(super) static COMPARISONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// Estimates of what a table's tombstones delete.
    pub(super) static ESTIMATES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[test]
fn a_large_tree_with_garbage_everywhere_costs_few_comparisons() {
    let tables = |count: u64, first: u64, tombstones: u64| -> Vec<TableMeta> {
        let key = |i: u64| format!("{:09}", i * 16_000_000 / count).into_bytes().into_boxed_slice();
        let table = |i: u64| TableMeta { number: first + i, smallest: key(i), largest: key(i + 1), ..table("1 a b 1") };
        (0..count)
            .map(table)
            .map(|mut table| {
                table.largest = [&table.largest[..8], &b"!"[..]].concat().into();
                TableMeta { size: MIB / 2 - MIB / 16, tombstones, ..table }
            })
            .collect()
    };
    let (above, below) = (tables(1600, 1, 5), tables(16_000, 10_000, 0));
    let mut levels: [Vec<&TableMeta>; LEVELS] = Default::default();
    (levels[5], levels[6]) = (above.iter().collect(), below.iter().collect());
    let picker = Picker {
        levels: &levels,
        running: &[],
        shape: Shape::USUAL,
        base_size: 800 * MIB,
        fits_one_table: &|_| true,
        is_idle: false,
        oldest_snapshot: SeqNo::MAX,
        now: 0,
        moves_to_last: true,
        weights: &TombstoneWeights::new(),
        value_garbage: &ValueGarbage::default(),
        deleted: &DeletedBytes::new(),
        hidden: &HiddenBytes::new(),
        flushed: SeqNo::MAX,
        combines: true,
    };
    COMPARISONS.set(0);
    ESTIMATES.set(0);
    assert_eq!((picker.level_targets().base_level, picker.pick()), (5, None));
    picker.debt();
    println!("{} comparisons", COMPARISONS.get());
    assert_eq!(ESTIMATES.get(), 1600, "each table is weighed once");
    assert!(COMPARISONS.get() < 1600 * 250, "{}", COMPARISONS.get());
}

#[test]
fn debt_is_a_full_level_0_and_what_exceeds_the_targets_of_levels() {
    let debt = |tree: &[String]| with_picker(tree, SeqNo::MAX, &[], |picker| picker.debt());
    assert_eq!(debt(&with_runs(11, "a c 8", &["4:30 a c 20", "6:20 a c 280"])), Debt::default());
    let full = with_runs(12, "a c 8", &["4:30 a c 20", "6:20 a c 280"]);
    assert_eq!(debt(&full), Debt { data: 96 * MIB, garbage: 0 });
    // The target of level 5 is 100 MiB. A tombstone weighs 10 of level 6.
    for (table, data, garbage) in [("130", 30, 0), ("100", 0, 0), ("130 10", 30, 100), ("50 10", 0, 50), ("50 5", 0, 0)]
    {
        let tree = [format!("5:3 a c {table}"), "6:1 a c 1000".into()];
        assert_eq!(debt(&tree), Debt { data: data * MIB, garbage: garbage * MIB }, "{table}");
    }
    let tree = ["5:3 a c 50 10", "6:1 a c 1000"];
    let garbage = |oldest_snapshot| with_picker(&tree, oldest_snapshot, &[], |picker| picker.debt().garbage);
    assert_eq!([398, 399].map(garbage), [0, 50 * MIB], "a snapshot sees what 399 deletes, or all of it");
}

#[test]
fn a_table_is_moved_to_the_last_level_only_where_that_is_allowed() {
    let move_of = |tree: &[&str], moves_to_last| {
        with_picker(tree, SeqNo::MAX, &[], |picker| {
            let task = Picker { moves_to_last, ..picker }.pick().unwrap().1;
            (task.output_level, task.is_move)
        })
    };
    let to_last = ["5:3 a c 130", "6:1 x z 1000"];
    assert_eq!([true, false].map(|allowed| move_of(&to_last, allowed)), [(6, true), (6, false)]);
    let above = ["4:3 a c 130", "5:2 x z 500", "6:1 x z 10240"];
    assert_eq!([true, false].map(|allowed| move_of(&above, allowed)), [(5, true), (5, true)]);
    // Level 0, into an empty tree.
    let runs: Vec<String> = ('a'..='l').rev().map(|key| format!("0:{} {key} {key} 8", key as u32)).collect();
    let runs: Vec<&str> = runs.iter().map(String::as_str).collect();
    assert_eq!([true, false].map(|allowed| move_of(&runs, allowed)), [(6, true), (6, false)]);
    // Level 0, into level 5.
    let runs = [&runs[..], &["6:1 x z 1000"]].concat();
    assert_eq!([true, false].map(|allowed| move_of(&runs, allowed)), [(5, true), (5, true)]);
}

#[test]
fn tables_that_share_a_key_are_not_disjoint() {
    let are_disjoint = |tables: &[&str]| {
        let tables: Vec<TableMeta> = tables.iter().map(|line| table(line)).collect();
        disjoint(&tables.iter().map(|table| (0, table)).collect::<Vec<_>>())
    };
    assert!(are_disjoint(&["2 c d 1", "1 a b 1", "3 e e 1"]));
    assert!(!are_disjoint(&["2 b d 1", "1 a b 1"]));
    assert!(!are_disjoint(&["1 a z 1", "2 c d 1"]));
}

#[test]
fn a_requested_range_excludes_its_end_and_is_done_without_reclaimable_garbage() {
    let asked = |tree: &[&str], oldest_snapshot, to: Option<&str>| {
        with_picker(tree, oldest_snapshot, &[], |picker| {
            match picker.pick_range(&KeySpan { lower: None, upper: to.map(|to| to.as_bytes().to_vec()) }, false) {
                Requested::Task(task) => words(&task),
                Requested::Done => "done".into(),
                Requested::Wait => "wait".into(),
            }
        })
    };
    let two = ["0:2 c d 8", "0:1 a b 8"];
    assert_eq!(asked(&two, SeqNo::MAX, Some("c")), "0->6: 0/1");
    assert_eq!(asked(&two, SeqNo::MAX, Some("ca")), "0->6: 0/1 0/2");
    let garbage = ["6:1 a c 16 10"];
    assert_eq!(asked(&garbage, SeqNo::MAX, None), "6->6: 6/1");
    assert_eq!(asked(&garbage, 199, None), "6->6: 6/1", "no entry is newer than the snapshot");
    assert_eq!(asked(&garbage, 198, None), "done");
}

#[test]
fn merging_more_runs_may_be_cheaper_for_each_run_removed() {
    let runs = |sizes: [u64; 3]| {
        let tree: Vec<String> = (1..=3).rev().zip(sizes).map(|(run, size)| format!("0:{run} a c {size}")).collect();
        with_picker(&tree, SeqNo::MAX, &[], |picker| words(&picker.pick_runs(2).unwrap()))
    };
    // Two runs cost 2 MiB for one less; three cost 7 or 9, for two less: a quarter counts.
    assert_eq!([runs([1, 1, 5]), runs([1, 1, 7])], ["0->0: 0/1 0/2 0/3", "0->0: 0/2 0/3"]);
}

#[test]
fn what_a_merge_frees_below_its_output_counts_once() {
    let freed = |tree: &[&str]| {
        with_picker(tree, SeqNo::MAX, &[], |picker| {
            let down = picker.all_above(&picker.level_targets(), 0).unwrap();
            (down.freed_now / MIB, down.freed / MIB)
        })
    };
    let runs = ["0:3 a c 1 100", "0:2 a c 1 100"];
    assert_eq!(freed(&[runs[0], runs[1], "6:1 a c 100"]), (100, 100), "no more than there is");
    assert_eq!(freed(&[runs[0], "6:1 a c 1000"]), (0, 1000), "level 5 is between");
}

#[test]
fn an_idle_store_merges_what_little_it_has_if_a_sixth_of_it_is_garbage() {
    let idle = |tree: &[&str], base_size: u64| {
        with_picker(tree, SeqNo::MAX, &[], |picker| {
            let task = Picker { is_idle: true, base_size, ..picker }.pick();
            task.map_or("nothing".into(), |(_, task)| words(&task))
        })
    };
    let merged = "0->6: 0/1 6/2";
    // A run alone stays unless a tenth of what is read is freed: here, 20 and 21 of 200 MiB.
    assert_eq!(idle(&["0:1 a c 100 20", "6:2 a c 100"], 64 * MIB), "nothing");
    assert_eq!(idle(&["0:1 a c 100 21", "6:2 a c 100"], 64 * MIB), merged);
    // Less than a memtable is merged if more than a sixth is freed: 0.5 and 0.52 of 3 MiB.
    assert_eq!(idle(&["0:1 a c 1 25", "6:2 a c 2"], 64 * MIB), "nothing");
    assert_eq!(idle(&["0:1 a c 1 26", "6:2 a c 2"], 64 * MIB), merged);
    // With memtables of 341 MiB, 3.6 MiB are next to nothing.
    assert_eq!(idle(&["0:1 a c 1 90", "6:2 a c 4"], 64 * MIB), merged);
    assert_eq!(idle(&["0:1 a c 1 90", "6:2 a c 4"], 64 * 64 * MIB), "nothing");
}

#[test]
fn what_ranges_have_deleted_is_rewritten_in_every_level_and_is_debt() {
    let pick = |tree: &[&str], deleted: &[(u64, u64)], is_idle| {
        with_picker(tree, SeqNo::MAX, &[], |picker| {
            let deleted = deleted.iter().map(|(number, mib)| (*number, mib * MIB)).collect();
            let picker = Picker { is_idle, deleted: &deleted, ..picker };
            let task = picker.pick().map_or("nothing".into(), |(_, task)| words(&task));
            assert_eq!(picker.debt().garbage > 0, task != "nothing");
            task
        })
    };
    // A level below level 0: a quarter, or a tenth when idle.
    for (deleted, idle, busy) in
        [(10, "nothing", "nothing"), (11, "6->6: 6/1", "nothing"), (26, "6->6: 6/1", "6->6: 6/1")]
    {
        assert_eq!(
            [true, false].map(|is_idle| pick(&["6:1 a c 100"], &[(1, deleted)], is_idle)),
            [idle, busy],
            "{deleted}"
        );
    }
    // A run of level 0 is merged if that pays off, and rewritten otherwise.
    assert_eq!(pick(&["0:2 a c 50", "6:1 a c 100"], &[(2, 40)], true), "0->6: 0/2 6/1");
    for (deleted, idle, busy) in
        [(2, "nothing", "nothing"), (3, "0->0: 0/2", "nothing"), (11, "0->0: 0/2", "0->0: 0/2")]
    {
        let tree = ["0:2 a c 20", "6:1 a c 500"];
        assert_eq!([true, false].map(|is_idle| pick(&tree, &[(2, deleted)], is_idle)), [idle, busy], "{deleted}");
    }
    // Or it moves to an empty base level, and is rewritten there.
    assert_eq!(pick(&["0:2 a c 50", "6:1 a c 10000"], &[(2, 40)], true), "0->4 move: 0/2");
    assert_eq!(pick(&["4:2 a c 50", "6:1 a c 10000"], &[(2, 40)], true), "4->4: 4/2");
}

#[test]
fn moving_garbage_down_may_cost_more_when_idle_or_when_the_last_level_drops_it() {
    let pick = |tree: &[String], is_idle| {
        with_picker(tree, SeqNo::MAX, &[], |picker| {
            Picker { is_idle, ..picker }.pick().map_or("nothing".into(), |(_, task)| words(&task))
        })
    };
    let tree = |tables: &[&str]| tables.iter().map(|&table| table.to_owned()).collect::<Vec<_>>();
    // 50 MiB are moved and freed. In the last level, 70 of the 110 read are written; in level 5,
    // all.
    assert_eq!(pick(&tree(&["5:1 a c 10 40", "6:2 a c 100", "6:3 x z 1000"]), false), "5->6: 5/1 6/2");
    assert_eq!(pick(&tree(&["4:1 a c 10 40", "5:2 a c 100", "6:3 x z 10240"]), false), "nothing");
    // With few tombstones, a tenth of what is read must be freed when idle: 11 and 12 of 110 MiB.
    for (tombstones, idle, busy) in
        [(11, "nothing", "nothing"), (12, "5->6: 5/1 6/2", "nothing"), (25, "5->6: 5/1 6/2", "nothing")]
    {
        let tree = tree(&[&format!("5:1 a c 10 {tombstones}"), "6:2 a c 100", "6:3 x z 1000"]);
        assert_eq!((pick(&tree, true).as_str(), pick(&tree, false).as_str()), (idle, busy), "{tombstones}");
    }
    // A table of 1 MiB over many as large: a mostly dead one may cost 16 times what it moves and
    // frees, others 8 times.
    for (tombstones, below, is_picked) in
        [(60, 20, true), (60, 26, false), (50, 11, true), (50, 13, false), (30, 9, true), (30, 12, false)]
    {
        let last = (0..below).map(|i| format!("6:{} b{i:02} b{i:02}x 1", 10 + i));
        let tree = [format!("5:1 a c 1 {tombstones}")].into_iter().chain(last).chain(["6:99 x z 1000".into()]);
        let tree: Vec<String> = tree.collect();
        assert_eq!(pick(&tree, true) != "nothing", is_picked, "{tombstones} over {below}");
    }
}
