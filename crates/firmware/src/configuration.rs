//! The configuration file of the boot medium and the files that it names, as a device-tree node.

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};

use crate::boot_files::Block;
use crate::nodes::cells;
use crate::tree_writer::TreeWriter;

/// Name of the node in the root, and of its properties with the file's bytes, and the block's words.
const NODE: &str = "stile-configuration";
const TEXT: &str = "text";
const FILES: &str = "files";

/// Files of the medium from which Stile was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootMedium<'a> {
    /// The configuration file. `None` if firmware can't read it.
    pub text: Option<&'a [u8]>,
    /// Memory with the files that it names.
    pub files: Option<Block>,
}

/// Returns what the tree has of the boot medium.
pub fn read<'a>(tree: &Fdt<'a>) -> Option<BootMedium<'a>> {
    let node = tree.root().children().find(|node| node.name() == NODE)?;
    let word = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let files = match cells(&node, FILES)[..] {
        [a, b, c, d] => Some(Block::from_words(word(a, b), word(c, d))),
        _ => None,
    };
    Some(BootMedium { text: node.property(TEXT).and_then(|text| text.value_as().ok()), files })
}

/// Writes the node.
pub(crate) fn write(medium: &BootMedium<'_>, tree: &mut TreeWriter<'_>) {
    tree.begin(NODE);
    if let Some(text) = medium.text {
        tree.data(TEXT, text);
    }
    if let Some(files) = &medium.files {
        let [start, end] = files.words();
        tree.cells(FILES, &[(start >> 32) as u32, start as u32, (end >> 32) as u32, end as u32]);
    }
    tree.end();
}
