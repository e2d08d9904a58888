//! The import graph: an edge from file A to file B for each name that A takes and B defines.
//!
//! `mod child;` alone is not an import, nor is `pub use child::X` unless the module itself names `X`: a module that takes `X` from the parent imports
//! the child. A child that names its parent's items, while the parent names the child's, forms a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::tree::{Binding, Tree};

/// The names that each file takes from each other file.
pub type Edges = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// Maximum number of re-exports followed: a `use` may refer to itself in a cycle.
const DEPTH: u32 = 16;

/// The imports of a crate.
pub fn edges(tree: &Tree) -> Edges {
    let mut edges = Edges::new();
    for (index, module) in tree.modules.iter().enumerate() {
        let mut add = |found: BTreeSet<(usize, String)>| {
            for (target, name) in found {
                let (from, to) = (&module.file, &tree.modules[target].file);
                if from != to {
                    edges.entry((from.clone(), to.clone())).or_default().insert(name);
                }
            }
        };
        let is_named = |name: &str| module.paths.iter().any(|path| path[0] == name);
        let imports = module.bindings.iter().filter(|(name, binding)| !binding.is_reexport || is_named(name));
        imports.for_each(|(_, binding)| add(resolve(tree, index, &binding.path, DEPTH)));
        for glob in module.globs.iter().filter(|glob| !glob.is_reexport) {
            add(modules_at(tree, index, &glob.path).into_iter().map(|target| (target, "*".to_owned())).collect());
        }
        module.paths.iter().for_each(|path| add(resolve(tree, index, path, DEPTH)));
    }
    edges
}

/// The modules that a path names; none where it names something else.
fn modules_at(tree: &Tree, from: usize, path: &[String]) -> Vec<usize> {
    let mut modules = vec![from];
    for (position, segment) in path.iter().enumerate() {
        modules = modules
            .into_iter()
            .flat_map(|module| match segment.as_str() {
                "crate" => vec![0],
                "self" => vec![module],
                "super" => vec![tree.modules[module].parent],
                name => match tree.modules[module].children.get(name) {
                    Some(children) => children.clone(),
                    None => {
                        let bindings = tree.modules[module].bindings.iter().filter(|(bound, _)| bound == name);
                        // The binding of a name that is its own path's first segment is another crate.
                        let bindings = bindings.filter(|(_, binding)| binding.path[0] != name || position > 0);
                        bindings.flat_map(|(_, binding)| modules_at(tree, module, &binding.path)).collect()
                    }
                },
            })
            .collect();
    }
    modules
}

/// Resolves a path to its items: the module that defines each, and its name. Modules are not items.
fn resolve(tree: &Tree, from: usize, path: &[String], depth: u32) -> BTreeSet<(usize, String)> {
    let mut found = BTreeSet::new();
    if depth == 0 {
        return found;
    }
    let (first, rest) = path.split_first().expect("a path has segments");
    let (starts, rest): (Vec<usize>, &[String]) = match first.as_str() {
        "crate" => (vec![0], rest),
        "self" => (vec![from], rest),
        "super" => (vec![tree.modules[from].parent], rest),
        _ => {
            return if knows(tree, from, first) { lookup(tree, from, path, depth) } else { through_globs(tree, from, path, depth) };
        }
    };
    if let (Some(next), [start]) = (rest.first(), starts.as_slice()) {
        if matches!(next.as_str(), "self" | "super") {
            return resolve(tree, *start, rest, depth);
        }
        let items = lookup(tree, *start, rest, depth);
        let items = if items.is_empty() && !knows(tree, *start, next) { through_globs(tree, *start, rest, depth) } else { items };
        // A macro defines what is nowhere to be seen.
        let generated = items.is_empty() && !knows(tree, *start, next);
        found.extend(if generated { BTreeSet::from([(*start, next.clone())]) } else { items });
    }
    found
}

fn knows(tree: &Tree, module: usize, name: &str) -> bool {
    let module = &tree.modules[module];
    module.items.contains(name) || module.children.contains_key(name) || module.bindings.iter().any(|(bound, _)| bound == name)
}

/// The items that a path names, from a name in a module's own scope.
fn lookup(tree: &Tree, from: usize, path: &[String], depth: u32) -> BTreeSet<(usize, String)> {
    let module = &tree.modules[from];
    let (name, rest) = path.split_first().expect("a path has segments");
    let mut found = BTreeSet::new();
    // The path continues in the module if a function has the same name.
    let is_module = !rest.is_empty() && module.children.contains_key(name);
    if module.items.contains(name) && !is_module {
        found.insert((from, name.clone()));
    }
    for &child in module.children.get(name).into_iter().flatten().filter(|_| is_module) {
        let path = [&["self".to_owned()], rest].concat();
        found.extend(resolve(tree, child, &path, depth - 1));
    }
    for (_, Binding { path: bound, .. }) in module.bindings.iter().filter(|(bound, _)| bound == name && !is_module) {
        // `use name;` of another crate binds the name to itself.
        if bound.len() > 1 || bound[0] != *name {
            found.extend(resolve(tree, from, &[bound, rest].concat(), depth - 1));
        }
    }
    found
}

/// The items that a path names by way of `use path::*`.
fn through_globs(tree: &Tree, from: usize, path: &[String], depth: u32) -> BTreeSet<(usize, String)> {
    let globs = tree.modules[from].globs.iter();
    let targets: BTreeSet<usize> = globs.flat_map(|glob| modules_at(tree, from, &glob.path)).filter(|&target| target != from).collect();
    let mut found = BTreeSet::new();
    for target in targets {
        if knows(tree, target, &path[0]) {
            found.extend(lookup(tree, target, path, depth - 1));
        } else {
            found.extend(through_globs_at(tree, target, path, depth));
        }
    }
    found
}

fn through_globs_at(tree: &Tree, target: usize, path: &[String], depth: u32) -> BTreeSet<(usize, String)> {
    if depth > 1 { through_globs(tree, target, path, depth - 1) } else { BTreeSet::new() }
}

/// Strongly connected components of two files or more: each file of one imports every other, directly or through others.
pub fn cycles(edges: &Edges) -> Vec<BTreeSet<PathBuf>> {
    let mut forward: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    let mut backward: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        forward.entry(from).or_default().push(to);
        backward.entry(to).or_default().push(from);
    }
    let mut cycles = Vec::new();
    let mut done = BTreeSet::new();
    for &file in forward.keys() {
        if !done.contains(file) {
            let group: BTreeSet<&Path> = reached(&forward, file).intersection(&reached(&backward, file)).copied().collect();
            done.extend(group.iter().copied());
            cycles.extend((group.len() > 1).then(|| group.into_iter().map(Path::to_owned).collect()));
        }
    }
    cycles
}

/// Whether a file imports another, directly or through others, without the imports in `left_out`.
pub fn reaches(edges: &Edges, left_out: &BTreeSet<(PathBuf, PathBuf)>, from: &Path, to: &Path) -> bool {
    let mut next: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for (from, to) in edges.keys().filter(|edge| !left_out.contains(edge)) {
        next.entry(from).or_default().push(to);
    }
    reached(&next, from).contains(to)
}

/// The files that `start` reaches, itself included.
fn reached<'a>(next: &BTreeMap<&'a Path, Vec<&'a Path>>, start: &'a Path) -> BTreeSet<&'a Path> {
    let mut seen = BTreeSet::from([start]);
    let mut open = vec![start];
    while let Some(file) = open.pop() {
        open.extend(next.get(file).into_iter().flatten().copied().filter(|file| seen.insert(file)));
    }
    seen
}

/// A small set of imports without which there is no cycle: those that go up in an order of files chosen greedily (P. Eades, X. Lin,
/// W. F. Smyth, "A fast and effective heuristic for the feedback arc set problem", 1993), less those that close no cycle.
pub fn upward(edges: &Edges) -> BTreeSet<(PathBuf, PathBuf)> {
    let cycles = cycles(edges);
    let inside = |from: &Path, to: &Path| cycles.iter().any(|cycle| cycle.contains(from) && cycle.contains(to));
    let inside: BTreeSet<(&Path, &Path)> =
        edges.keys().map(|(from, to)| (from.as_path(), to.as_path())).filter(|(from, to)| inside(from, to)).collect();
    let mut files: BTreeSet<&Path> = cycles.iter().flatten().map(PathBuf::as_path).collect();
    let (mut top, mut bottom) = (Vec::new(), Vec::new());
    while !files.is_empty() {
        let imports = |file: &Path| inside.iter().filter(|(from, to)| *from == file && files.contains(to)).count() as i64;
        let importers = |file: &Path| inside.iter().filter(|(from, to)| *to == file && files.contains(from)).count() as i64;
        let sink = files.iter().copied().find(|file| imports(file) == 0);
        let next = sink.or_else(|| files.iter().copied().max_by_key(|file| imports(file) - importers(file)));
        let Some(next) = next else { break };
        if sink.is_some() {
            bottom.push(next)
        } else {
            top.push(next)
        }
        files.remove(next);
    }
    let order: BTreeMap<&Path, usize> = top.into_iter().chain(bottom.into_iter().rev()).zip(0..).collect();
    let mut upward: BTreeSet<(PathBuf, PathBuf)> =
        inside.iter().filter(|(from, to)| order[from] > order[to]).map(|(from, to)| (from.to_path_buf(), to.to_path_buf())).collect();
    for edge in upward.clone() {
        upward.remove(&edge);
        // Without any of them the graph is acyclic, so this one closes a cycle if its end reaches its start.
        if reaches(edges, &upward, &edge.1, &edge.0) {
            upward.insert(edge);
        }
    }
    upward
}
