//! [`Source`]: a source file, which of its lines are for tests, and what is [`Found`] in the
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The types whose variants are the kinds of entries and of operations.
const KINDS: [&str; 2] = ["ValueKind", "OpKind"];

/// A file of the repository.
pub(crate) struct Source {
    /// Path from the repository.
    pub(crate) name: String,
    /// The crate that it is of.
    pub(crate) krate: String,
    pub(crate) text: String,
    file: syn::File,
    /// Lines of items that are compiled for tests only.
    tests: Vec<RangeInclusive<usize>>,
}

/// All sources of the library's crates.
pub(crate) fn library(repository: &Path) -> Vec<Source> {
    let crates = std::fs::read_dir(repository.join("crates")).expect("a directory of crates");
    let names = crates.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    let of_crates = names.map(|name| (format!("tamis-{name}"), format!("crates/{name}/src")));
    let dirs = of_crates.chain([("tamis".to_owned(), "src".to_owned())]);
    dirs.flat_map(|(krate, dir)| sources(repository, &dir, &krate)).collect()
}

/// The tests beside the library.
pub(crate) fn tests(repository: &Path) -> Vec<Source> {
    sources(repository, "tests", "tests")
}

fn sources(repository: &Path, dir: &str, krate: &str) -> Vec<Source> {
    let entries = walkdir::WalkDir::new(repository.join(dir)).sort_by_file_name();
    let paths = entries.into_iter().filter_map(Result::ok).map(walkdir::DirEntry::into_path);
    let sources = paths.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let source = |path: std::path::PathBuf| {
        let name = path.strip_prefix(repository).ok()?.to_string_lossy().replace('\\', "/");
        let text = std::fs::read_to_string(&path).ok()?;
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let tests = file.items.iter().filter(|item| is_test(item)).map(lines_of).collect();
        Some(Source { name, krate: krate.to_owned(), text, file, tests })
    };
    sources.filter_map(source).collect()
}

impl Source {
    fn is_for_tests(&self) -> bool {
        let names = ["tests", "testing", "simulation", "churn", "fuzz", "model"];
        self.name.split(['/', '.']).any(|part| names.contains(&part))
    }

    /// The lines that are not for tests, with their numbers.
    fn lines(&self) -> impl Iterator<Item = &str> {
        let is_of_tests = |number: usize| self.is_for_tests() || self.tests.iter().any(|lines| lines.contains(&number));
        self.text.lines().enumerate().filter(move |(at, _)| !is_of_tests(at + 1)).map(|(_, line)| line)
    }

    fn code(&self) -> impl Iterator<Item = &str> {
        self.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"))
    }

    pub(crate) fn code_lines(&self) -> usize {
        self.code().count()
    }

    pub(crate) fn test_lines(&self) -> usize {
        self.text.lines().count() - self.lines().count()
    }

    pub(crate) fn unsafe_lines(&self) -> usize {
        let is_unsafe =
            |line: &&str| ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"].iter().any(|w| line.contains(w));
        self.code().filter(is_unsafe).count()
    }
}

fn is_test(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        let condition = attribute.path().is_ident("cfg").then(|| attribute.parse_args::<syn::Meta>());
        matches!(condition, Some(Ok(condition)) if condition.path().is_ident("test"))
    })
}

fn lines_of(item: &impl Spanned) -> RangeInclusive<usize> {
    let span = item.span();
    span.start().line..=span.end().line
}

/// Whether a file stands in the folder of a room, so that `super` is the room.
fn is_within_room(file: &str) -> bool {
    file.strip_prefix("src/db/").is_some_and(|file| file.contains('/'))
}

/// What the code has, except for tests. Places are files and names.
#[derive(Default)]
pub(crate) struct Found {
    /// Functions, and their lines from `fn` on: a long description makes no function long.
    pub(crate) functions: Vec<(String, usize)>,
    /// Matches, and how many kinds of entries each names.
    pub(crate) matches: Vec<(String, usize)>,
    /// Structs, and their fields. Plain data, whose fields are all public, is left out.
    pub(crate) structs: Vec<(String, usize)>,
    /// Structs, and their fields that other rooms can see, but not everyone.
    pub(crate) shared_fields: Vec<(String, usize)>,
    /// The files in which types of a name are defined.
    pub(crate) types: BTreeMap<String, BTreeSet<String>>,
    file: String,
}

impl Found {
    pub(crate) fn of(sources: &[Source]) -> Found {
        let mut found = Found::default();
        for source in sources.iter().filter(|source| !source.is_for_tests()) {
            found.file.clone_from(&source.name);
            found.visit_file(&source.file);
        }
        found
    }

    fn place(&self, name: &syn::Ident) -> String {
        format!("{}: {name}", self.file)
    }

    fn note_function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let lines = lines_of(body).end() - lines_of(signature).start() + 1;
        self.functions.push((self.place(&signature.ident), lines));
    }

    fn note_type(&mut self, name: &syn::Ident) {
        self.types.entry(name.to_string()).or_default().insert(self.file.clone());
    }
}

/// The kinds of entries that patterns name.
#[derive(Default)]
struct Kinds(BTreeSet<String>);

impl<'a> Visit<'a> for Kinds {
    fn visit_path(&mut self, path: &'a syn::Path) {
        let mut parts = path.segments.iter().rev().map(|segment| segment.ident.to_string());
        if let (Some(variant), Some(of)) = (parts.next(), parts.next())
            && KINDS.contains(&of.as_str())
        {
            self.0.insert(variant);
        }
    }
}

impl<'a> Visit<'a> for Found {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_test(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.note_function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.note_function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'a syn::ItemStruct) {
        self.note_type(&item.ident);
        // What is public in all is plain data.
        if item.fields.iter().any(|field| !matches!(field.vis, syn::Visibility::Public(_))) {
            self.structs.push((self.place(&item.ident), item.fields.len()));
        }
        let in_room = is_within_room(&self.file);
        let is_shared = |field: &&syn::Field| match &field.vis {
            syn::Visibility::Restricted(to) => !in_room || !to.path.is_ident("super"),
            syn::Visibility::Public(_) | syn::Visibility::Inherited => false,
        };
        let shared = item.fields.iter().filter(is_shared).count();
        self.shared_fields.push((self.place(&item.ident), shared));
    }

    fn visit_item_enum(&mut self, item: &'a syn::ItemEnum) {
        self.note_type(&item.ident);
    }

    fn visit_expr_match(&mut self, expr: &'a syn::ExprMatch) {
        let mut kinds = Kinds::default();
        expr.arms.iter().for_each(|arm| kinds.visit_pat(&arm.pat));
        self.matches.push((format!("{}:{}", self.file, expr.span().start().line), kinds.0.len()));
        visit::visit_expr_match(self, expr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_tests_is_not_counted_and_the_rest_is() {
        let dir = tempfile::tempdir().unwrap();
        let text = "//! A room.\n\npub struct Room {\n    pub(crate) door: u8,\n    pub(super) wall: u8,\n}\n\n\
            fn of(kind: ValueKind) -> u8 {\n    match kind {\n        ValueKind::Put | ValueKind::Delete => 1,\n\
                    ValueKind::Merge => 2,\n    }\n}\n\n#[cfg(test)]\nmod tests {\n    struct Room;\n    fn f() {}\n}\n";
        std::fs::create_dir_all(dir.path().join("src/db/write")).unwrap();
        std::fs::write(dir.path().join("src/db/write/room.rs"), text).unwrap();
        std::fs::write(dir.path().join("src/db/tests.rs"), "pub struct Other { pub a: u8 }\n").unwrap();
        let sources = sources(dir.path(), "src", "tamis");
        let found = Found::of(&sources);
        assert_eq!(sources.iter().map(Source::code_lines).sum::<usize>(), 10);
        assert_eq!(sources.iter().map(Source::test_lines).sum::<usize>(), 6);
        assert_eq!(found.functions, [("src/db/write/room.rs: of".to_owned(), 6)]);
        assert_eq!(found.matches, [("src/db/write/room.rs:9".to_owned(), 3)]);
        assert_eq!(found.structs, [("src/db/write/room.rs: Room".to_owned(), 2)]);
        assert_eq!(found.shared_fields, [("src/db/write/room.rs: Room".to_owned(), 1)]);
        assert_eq!(found.types.len(), 1);
    }
}
