//! Description of a VM in a file: a line each for a setting or a file to load.
//!
//! ```text
//! vcpus 2
//! memory 67108864
//! load /probe 524288
//! load /vm-2.dtb 33554432
//! entry 524288
//! tree 33554432
//! el2
//! long 16384
//! ```
//!
//! Numbers are in bytes; places are bytes from the beginning of RAM. `el2`: the VM has virtual EL2.
//! `long`: a PC's VM starts in 64-bit mode, with page tables there.

use crate::error::Error;

/// A VM to make.
#[derive(Default)]
pub struct Description {
    /// Virtual CPUs.
    pub vcpus: u8,
    /// RAM.
    pub memory: usize,
    /// Files, and where they go.
    pub loads: Vec<(String, usize)>,
    /// Start address of the first vCPU.
    pub entry: usize,
    /// Address of the device tree, or of another description of the machine.
    pub tree: usize,
    /// Whether the VM has virtual EL2, and starts there.
    pub el2: bool,
    /// Address of the page tables of a PC's VM that starts in 64-bit mode.
    pub long: Option<usize>,
}

impl Description {
    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut description = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["vcpus", count] => description.vcpus = count.parse()?,
                ["memory", bytes] => description.memory = bytes.parse()?,
                ["load", path, place] => description.loads.push(((*path).to_owned(), place.parse()?)),
                ["entry", place] => description.entry = place.parse()?,
                ["el2"] => description.el2 = true,
                ["long", place] => description.long = Some(place.parse()?),
                ["tree", place] => description.tree = place.parse()?,
                _ => return Err(format!("what is {line:?}?").into()),
            }
        }
        Ok(description)
    }
}
