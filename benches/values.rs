//! What long values cost, in the tables and apart from them: bytes written for each byte put,
//! space, and reads.
//!
//! ```text
//! cargo bench --bench values
//! ```
//!
//! Each store is filled in random order, all of it is overwritten twice in random order, and as
//! many values are put again that are drawn with repetition. The store rests after each round.
//! `TAMIS_VALUES` sets the number of values (default 40,000), `TAMIS_VALUE` the length of each
//! (default 16,384). Bytes written are those of tables and value files; the log is not counted. No
//! figure makes this program fail.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use tamis::{Compression, Db, KeyspaceOptions, Options};
use tamis_figures::{Table, command};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn files_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let stored =
        files.filter(|file| [".sst", ".val"].iter().any(|end| file.file_name().to_str().unwrap().ends_with(end)));
    stored.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum()
}

fn written(db: &Db) -> u64 {
    let stats = db.stats();
    stats.flushed_bytes + stats.compacted_bytes_out
}

/// A round of puts: its seconds, and the bytes written for each byte put until the store rests.
fn put_all(db: &Db, rng: &mut fastrand::Rng, order: Vec<u64>, len: usize) -> (f64, f64) {
    let (count, before) = (order.len(), written(db));
    let mut value = vec![0; len];
    let begin = Instant::now();
    for i in order {
        rng.fill(&mut value);
        db.put(i.to_be_bytes(), &value).unwrap();
    }
    let seconds = begin.elapsed().as_secs_f64();
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    (seconds, (written(db) - before) as f64 / (count * len) as f64)
}

/// The figures of a store, with their names.
fn measure(separate: Option<u32>, values: u64, len: usize) -> Vec<(&'static str, String)> {
    let dir = tempfile::tempdir().unwrap();
    let keyspace = KeyspaceOptions::new().separate_values(separate).compression(Compression::None);
    let db = Options::new().default_keyspace(keyspace).open(dir.path()).unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let bytes = (values * len as u64) as f64;
    let (mut figures, mut spaces) = (Vec::new(), Vec::new());
    const RANDOM: &str = "as many puts, drawn with repetition";
    for round in ["fill in random order", "first overwrite of all", "second overwrite of all", RANDOM] {
        let mut order: Vec<u64> = (0..values).collect();
        rng.shuffle(&mut order);
        if round == RANDOM {
            order = (0..values).map(|_| rng.u64(0..values)).collect();
        }
        let (seconds, amplification) = put_all(&db, &mut rng, order, len);
        figures.push((round, format!("{:.0} MB/s, {amplification:.2} written", bytes / seconds / 1e6)));
        spaces.push(format!("{:.2}", files_bytes(dir.path()) as f64 / bytes));
    }
    figures.push(("space after each round", spaces.join(", ")));
    let gets = values.min(20_000);
    let begin = Instant::now();
    for _ in 0..gets {
        black_box(db.get(rng.u64(0..values).to_be_bytes()).unwrap().unwrap());
    }
    figures.push(("get", format!("{:.1} µs", begin.elapsed().as_secs_f64() * 1e6 / gets as f64)));
    let begin = Instant::now();
    assert_eq!(db.iter().map(|entry| entry.unwrap().1.len()).sum::<usize>() as f64, bytes);
    figures.push(("scan of values", format!("{:.0} MB/s", bytes / begin.elapsed().as_secs_f64() / 1e6)));
    let begin = Instant::now();
    assert_eq!(db.keys(..).filter(|key| key.is_ok()).count() as u64, values);
    let per_key = begin.elapsed().as_secs_f64() * 1e9 / values as f64;
    figures.push(("scan of keys, per key", format!("{per_key:.0} ns")));
    figures
}

fn main() {
    let (values, len) = (number("TAMIS_VALUES", 40_000), usize::try_from(number("TAMIS_VALUE", 16_384)).unwrap());
    println!("{values} values of {len} bytes");
    let heads = ["", "in the tables", "in value files"];
    let command = command("cargo bench --bench values", &["TAMIS_VALUES", "TAMIS_VALUE"]);
    let mut table = Table::new("values/costs", &command, &heads);
    for ((name, plain), (_, apart)) in measure(None, values, len).into_iter().zip(measure(Some(4096), values, len)) {
        table.row([name.to_owned(), plain, apart]);
    }
    table.show();
}
