//! Properties of device trees.

use vm_fdt::{FdtWriter, FdtWriterResult};

/// Writes a property that is a list of strings.
pub fn string_list(fdt: &mut FdtWriter, name: &str, values: &[&str]) -> FdtWriterResult<()> {
    fdt.property_string_list(name, values.iter().map(|value| (*value).to_owned()).collect())
}
