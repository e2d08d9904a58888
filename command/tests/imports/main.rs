//! No import cycles: in each crate of the repository, files import each other in one direction only.

mod graph;
mod tree;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use graph::Edges;
use tree::Tree;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

/// The root files of all crates in `folder`, at most `depth` folders down.
fn roots(folder: &Path, depth: u32) -> BTreeSet<PathBuf> {
    let mut roots = BTreeSet::new();
    if let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) {
        let sources = folder.join("src");
        roots.extend(["lib.rs", "main.rs"].map(|name| sources.join(name)));
        for program in std::fs::read_dir(sources.join("bin")).into_iter().flatten().flatten() {
            let path = program.path();
            roots.insert(if path.is_dir() { path.join("main.rs") } else { path });
        }
        // Programs in other places.
        let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix('"'));
        roots.extend(paths.map(|path| folder.join(path)));
        roots.retain(|root| root.extension().is_some_and(|extension| extension == "rs") && root.exists());
    }
    let is_source = |name: &str| !name.starts_with('.') && !matches!(name, "target" | "src" | "tests");
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        if depth > 0 && entry.path().is_dir() && entry.file_name().to_str().is_some_and(is_source) {
            roots.extend(self::roots(&entry.path(), depth - 1));
        }
    }
    roots
}

/// The cycles among these imports, each with the names that its files take from each other.
fn describe(edges: &Edges, folder: &Path) -> Vec<String> {
    let short = |file: &Path| file.strip_prefix(folder).unwrap_or(file).display().to_string();
    graph::cycles(edges)
        .iter()
        .map(|cycle| {
            let inside = edges.iter().filter(|((from, to), _)| cycle.contains(from) && cycle.contains(to));
            let lines = inside.map(|((from, to), names)| {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                format!("\n  {} imports from {}: {}", short(from), short(to), names.join(", "))
            });
            format!("{} files import each other:{}", cycle.len(), lines.collect::<String>())
        })
        .collect()
}

#[test]
fn crates_have_no_import_cycles() {
    let repository = repository();
    let roots = roots(&repository, 2);
    assert!(roots.len() > 60, "the crates are not where this test looks: {roots:?}");
    let hypervisor = repository.join("hypervisor");
    let others = roots.iter().filter(|root| !root.starts_with(&hypervisor));
    let cycles: Vec<String> = others.flat_map(|root| describe(&graph::edges(&Tree::read(root)), &repository)).collect();
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
}

/// Uses of a back end outside it are not imports: they go through the contract (`arch/contract`), and the compiler lets
/// nothing else of them through `arch/mod.rs`.
#[test]
fn the_hypervisor_has_no_import_cycles() {
    let sources = repository().join("hypervisor/src");
    let mut edges = graph::edges(&Tree::read(&sources.join("main.rs")));
    let is_back_end = |file: &Path| ["aarch64", "x86_64", "fake"].iter().any(|name| file.starts_with(sources.join("arch").join(name)));
    edges.retain(|(from, to), _| is_back_end(from) || !is_back_end(to));
    let cycles = describe(&edges, &sources);
    if !cycles.is_empty() {
        let short = |file: &Path| file.strip_prefix(&sources).unwrap_or(file).display().to_string();
        let upward: String = graph::upward(&edges).iter().map(|(from, to)| format!("{} -> {}\n", short(from), short(to))).collect();
        panic!("{}\nWithout these imports there would be none:\n{upward}", cycles.join("\n"));
    }
}

/// The edges of a crate of one file whose inline modules count as files.
fn imports(text: &str) -> Vec<String> {
    let mut tree = Tree::parse(text);
    let names: Vec<_> = tree.modules.iter().flat_map(|module| module.children.clone()).collect();
    for (name, children) in names {
        children.into_iter().for_each(|child| tree.modules[child].file = PathBuf::from(&name));
    }
    let edges = graph::edges(&tree);
    edges
        .iter()
        .map(|((from, to), names)| {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            format!("{} -> {}: {}", from.display(), to.display(), names.join(" "))
        })
        .collect()
}

#[test]
fn a_declaration_or_a_reexport_is_no_import() {
    assert!(imports("mod a { pub struct X; } pub use a::X; pub(crate) use a::X as Y;").is_empty());
    assert_eq!(imports("mod a { pub struct X; } pub use a::X; struct Z(X);"), ["lib.rs -> a: X"]);
    assert_eq!(imports("mod a { pub struct X; } use a::X;"), ["lib.rs -> a: X"]);
}

#[test]
fn a_name_taken_through_a_reexport_is_imported_from_where_it_is_defined() {
    assert_eq!(imports("mod a { pub struct X; } mod b { use super::X; } pub use a::X;"), ["b -> a: X"]);
    assert_eq!(imports("mod a { pub struct X; } mod b { use crate::*; struct Y(X); } pub use a::*;"), ["b -> a: X", "b -> lib.rs: *"]);
}

#[test]
fn paths_are_found_in_bodies_and_in_macros() {
    assert_eq!(imports("mod a { pub fn f() {} } mod b { fn g() { crate::a::f() } }"), ["b -> a: f"]);
    assert_eq!(imports(r#"mod a { pub fn f() {} } mod b { fn g() { println!("{}", super::a::f()) } }"#), ["b -> a: f"]);
    assert_eq!(imports("mod a { pub enum E { X } } mod b { use crate::a; fn g() { use a::E::{X}; } }"), ["b -> a: E"]);
    assert!(imports("mod a { pub fn f() {} } mod b { fn g(x: T) { x.a.f(); std::a::f() } }").is_empty());
    assert_eq!(
        imports("mod a { pub struct X; } fn a() {} mod b { use crate::a::X; }"),
        ["b -> a: X"],
        "a module and a function of one name"
    );
}

#[test]
fn a_name_of_one_alternative_is_not_imported_from_the_other() {
    let text = r#"
        #[cfg(a)] mod a { pub mod x { pub struct X; } }
        #[cfg(b)] mod a { pub struct Y; }
        mod b { use crate::a::x::X; }
    "#;
    assert_eq!(imports(text), ["b -> x: X"]);
}

#[test]
fn tests_do_not_count() {
    assert!(imports("mod a { #[cfg(test)] mod tests { use super::super::b::X; } } mod b { pub struct X; }").is_empty());
}

#[test]
fn parent_and_child_that_name_each_other_are_a_cycle() {
    let edges = |text| {
        graph::edges(&{
            let mut tree = Tree::parse(text);
            tree.modules[1].file = "a.rs".into();
            tree
        })
    };
    let both = edges("mod a { use super::Y; pub struct X; } use a::X; struct Y;");
    assert_eq!(graph::cycles(&both), [BTreeSet::from(["a.rs".into(), "lib.rs".into()])]);
    assert!(graph::cycles(&edges("mod a { use super::Y; pub struct X; } pub use a::X; struct Y;")).is_empty());
    assert!(graph::cycles(&edges("mod a { pub struct X; } use a::X; struct Y;")).is_empty());
    assert_eq!(graph::upward(&both).len(), 1);
}
