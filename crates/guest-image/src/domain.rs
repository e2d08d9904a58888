//! Device tree node of a virtual machine that Xen starts itself ("dom0less"): Xen, "Device Tree Bindings",
//! "Dom0less".

use alloc::format;
use core::ops::Range;

use vm_fdt::{FdtWriter, FdtWriterResult};

use super::fdt::string_list;

/// The domain. Its only device is the UART that Xen emulates.
#[derive(Clone, Debug)]
pub struct Domain<'a> {
    /// Virtual CPUs.
    pub vcpus: u16,
    /// RAM in bytes.
    pub memory: u64,
    /// Address range of its kernel in Xen's RAM.
    pub image: Range<u64>,
    /// The kernel's command line.
    pub bootargs: &'a str,
}

/// Writes the domain's node into `/chosen`, which has two address cells and two size cells.
///
/// # Errors
/// Only if the command line contains a NUL character.
pub fn node(fdt: &mut FdtWriter, number: usize, domain: &Domain<'_>) -> FdtWriterResult<()> {
    let node = fdt.begin_node(&format!("domain{number}"))?;
    fdt.property_string("compatible", "xen,domain")?;
    fdt.property_u32("#address-cells", 2)?;
    fdt.property_u32("#size-cells", 2)?;
    // In KiB.
    fdt.property_u64("memory", domain.memory >> 10)?;
    fdt.property_u32("cpus", domain.vcpus.into())?;
    fdt.property_null("vpl011")?;

    let kernel = fdt.begin_node(&format!("module@{:x}", domain.image.start))?;
    string_list(fdt, "compatible", &["multiboot,kernel", "multiboot,module"])?;
    fdt.property_array_u64("reg", &[domain.image.start, domain.image.end - domain.image.start])?;
    fdt.property_string("bootargs", domain.bootargs)?;
    fdt.end_node(kernel)?;

    fdt.end_node(node)
}
