//! [`Format`]: how files of entries are written.

use std::path::Path;

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Key, tab, value, as `scan` prints them. An unquoted value may hold tabs. A line without a
    /// tab is a key with an empty value. Only the newline is removed from a line, not a carriage
    /// return before it
    Tsv,
    /// Key, comma, value; in double quotes if they hold commas, quotes or line ends. A record
    /// without a comma is a key with an empty value. Lines end with LF or CRLF
    Csv,
    /// {"key": "…", "value": "…"}; for bytes that are not UTF-8, "key_hex" and "value_hex", or
    /// an object {"hex": "…"} as `scan --json` prints it. "deadline" is when the value expires,
    /// null for never; without it, the keyspace's ttl applies. "operands" are merged into the
    /// value, oldest first. An absent value is empty, or none if there are operands. A line
    /// {"keyspace": "…", "options": {…}} says of which keyspace the lines after it are. No
    /// other format holds all of that
    Jsonl,
    /// Key, NUL byte, value, NUL byte
    Nul,
}

impl Format {
    /// The format that a file's extension names; TSV if it names none.
    pub(crate) fn of_file(file: &Path) -> Format {
        let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" | "json" => Format::Jsonl,
            "csv" => Format::Csv,
            "nul" => Format::Nul,
            _ => Format::Tsv,
        }
    }

    /// An extension that [`of_file`](Format::of_file) knows.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Format::Tsv => "tsv",
            Format::Csv => "csv",
            Format::Jsonl => "jsonl",
            Format::Nul => "nul",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_that_of_the_extension() {
        for (file, format) in [
            ("-", Format::Tsv),
            ("words", Format::Tsv),
            ("a.tsv", Format::Tsv),
            ("a.CSV", Format::Csv),
            ("a.JSONL", Format::Jsonl),
            ("a.ndjson", Format::Jsonl),
            ("a.nul", Format::Nul),
        ] {
            assert_eq!(Format::of_file(Path::new(file)), format);
            assert_eq!(Format::of_file(Path::new("a").with_extension(format.extension()).as_path()), format);
        }
    }
}
