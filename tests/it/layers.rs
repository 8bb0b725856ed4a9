//! Do modules use only those listed above them in ARCHITECTURE.md? Is every file of a readable size?
#![allow(clippy::disallowed_methods, reason = "reads the sources of this crate")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn layers() -> Vec<String> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let list = text.split("```text").nth(1).expect("a list of layers").split("```").next().unwrap();
    list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The code without its tests: what a `#[cfg(test)]` module at the end holds may use anything.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

#[test]
fn modules_use_only_the_layers_above_them() {
    let layers = layers();
    let place = |name: &str| layers.iter().position(|layer| layer == name);
    let src = root().join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut seen = BTreeSet::new();
    for path in files.iter().filter(|path| !is_test(path)) {
        let relative = path.strip_prefix(&src).unwrap();
        let module = relative.components().next().unwrap().as_os_str().to_string_lossy().replace(".rs", "");
        if module == "lib" {
            continue;
        }
        let own = place(&module).unwrap_or_else(|| panic!("{module} is not in the list of ARCHITECTURE.md"));
        seen.insert(module.clone());
        let text = fs::read_to_string(path).unwrap();
        for (number, line) in without_tests(&text).lines().enumerate() {
            for used in line.split("crate::").skip(1) {
                let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if let Some(used_place) = place(&used) {
                    assert!(
                        used_place <= own,
                        "{}:{}: {module} may not use {used}, which is listed below it",
                        relative.display(),
                        number + 1
                    );
                }
            }
        }
    }
    let listed: BTreeSet<String> = layers.into_iter().collect();
    assert_eq!(seen, listed, "every layer of the list is a module and the other way round");
}

#[test]
fn no_file_is_longer_than_800_lines() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    sources(&root().join("tools"), &mut files);
    sources(&root().join("tests"), &mut files);
    for path in files {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 800, "{} has {lines} lines", path.display());
    }
}

#[test]
fn unsafe_code_stands_only_where_architecture_says() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    for path in files {
        let relative = path.strip_prefix(root()).unwrap().display().to_string();
        let code = fs::read_to_string(&path).unwrap();
        let kinds = ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"];
        let is_code = |line: &str| !line.trim_start().starts_with("//");
        let uses = code.lines().any(|line| is_code(line) && kinds.iter().any(|kind| line.contains(kind)));
        assert_eq!(
            uses,
            text.contains(&format!("`{relative}`")),
            "{relative}: unsafe code and ARCHITECTURE.md disagree"
        );
    }
}
