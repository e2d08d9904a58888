//! The configuration file of the boot medium, as a device-tree node.

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};

use crate::tree_writer::TreeWriter;

/// Name of the node in the root, and of its property with the file's bytes.
const NODE: &str = "stile-configuration";
const PROPERTY: &str = "text";

/// Returns the file's bytes, if the tree has them.
pub fn read<'a>(tree: &Fdt<'a>) -> Option<&'a [u8]> {
    let node = tree.root().children().find(|node| node.name() == NODE)?;
    node.property(PROPERTY)?.value_as().ok()
}

/// Writes the node.
pub(crate) fn write(text: &[u8], tree: &mut TreeWriter<'_>) {
    tree.begin(NODE);
    tree.data(PROPERTY, text);
    tree.end();
}
