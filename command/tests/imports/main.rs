//! Files import each other in one direction only: no cycles in any crate of the repository, and in the hypervisor no
//! import of a higher layer (docs/layers.md).

mod graph;
mod layers;
mod tree;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use graph::Edges;
use layers::Layers;
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

/// The hypervisor's files and imports, relative to its sources. Uses of a back end outside it are not imports: they go
/// through the contract (`arch/contract`), and the compiler lets nothing else of them through `arch/mod.rs`.
static HYPERVISOR: LazyLock<(BTreeSet<PathBuf>, Edges)> = LazyLock::new(|| {
    let sources = repository().join("hypervisor/src");
    let tree = Tree::read(&sources.join("main.rs"));
    let short = |file: &Path| file.strip_prefix(&sources).expect("a file of the hypervisor").to_owned();
    let is_back_end = |file: &Path| ["aarch64", "x86_64", "fake"].iter().any(|name| file.starts_with(Path::new("arch").join(name)));
    let edges = graph::edges(&tree).into_iter().map(|((from, to), names)| ((short(&from), short(&to)), names));
    let edges = edges.filter(|((from, to), _)| is_back_end(from) || !is_back_end(to)).collect();
    (tree.modules.iter().map(|module| short(&module.file)).collect(), edges)
});

#[test]
fn the_hypervisor_has_no_import_cycles() {
    let (_, edges) = &*HYPERVISOR;
    let cycles = describe(edges, Path::new(""));
    if !cycles.is_empty() {
        let upward: String = graph::upward(edges).iter().map(|(from, to)| format!("{} -> {}\n", from.display(), to.display())).collect();
        panic!("{}\nWithout these imports there would be none:\n{upward}", cycles.join("\n"));
    }
}

#[test]
fn the_hypervisor_imports_no_higher_layer() {
    let page = std::fs::read_to_string(repository().join("docs/layers.md")).expect("docs/layers.md");
    let tables = Layers::read(&page);
    let (files, edges) = &*HYPERVISOR;
    assert_eq!(tables.len(), 3, "docs/layers.md has a table for all, and one for each back end");
    for table in &tables {
        let unknown: Vec<_> = files.iter().filter(|file| !table.knows(file)).collect();
        assert!(unknown.is_empty(), "no layer in docs/layers.md has {unknown:?}");
        let unused = table.unused(files.iter().map(PathBuf::as_path));
        assert!(unused.is_empty(), "docs/layers.md names files that do not exist: {unused:?}");
    }
    let upward: Vec<String> = tables.iter().flat_map(|table| table.upward(edges)).collect();
    assert!(upward.is_empty(), "imports from a higher layer of docs/layers.md:\n{}", upward.join("\n"));
}

#[test]
fn an_upward_import_is_found() {
    let page = "\
## Folder `back/`
| layer | files |
| --- | --- |
| machine | `host/` |
| state | `vm/` `nested/state.rs` |
| exits | `nested/` `vm/mod.rs` |
";
    let tables = Layers::read(page);
    let upward = |from: &str, to: &str| {
        let edge = ((from.into(), to.into()), BTreeSet::from(["X".to_owned()]));
        tables.iter().flat_map(|table| table.upward(&Edges::from([edge.clone()]))).collect::<Vec<_>>()
    };
    assert_eq!(upward("back/host/cpu.rs", "back/vm/ram.rs"), ["host/cpu.rs (machine) imports from vm/ram.rs (state): X"]);
    assert_eq!(upward("back/nested/state.rs", "back/nested/exit.rs").len(), 1, "the longest name decides");
    assert_eq!(upward("back/vm/ram.rs", "back/vm/mod.rs").len(), 1);
    assert!(upward("back/nested/exit.rs", "back/nested/state.rs").is_empty(), "a lower layer");
    assert!(upward("back/vm/ram.rs", "back/nested/state.rs").is_empty(), "the same layer");
    assert!(upward("main.rs", "back/vm/mod.rs").is_empty(), "a file of another folder");
    let [table] = tables.as_slice() else { panic!("one table") };
    assert!(table.knows(Path::new("main.rs")) && !table.knows(Path::new("back/boot.rs")));
    let files = ["back/host/cpu.rs", "back/nested/state.rs", "back/vm/mod.rs"].map(Path::new);
    assert!(table.unused(files.into_iter()).is_empty());
    assert_eq!(table.unused(files[..2].iter().copied()), ["vm/", "vm/mod.rs"]);
}

/// Differences between architectures are behind the contract: no condition on the architecture above `arch/`. In the
/// crates only the lock has one, for how a CPU waits.
#[test]
fn only_back_ends_depend_on_the_architecture() {
    let mut open = vec![repository().join("hypervisor/src"), repository().join("crates")];
    let mut found = BTreeSet::new();
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() && !path.ends_with("hypervisor/src/arch") && !path.ends_with("tests") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && std::fs::read_to_string(&path).expect("a source file").contains("target_arch")
            {
                found.insert(path.strip_prefix(repository()).expect("a file of the repository").to_owned());
            }
        }
    }
    assert_eq!(found, BTreeSet::from(["crates/lock/src/lib.rs".into()]));
}

/// The virtualization extension of x86-64 is chosen in one file; the others name it by `virt`. What an extension has alone
/// is named in its folder.
#[test]
fn the_extension_is_chosen_in_one_file() {
    let back_end = repository().join("hypervisor/src/arch/x86_64");
    let mut open = vec![back_end.clone()];
    let mut chosen = BTreeSet::new();
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                open.push(path);
            } else {
                let text = std::fs::read_to_string(&path).expect("a source file");
                let inside = ["vmx", "svm"].iter().find(|name| path.starts_with(back_end.join(name)));
                let names = |name: &&str| text.contains(&format!("x86_64::{name}::"));
                let others = ["vmx", "svm"].iter().filter(|name| Some(*name) != inside);
                if text.contains("feature = \"svm\"") || others.into_iter().any(names) {
                    chosen.insert(path.strip_prefix(&back_end).expect("a file of the back end").to_owned());
                }
            }
        }
    }
    assert_eq!(chosen, BTreeSet::from(["mod.rs".into()]));
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
