//! The modules of a crate, as its source files declare them: items, bindings of `use`, and the paths that they name.
//!
//! Tests are left out: an item under a `cfg` that mentions `test`, and what it contains.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, UseTree, Visibility};

/// A name that `use` binds in a module.
pub struct Binding {
    /// The path, from `crate`, `self`, `super` or a name in scope.
    pub path: Vec<String>,
    /// Whether other modules can name it: `pub`, also within the crate.
    pub is_reexport: bool,
}

/// A module, in a separate file or inline.
pub struct Module {
    /// The file with its items.
    pub file: PathBuf,
    /// Index of the parent; the root's is its own.
    pub parent: usize,
    /// Child modules by name; several if each target has a separate one.
    pub children: BTreeMap<String, Vec<usize>>,
    /// Names that its items define.
    pub items: BTreeSet<String>,
    /// Bindings of `use`.
    pub bindings: Vec<(String, Binding)>,
    /// `use path::*`.
    pub globs: Vec<Binding>,
    /// Paths in its items, `use` excepted; also within macros' arguments. Single names included.
    pub paths: BTreeSet<Vec<String>>,
}

/// A crate: the root is the first module.
pub struct Tree {
    /// All modules.
    pub modules: Vec<Module>,
}

impl Tree {
    /// Reads a crate.
    pub fn read(root: &Path) -> Self {
        let mut tree = Self { modules: Vec::new() };
        let folder = root.parent().expect("a folder").to_owned();
        tree.add_file(root, folder, 0);
        tree
    }

    /// A crate of one file, for tests.
    pub fn parse(text: &str) -> Self {
        let mut tree = Self { modules: Vec::new() };
        let file = syn::parse_file(text).expect("valid Rust");
        tree.add(file.items, Path::new("lib.rs"), Path::new("src"), 0);
        tree
    }

    fn add_file(&mut self, file: &Path, folder: PathBuf, parent: usize) -> usize {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(parsed.items, file, &folder, parent)
    }

    /// Adds a module whose children are in `folder`.
    fn add(&mut self, items: Vec<Item>, file: &Path, folder: &Path, parent: usize) -> usize {
        let index = self.modules.len();
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            bindings: Vec::new(),
            globs: Vec::new(),
            paths: BTreeSet::new(),
        });
        for item in items {
            if attributes(&item).iter().any(is_test) {
                continue;
            }
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let folder = folder.join(&name);
                    let child = match module.content {
                        Some((_, items)) => vec![self.add(items, file, &folder, index)],
                        None => self.add_files(&module.attrs, file, &folder, index),
                    };
                    self.modules[index].children.entry(name).or_default().extend(child);
                }
                Item::Use(item) => {
                    let is_reexport = !matches!(item.vis, Visibility::Inherited);
                    bind(&mut self.modules[index], &item.tree, &mut Vec::new(), is_reexport);
                }
                item => {
                    self.modules[index].items.extend(name_of(&item));
                    paths_in(item.to_token_stream(), &mut self.modules[index].paths);
                }
            }
        }
        index
    }

    /// Adds `mod name;`: the file or files, if `path` attributes choose one for each target.
    fn add_files(&mut self, attributes: &[Attribute], declared_in: &Path, folder: &Path, parent: usize) -> Vec<usize> {
        let beside = declared_in.parent().expect("a folder");
        let chosen: Vec<PathBuf> = attributes.iter().filter_map(path_attribute).map(|path| beside.join(path)).collect();
        if !chosen.is_empty() {
            return chosen.iter().map(|file| self.add_file(file, file.parent().expect("a folder").to_owned(), parent)).collect();
        }
        let (flat, nested) = (folder.with_extension("rs"), folder.join("mod.rs"));
        let file = if flat.exists() { flat } else { nested };
        vec![self.add_file(&file, folder.to_owned(), parent)]
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name that an item defines.
fn name_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        _ => return None,
    })
}

/// `cfg(test)`, alone or in a condition.
fn is_test(attribute: &Attribute) -> bool {
    let mut names = BTreeSet::new();
    if attribute.path().is_ident("cfg") {
        paths_in(attribute.meta.to_token_stream(), &mut names);
    }
    names.contains(&vec!["test".to_owned()])
}

/// The file of `path = "..."`, also in `cfg_attr`.
fn path_attribute(attribute: &Attribute) -> Option<String> {
    let text = attribute.meta.to_token_stream().to_string();
    let (_, value) = text.rsplit_once("path = \"")?;
    Some(value.split('"').next().unwrap_or_default().to_owned())
}

/// Adds what a `use` declaration binds.
fn bind(module: &mut Module, tree: &UseTree, prefix: &mut Vec<String>, is_reexport: bool) {
    let mut add = |name: String, path: Vec<String>| module.bindings.push((name, Binding { path, is_reexport }));
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            bind(module, &path.tree, prefix, is_reexport);
            prefix.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| bind(module, tree, prefix, is_reexport)),
        UseTree::Name(name) if name.ident == "self" => add(prefix.last().cloned().unwrap_or_default(), prefix.clone()),
        UseTree::Name(name) => add(name.ident.to_string(), [prefix.as_slice(), &[name.ident.to_string()]].concat()),
        UseTree::Rename(rename) if rename.ident == "self" => add(rename.rename.to_string(), prefix.clone()),
        UseTree::Rename(rename) => add(rename.rename.to_string(), [prefix.as_slice(), &[rename.ident.to_string()]].concat()),
        UseTree::Glob(_) => module.globs.push(Binding { path: prefix.clone(), is_reexport }),
    }
}

/// Adds the paths in tokens: `a`, `a::b`, and `a::{b, c}` of a `use` within a function.
fn paths_in(tokens: TokenStream, paths: &mut BTreeSet<Vec<String>>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_punct = |index: usize, wanted: char| matches!(tokens.get(index), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted);
    let is_separator = |index: usize| is_punct(index, ':') && is_punct(index + 1, ':');
    let mut index = 0;
    while index < tokens.len() {
        match &tokens[index] {
            // A field, a method, or a name from another crate.
            TokenTree::Punct(_) if is_punct(index, '.') && !is_punct(index + 1, '.') => index += 1,
            TokenTree::Punct(_) if is_separator(index) => index += 2,
            TokenTree::Group(group) => paths_in(group.stream(), paths),
            TokenTree::Ident(first) => {
                let mut path = vec![first.to_string()];
                while is_separator(index + 1) {
                    match tokens.get(index + 3) {
                        Some(TokenTree::Ident(next)) => path.push(next.to_string()),
                        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                            let mut ends = BTreeSet::new();
                            paths_in(group.stream(), &mut ends);
                            paths.extend(ends.into_iter().map(|end| [path.as_slice(), &end].concat()));
                            index += 3;
                            break;
                        }
                        _ => break,
                    }
                    index += 3;
                }
                paths.insert(path);
            }
            _ => {}
        }
        index += 1;
    }
}
