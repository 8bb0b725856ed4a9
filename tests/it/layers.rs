//! Do modules use only those listed above them in ARCHITECTURE.md? Are files short and lines
//! narrow? Is unsafe code only where ARCHITECTURE.md says?
#![allow(clippy::disallowed_methods, reason = "reads the sources of this crate")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The names for which one with braces stands: `a/{b,c}` for `a/b` and `a/c`.
fn expand(name: &str) -> Vec<String> {
    let braced = name.split_once('{').and_then(|(room, rest)| Some((room, rest.split_once('}')?)));
    match braced {
        Some((room, (names, end))) => names.split(',').map(|name| format!("{room}{name}{end}")).collect(),
        None => vec![name.to_owned()],
    }
}

/// The layers of ARCHITECTURE.md, the lowest first.
fn layers() -> Vec<String> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let list = text.split("```text").nth(1).expect("a list of layers").split("```").next().unwrap();
    list.lines().filter_map(|line| line.split_whitespace().next()).flat_map(expand).collect()
}

/// The source files in directories of the repository and below.
fn sources(dirs: &[&str]) -> Vec<PathBuf> {
    fn add(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    dirs.iter().for_each(|dir| add(&root().join(dir), &mut out));
    out
}

/// The crates of the library: where their sources are, by which name others use them, and the
/// module of the crate `tamis` as which they appear there.
const CRATES: [(&str, &str, &[&str]); 8] = [
    ("src", "tamis", &[]),
    ("crates/base/src", "tamis_base", &[]),
    ("crates/vfs/src", "tamis_vfs", &["vfs"]),
    ("crates/filter/src", "tamis_filter", &["filter"]),
    ("crates/log/src", "tamis_log", &["log"]),
    ("crates/sorted/src", "tamis_sorted", &["sorted"]),
    ("crates/tree/src", "tamis_tree", &["tree"]),
    ("crates/doctor/src", "tamis_doctor", &["doctor"]),
];

/// The tools, likewise.
const TOOLS: [(&str, &str, &[&str]); 9] = [
    ("tools/backup/src", "tamis_backup", &["tools/backup"]),
    ("tools/bench/src", "tamis_bench", &["tools/bench"]),
    ("tools/costs/src", "tamis_costs", &["tools/costs"]),
    ("tools/figures/src", "tamis_figures", &["tools/figures"]),
    ("tools/house/src", "tamis_house", &["tools/house"]),
    ("tools/kvd/src", "kvd", &["tools/kvd"]),
    ("tools/kvtool/src", "kvtool", &["tools/kvtool"]),
    ("tools/openraft/src", "tamis_openraft", &["tools/openraft"]),
    ("tools/peers/src", "tamis_peers", &["tools/peers"]),
];

fn crates() -> impl Iterator<Item = (&'static str, &'static str, &'static [&'static str])> {
    CRATES.into_iter().chain(TOOLS)
}

/// The sources of the library.
fn library() -> Vec<PathBuf> {
    sources(&CRATES.map(|(dir, ..)| dir))
}

/// A path of modules, from the root of the crate `tamis`.
type Module = Vec<String>;

/// As which module a crate appears that is named in a path.
fn module_of_crate(name: &str) -> Option<Module> {
    let (.., module) = crates().find(|(_, krate, _)| *krate == name)?;
    Some(module.iter().map(ToString::to_string).collect())
}

fn module_of(path: &Path) -> Module {
    let in_crate = |(dir, _, room): (&str, &str, &'static [&'static str])| {
        path.strip_prefix(root().join(dir)).ok().map(|relative| (relative.with_extension(""), room))
    };
    let (relative, room) = crates().find_map(in_crate).unwrap();
    let parts = relative.iter().map(|part| part.to_string_lossy().into_owned());
    let mut module: Module = room.iter().map(ToString::to_string).chain(parts).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

/// Whether an item is compiled for tests only.
fn is_test(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && {
            let condition = attribute.parse_args::<syn::Meta>().unwrap();
            let of_tests = |list: &syn::MetaList| list.tokens.to_string().contains("test");
            condition.path().is_ident("test")
                || condition.path().is_ident("any") && condition.require_list().is_ok_and(of_tests)
        }
    })
}

/// The paths that a file names, from the root of the crate `tamis`, except those in its tests.
struct Uses {
    module: Module,
    /// As which module its crate appears.
    krate: Module,
    inner: usize,
    found: BTreeSet<Module>,
    /// The type whose `impl` is being visited.
    implemented: Option<String>,
    /// Methods that a type defines here, and those that it calls on itself.
    defined: BTreeSet<(String, String)>,
    called: BTreeSet<(String, String)>,
}

impl Uses {
    fn of(module: &Module) -> Uses {
        let is_own = |room: &&[&str]| {
            !room.is_empty() && room.len() <= module.len() && room.iter().zip(module).all(|(part, own)| part == own)
        };
        let room = crates().map(|(.., room)| room).find(is_own).unwrap_or_default();
        let krate = room.iter().map(ToString::to_string).collect();
        Uses {
            module: module.clone(),
            krate,
            inner: 0,
            found: BTreeSet::new(),
            implemented: None,
            defined: BTreeSet::new(),
            called: BTreeSet::new(),
        }
    }

    fn note(&mut self, path: &[String]) {
        let own = |above: usize| {
            let depth = self.module.len() + self.inner;
            self.module[..(depth - above.min(depth)).min(self.module.len())].to_vec()
        };
        let supers = path.iter().take_while(|part| *part == "super").count();
        let (mut module, rest) = match path.first().map(String::as_str) {
            Some("crate") => (self.krate.clone(), &path[1..]),
            Some("self") => (own(0), &path[1..]),
            Some("super") => (own(supers), &path[supers..]),
            Some(name) => match module_of_crate(name) {
                Some(module) => (module, &path[1..]),
                None => return,
            },
            None => return,
        };
        module.extend_from_slice(rest);
        self.found.insert(module);
    }

    fn note_tree(&mut self, tree: &syn::UseTree, path: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.note_tree(&part.tree, path);
                path.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(tree, path)),
            syn::UseTree::Glob(_) => self.note(path),
            syn::UseTree::Name(_) | syn::UseTree::Rename(_) => {
                let name = match tree {
                    syn::UseTree::Name(name) => &name.ident,
                    syn::UseTree::Rename(name) => &name.ident,
                    _ => return,
                };
                path.push(name.to_string());
                self.note(path);
                path.pop();
            }
        }
    }
}

impl<'a> Visit<'a> for Uses {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_test(item) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        self.inner += 1;
        syn::visit::visit_item_mod(self, item);
        self.inner -= 1;
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        // A re-export is not a use.
        if matches!(item.vis, syn::Visibility::Inherited) {
            self.note_tree(&item.tree, &mut Vec::new());
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let name = match &*item.self_ty {
            syn::Type::Path(of) => of.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        let outer = std::mem::replace(&mut self.implemented, name);
        syn::visit::visit_item_impl(self, item);
        self.implemented = outer;
    }

    fn visit_impl_item_fn(&mut self, method: &'a syn::ImplItemFn) {
        self.defined.extend(self.implemented.clone().map(|of| (of, method.sig.ident.to_string())));
        syn::visit::visit_impl_item_fn(self, method);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let is_self = matches!(&*call.receiver, syn::Expr::Path(path) if path.path.is_ident("self"));
        if let (true, Some(of)) = (is_self, &self.implemented) {
            self.called.insert((of.clone(), call.method.to_string()));
        }
        syn::visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.note(&path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>());
        syn::visit::visit_path(self, path);
    }
}

/// Maps each re-exported name (module and name) to its target.
fn exports(files: &BTreeMap<Module, syn::File>) -> BTreeMap<Module, Module> {
    let mut exports = BTreeMap::new();
    for (module, file) in files {
        let mut uses = Uses::of(module);
        for item in &file.items {
            if let syn::Item::Use(item) = item
                && !matches!(item.vis, syn::Visibility::Inherited)
            {
                uses.note_tree(&item.tree, &mut vec!["self".to_owned()]);
                uses.note_tree(&item.tree, &mut Vec::new());
            }
        }
        for target in uses.found {
            let name = target.last().cloned();
            exports.insert(module.iter().cloned().chain(name).collect(), target);
        }
    }
    exports
}

/// The modules that each module's file uses, for the files in `paths`. A method that a type calls
/// on itself counts as a use of the file that defines it.
fn dependencies(mut paths: Vec<PathBuf>) -> BTreeMap<Module, BTreeSet<Module>> {
    paths.retain(|path| !path.iter().any(|part| part == "tests" || part == "tests.rs"));
    let parse = |path: &PathBuf| (module_of(path), syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap());
    let files: BTreeMap<Module, syn::File> = paths.iter().map(parse).collect();
    let exports = exports(&files);
    // The file that defines the item, with re-exports resolved.
    let file_with = |path: &Module| {
        let mut path = path.clone();
        for _ in 0..9 {
            let Some(len) = (1..=path.len()).rev().find(|&len| exports.contains_key(&path[..len])) else { break };
            path = [&exports[&path[..len]], &path[len..]].concat();
        }
        (0..=path.len()).rev().map(|len| path[..len].to_vec()).find(|module| files.contains_key(module))
    };
    let uses: Vec<Uses> = files
        .iter()
        .map(|(module, file)| {
            let mut uses = Uses::of(module);
            uses.visit_file(file);
            uses
        })
        .collect();
    let mut places: BTreeMap<(&Module, &(String, String)), Vec<&Module>> = BTreeMap::new();
    for of in &uses {
        of.defined.iter().for_each(|method| places.entry((&of.krate, method)).or_default().push(&of.module));
    }
    let is_of_db = |module: &Module| module.first().is_some_and(|room| room == "db");
    let uses_of = |of: &Uses| {
        let used = of.found.iter().filter_map(file_with);
        let methods =
            of.called.difference(&of.defined).filter_map(|method| match &places.get(&(&of.krate, method))?[..] {
                // The rooms of `db` share `Store`: a test of their own is below.
                [only] if !(is_of_db(only) && is_of_db(&of.module)) => Some((*only).clone()),
                _ => None,
            });
        let used = used.chain(methods).filter(|used| !used.is_empty() && *used != of.module);
        (of.module.clone(), used.collect())
    };
    uses.iter().map(uses_of).collect()
}

#[test]
fn modules_use_only_the_layers_above_them() {
    let layers = layers();
    let layer_of = |module: &Module| {
        (1..=module.len()).rev().find_map(|len| {
            let name = module[..len].join("/");
            layers.iter().position(|layer| *layer == name)
        })
    };
    let mut seen = BTreeSet::new();
    for (module, used) in dependencies(library()) {
        let Some(own) = layer_of(&module) else {
            let is_root = crates().any(|(.., room)| room == module);
            assert!(is_root || module.len() < 2 && used.is_empty(), "{module:?} is not in ARCHITECTURE.md");
            continue;
        };
        seen.insert(own);
        for used in used {
            let upward = layer_of(&used).filter(|layer| *layer > own);
            assert_eq!(upward, None, "{} may not use {}", module.join("/"), used.join("/"));
        }
    }
    assert!(seen.into_iter().eq(0..layers.len()), "every layer of the list is a module");
}

/// No file of the library or of a tool depends on itself through others. A module and the file
/// above it count as one here: the file above declares what its modules share.
#[test]
fn files_use_each_other_in_one_direction() {
    let all = dependencies(sources(&crates().map(|(dir, ..)| dir).collect::<Vec<_>>()));
    let apart = |a: &Module, b: &Module| !a.starts_with(b) && !b.starts_with(a);
    let edges: BTreeMap<&Module, Vec<&Module>> =
        all.iter().map(|(module, used)| (module, used.iter().filter(|used| apart(module, used)).collect())).collect();
    let reached = |start: &Module| {
        let (mut reached, mut next) = (BTreeSet::new(), edges[start].clone());
        while let Some(module) = next.pop() {
            if reached.insert(module) {
                next.extend(&edges[module]);
            }
        }
        reached
    };
    let in_circles: Vec<String> =
        edges.keys().filter(|module| reached(module).contains(*module)).map(|module| module.join("/")).collect();
    assert!(in_circles.is_empty(), "files that need themselves: {in_circles:#?}");
}

/// The methods of `Store` that a file of `db` defines, and those that it calls, except in tests.
#[derive(Default)]
struct OfStore {
    in_store: bool,
    defined: BTreeSet<String>,
    called: BTreeSet<String>,
}

impl<'a> Visit<'a> for OfStore {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_test(item) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let is_store = |path: &syn::TypePath| path.path.segments.last().is_some_and(|last| last.ident == "Store");
        self.in_store = matches!(&*item.self_ty, syn::Type::Path(path) if is_store(path));
        syn::visit::visit_item_impl(self, item);
        self.in_store = false;
    }

    fn visit_impl_item_fn(&mut self, method: &'a syn::ImplItemFn) {
        self.defined.extend(self.in_store.then(|| method.sig.ident.to_string()));
        syn::visit::visit_impl_item_fn(self, method);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let is_store = match &*call.receiver {
            syn::Expr::Path(path) => path.path.is_ident("store") || self.in_store && path.path.is_ident("self"),
            syn::Expr::MethodCall(inner) => inner.method == "store",
            syn::Expr::Field(field) => matches!(&field.member, syn::Member::Named(name) if name == "store"),
            _ => false,
        };
        self.called.extend(is_store.then(|| call.method.to_string()));
        syn::visit::visit_expr_method_call(self, call);
    }
}

/// The rooms of `db` that others build on, the lowest first. `write` and `work` need each other:
/// what each asks of the other is all that their headers name.
#[test]
fn rooms_of_the_store_ask_each_other_what_their_headers_say() {
    let (mut rooms, mut places) = (BTreeMap::new(), BTreeMap::new());
    for path in sources(&["src/db"]) {
        let module = module_of(&path);
        if module.iter().any(|part| part == "tests") {
            continue;
        }
        let mut of = OfStore::default();
        of.visit_file(&syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
        let room = module.get(1).cloned().unwrap_or_default();
        places.extend(of.defined.into_iter().map(|method| (method, room.clone())));
        rooms.entry(room).or_insert_with(BTreeSet::new).extend(of.called);
    }
    let asked = |by: &str, of: &str| -> BTreeSet<&str> {
        rooms[by].iter().filter(|method| places.get(*method).is_some_and(|room| room == of)).map(|m| &**m).collect()
    };
    let order = ["store", "shape", "read", "write", "work"];
    for (i, lower) in order.iter().enumerate() {
        for upper in order[i + 1..].iter().filter(|upper| (*lower, **upper) != ("write", "work")) {
            assert_eq!(asked(lower, upper), BTreeSet::new(), "of {upper}, by {lower}");
        }
        for other in rooms.keys().filter(|room| !order.contains(&room.as_str())) {
            assert_eq!(asked(lower, other), BTreeSet::new(), "of {other}, by {lower}");
        }
    }
    for (by, of) in [("write", "work"), ("work", "write")] {
        let header = fs::read_to_string(root().join(format!("src/db/{by}.rs"))).unwrap();
        let header: String = header.lines().take_while(|line| line.starts_with("//!")).collect();
        let named = header.split("`Store::").skip(1).filter_map(|rest| rest.split('`').next());
        assert_eq!(asked(by, of), named.collect(), "what {by} asks of {of}, and what its header says");
    }
}

#[test]
fn no_file_is_longer_than_800_lines() {
    for path in sources(&["src", "crates", "tools", "tests"]) {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 800, "{} has {lines} lines", path.display());
    }
}

/// rustfmt wraps neither comments nor Markdown. Code blocks and tables of Markdown may be wider.
#[test]
fn prose_ends_by_column_100() {
    let mut wide = Vec::new();
    let mut check = |path: &Path, number: usize, line: &str| {
        if line.len() > 100 {
            wide.push(format!("{}:{}", path.strip_prefix(root()).unwrap().display(), number + 1));
        }
    };
    for path in sources(&["src", "crates", "tools", "tests", "benches", "examples", "fuzz/fuzz_targets"]) {
        let text = fs::read_to_string(&path).unwrap();
        let comments = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        comments.for_each(|(number, line)| check(&path, number, line));
    }
    let above = [
        "",
        "docs",
        "docs/guide",
        "crates/filter",
        "tools/bench",
        "tools/costs",
        "tools/kvd",
        "tools/kvtool",
        "tools/peers",
    ];
    let documents = above.iter().flat_map(|dir| fs::read_dir(root().join(dir)).unwrap());
    for path in documents.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "md"))
    {
        let (text, mut is_code) = (fs::read_to_string(&path).unwrap(), false);
        for (number, line) in text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            if !is_code && !line.starts_with('|') {
                check(&path, number, line);
            }
        }
    }
    assert!(wide.is_empty(), "{} lines are too wide: {wide:#?}", wide.len());
}

/// Finds calls that name a byte order, outside of tests.
#[derive(Default)]
struct ByteOrders {
    found: BTreeSet<String>,
}

impl<'a> Visit<'a> for ByteOrders {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_test(item) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_ident(&mut self, ident: &'a syn::Ident) {
        let name = ident.to_string();
        let orders = ["_le_bytes", "_be_bytes", "_ne_bytes", "LittleEndian", "BigEndian"];
        if orders.iter().any(|order| name.ends_with(order)) {
            self.found.insert(name);
        }
    }
}

#[test]
fn only_format_names_a_byte_order() {
    for path in library() {
        let module = module_of(&path);
        let is_of_tests = module.iter().any(|part| ["tests", "fuzz", "testing"].contains(&part.as_str()))
            || ["churn", "simulation"].contains(&module[module.len().saturating_sub(1)..].concat().as_str());
        let mut orders = ByteOrders::default();
        orders.visit_file(&syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
        let is_format = module.first().is_some_and(|room| room == "format");
        assert!(is_format || is_of_tests || orders.found.is_empty(), "{}: {:?}", path.display(), orders.found);
        if module == ["format", "coding"] {
            assert!(orders.found.contains("LittleEndian"), "the search finds what there is: {:?}", orders.found);
        }
    }
}

#[test]
fn unsafe_code_stands_only_where_architecture_says() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let text = text.split("\n## ").find(|section| section.starts_with("Unsafe code\n")).expect("a section");
    let stated: BTreeSet<String> = text.split('`').skip(1).step_by(2).flat_map(expand).collect();
    for path in library() {
        let relative = path.strip_prefix(root()).unwrap().display().to_string();
        let code = fs::read_to_string(&path).unwrap();
        let kinds = ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"];
        let is_code = |line: &str| !line.trim_start().starts_with("//");
        let uses = code.lines().any(|line| is_code(line) && kinds.iter().any(|kind| line.contains(kind)));
        assert_eq!(uses, stated.contains(&relative), "{relative}: unsafe code and ARCHITECTURE.md disagree");
    }
}

/// Clippy cannot include a file in another.
#[test]
fn tools_have_the_lints_of_the_library_but_for_threads_and_clocks() {
    let rules = |path: &str| {
        let text = fs::read_to_string(root().join(path)).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    let (mut library, tools) = (rules("clippy.toml"), rules("tools/clippy.toml"));
    library.retain(|rule| !rule.ends_with("reason = \"use base::sync\" },"));
    assert_eq!(tools, library);
}
