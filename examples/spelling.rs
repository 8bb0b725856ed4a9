//! A spelling checker in two bytes per word: prints the words of a text that are not in a word
//! list.
//!
//! ```sh
//! apt-get install wamerican-huge  # 345,000 words; any list with one word per line will do
//! cargo run --release --example spelling -- [WORDS] < README.md
//! ```
//!
//! WORDS defaults to /usr/share/dict/words. The text comes from standard input. A reported word is
//! certainly not in the list; one in a thousand words that are not in the list passes. To measure
//! that rate, every word of the list is misspelt in one place and looked up.
#![allow(missing_docs, clippy::disallowed_types, reason = "an example that opens the files that it is told to")]

use std::collections::HashSet;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};

use tamis::filter::BloomFilter;

/// Allowed share of misspelt words that pass.
const RATE: f64 = 0.001;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/usr/share/dict/words".into());
    let words = File::open(&path).map_err(|error| format!("cannot open the word list {path}: {error}"))?;
    let report = run(BufReader::new(words), io::stdin().lock(), &mut io::stdout().lock())?;
    eprintln!(
        "{} words in the list, {} bytes; the filter takes {}",
        report.listed, report.list_bytes, report.filter_bytes
    );
    eprintln!("{} words in the text, {} of them not in the list", report.words, report.reported);
    eprintln!(
        "{} misspelt words looked up, {} passed: {:.4} %, expected {:.4} %",
        report.misspelt,
        report.passed,
        100.0 * report.passed as f64 / report.misspelt.max(1) as f64,
        100.0 * report.expected
    );
    Ok(())
}

struct Report {
    listed: usize,
    list_bytes: u64,
    filter_bytes: u64,
    words: u64,
    reported: u64,
    misspelt: u64,
    passed: u64,
    expected: f64,
}

fn run(list: impl BufRead, text: impl BufRead, out: &mut impl Write) -> Result<Report, Box<dyn Error>> {
    // The set is only for measuring. The checker itself needs only the filter.
    let list: HashSet<String> = list.lines().collect::<io::Result<_>>()?;
    let mut filter = BloomFilter::with_rate((list.len() as u64).max(1), RATE)?;
    filter.extend(&list);

    let (mut words, mut reported) = (0, 0);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line?;
        for word in line.split(|c: char| !c.is_alphabetic() && c != '\'').filter(|word| word.len() > 1) {
            words += 1;
            // The list has a word that begins a sentence without its capital.
            let word = word.trim_matches('\'');
            if !filter.contains(word) && !filter.contains(word.to_lowercase()) {
                reported += 1;
                writeln!(out, "{number}: {word}")?;
            }
        }
    }

    let (mut misspelt, mut passed) = (0, 0);
    for wrong in list.iter().filter_map(|word| misspell(word)).filter(|wrong| !list.contains(wrong)) {
        misspelt += 1;
        passed += u64::from(filter.contains(wrong));
    }
    Ok(Report {
        listed: list.len(),
        list_bytes: list.iter().map(|word| word.len() as u64 + 1).sum(),
        filter_bytes: filter.encoded_len(),
        words,
        reported,
        misspelt,
        passed,
        expected: filter.expected_fpr(),
    })
}

/// Swaps two letters in the middle of a word; `None` if that changes nothing.
fn misspell(word: &str) -> Option<String> {
    let mut letters: Vec<char> = word.chars().collect();
    let middle = letters.len() / 2;
    if middle == 0 || letters[middle - 1] == letters[middle] {
        return None;
    }
    letters.swap(middle - 1, middle);
    Some(letters.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_not_in_the_list_are_reported_with_their_line() {
        let list = "the\nquick\nfox\njumps\n";
        let mut out = Vec::new();
        let report = run(list.as_bytes(), &b"The quikc fox,\n'jumps' over.\n"[..], &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "1: quikc\n2: over\n");
        assert_eq!((report.listed, report.words, report.reported), (4, 5, 2));
        assert_eq!((report.misspelt, report.passed), (4, 0));
    }
}
