//! The programs and commands in README and docs do what they say, and do so again in the same
//! directory.

mod commands;
mod programs;
mod session;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents, as paths from the root.
fn documents() -> Vec<PathBuf> {
    let docs = ["docs", "docs/guide"].into_iter().flat_map(|dir| {
        let files = std::fs::read_dir(root().join(dir)).unwrap();
        files.map(move |entry| Path::new(dir).join(entry.unwrap().file_name()))
    });
    let docs = docs.filter(|path| path.extension().is_some_and(|e| e == "md"));
    let mut all: Vec<PathBuf> = docs.chain(["README.md".into(), "tools/kvtool/README.md".into()]).collect();
    all.sort();
    all
}

/// The code blocks of a language in a document.
fn blocks(document: &Path, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let begin = format!("```{language}\n");
    let parts = text.split(&begin).skip(1);
    parts.map(|part| part.split("```").next().unwrap().to_owned()).collect()
}
