//! A flattened device tree as text, for tests here and in `bench`.

use std::fmt::Write as _;

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};

/// A node as source: string values as text, others as cells.
fn dump(node: FdtNode<'_>, depth: usize, text: &mut String) {
    let indent = "    ".repeat(depth);
    let _ = writeln!(text, "{indent}{} {{", if node.name().is_empty() { "/" } else { node.name() });
    for property in node.properties() {
        let value = property.value();
        let printable = value.iter().all(|&byte| byte == 0 || (0x20..0x7f).contains(&byte));
        let shown = if value.is_empty() {
            String::new()
        } else if printable && value.ends_with(b"\0") && value[0] != 0 {
            let strings = value[..value.len() - 1].split(|&byte| byte == 0);
            let strings: Vec<_> = strings.map(|part| format!("\"{}\"", part.escape_ascii())).collect();
            format!(" = {}", strings.join(", "))
        } else {
            let cells = value.chunks(4).map(|cell| cell.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
            format!(" = <{}>", cells.collect::<Vec<_>>().join(" "))
        };
        let _ = writeln!(text, "{indent}    {}{shown};", property.name());
    }
    for child in node.children() {
        dump(child, depth + 1, text);
    }
    let _ = writeln!(text, "{indent}}};");
}

/// A flattened tree as source.
pub fn source(bytes: &[u8]) -> String {
    let tree = Fdt::new(bytes).expect("a tree");
    let mut text = String::new();
    dump(tree.find_node("/").expect("the root"), 0, &mut text);
    text
}
