//! Keeps the URLs that a crawl has seen in a filter that grows: prints each URL of its input once.
//!
//! ```sh
//! apt-cache dumpavail | sed -n 's/^Homepage: //p' | cargo run --release --example crawl > new.txt
//! cargo run --release --example crawl -- urls.txt > new.txt
//! ```
//!
//! The input has one URL per line. A crawl does not know their number in advance, hence the
//! scalable filter. It never visits a page twice, but may take a new URL for a seen one and so miss
//! a page in a thousand. An exact set of the URLs measures how often that happens.
#![allow(missing_docs, clippy::disallowed_types, reason = "an example that opens the files that it is told to")]

use std::collections::HashSet;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};

use tamis::filter::ScalableBloomFilter;

/// Highest allowed share of missed new URLs.
const RATE: f64 = 0.001;
/// Initial capacity in URLs.
const FIRST: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(io::stdout().lock());
    let report = match std::env::args().nth(1) {
        Some(path) => {
            let file = File::open(&path).map_err(|error| format!("cannot open {path}: {error}"))?;
            run(BufReader::new(file), &mut out)?
        }
        None => run(io::stdin().lock(), &mut out)?,
    };
    out.flush()?;
    eprintln!("{} URLs, {} different, {} visited", report.urls, report.different, report.visited);
    let missed = report.different - report.visited;
    eprintln!(
        "{missed} new ones taken for seen: {:.4} %; the filter expects {:.4} % now, and never more than {:.4} %",
        100.0 * missed as f64 / report.different.max(1) as f64,
        100.0 * report.filter.expected_fpr(),
        100.0 * RATE
    );
    eprintln!("the URLs take {} bytes, the filter {}", report.url_bytes, report.filter.encoded_len());
    eprintln!("{}", report.filter);
    Ok(())
}

struct Report {
    urls: u64,
    different: u64,
    visited: u64,
    url_bytes: u64,
    filter: ScalableBloomFilter,
}

fn run(input: impl BufRead, out: &mut impl Write) -> Result<Report, Box<dyn Error>> {
    let mut filter = ScalableBloomFilter::with_rate(FIRST, RATE)?;
    let mut exact = HashSet::new();
    let (mut urls, mut visited, mut url_bytes) = (0, 0, 0);
    for url in input.split(b'\n') {
        let url = url?;
        urls += 1;
        if filter.insert(&url) {
            visited += 1;
            out.write_all(&url)?;
            out.write_all(b"\n")?;
        }
        let len = url.len() as u64;
        if exact.insert(url) {
            url_bytes += len;
        }
    }
    Ok(Report { urls, different: exact.len() as u64, visited, url_bytes, filter })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_url_is_visited_once_and_few_are_missed() {
        let urls: Vec<String> = (0..20_000u32).map(|i| format!("https://example.com/page/{}", i % 10_000)).collect();
        let mut out = Vec::new();
        let report = run(urls.join("\n").as_bytes(), &mut out).unwrap();
        assert_eq!((report.urls, report.different), (20_000, 10_000));
        let visited: HashSet<&str> = std::str::from_utf8(&out).unwrap().lines().collect();
        assert_eq!(visited.len() as u64, report.visited, "none twice");
        assert!((9970..=10_000).contains(&report.visited));
        assert!(report.filter.expected_fpr() < RATE);
    }
}
