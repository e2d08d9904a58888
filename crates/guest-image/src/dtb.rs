//! The guests' device tree: the board of [`stile_board`], in the bindings of QEMU's `virt` machine.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use stile_blob::{Gic, Topology};
use stile_board::{MAX_VCPUS, intid, map, mpidr, redistributors};
use vm_fdt::{FdtWriter, FdtWriterNode, FdtWriterResult};

use super::domain::{self, Domain};
use super::fdt::{GIC_PPI, GIC_SPI, LEVEL_HIGH, string_list};
use super::served;

/// The variable parts of a guest's device tree.
#[derive(Clone, Debug)]
pub struct Description<'a> {
    /// RAM in bytes.
    pub memory: u64,
    /// Guest-physical addresses of disks in memory.
    pub disks: Vec<Range<u64>>,
    /// Virtual CPUs: 1 to [`MAX_VCPUS`].
    pub vcpus: u16,
    /// Topology that the guest sees, if configured.
    pub topology: Option<Topology>,
    /// Whether it has an EL2: firmware is called by SMC, and there are EL2's timers and the GIC's maintenance
    /// interrupt.
    pub el2: bool,
    /// The kernel's command line.
    pub bootargs: &'a str,
    /// Guest-physical addresses of the initial RAM file system.
    pub initrd: Option<Range<u64>>,
    /// The seed of the guest's random numbers, if there is one.
    pub seed: Option<[u8; SEED_LEN]>,
    /// Whether it has a PCI host bridge, and a frame that turns messages into interrupts.
    pub pci: bool,
    /// Whether there is flash for the variables of firmware.
    pub flash: bool,
    /// Virtio devices that other VMs serve.
    pub served: usize,
    /// Devices that it serves.
    pub serves: usize,
    /// The interrupt controller.
    pub gic: Gic,
    /// The domains that it starts, if it is Xen.
    pub domains: Vec<Domain<'a>>,
}

/// Bytes of [`Description::seed`]: eight for the kernel's place in its address space, the rest for its random number generator.
pub const SEED_LEN: usize = 40;

/// Node of the console: the first serial port, to which the kernel prints.
pub const CONSOLE: &str = "/pl011@9000000";

/// Phandle of the interrupt controller.
pub const GIC: u32 = 1;
const CLOCK: u32 = 2;
const MSI_FRAME: u32 = 3;
const ITS: u32 = 4;
/// The first virtual CPU; the others follow.
const FIRST_CPU: u32 = 16;

/// Builds the flattened device tree; its length does not depend on addresses.
///
/// # Errors
/// Only if the command line contains a NUL character, or there are too many CPUs.
pub fn build(description: &Description<'_>) -> FdtWriterResult<Vec<u8>> {
    let mut fdt = FdtWriter::new()?;
    let root = fdt.begin_node("")?;
    fdt.property_string("compatible", "linux,dummy-virt")?;
    fdt.property_string("model", "Stile virtual machine")?;
    fdt.property_u32("#address-cells", 2)?;
    fdt.property_u32("#size-cells", 2)?;
    fdt.property_u32("interrupt-parent", GIC)?;
    fdt.property_null("dma-coherent")?;

    let aliases = fdt.begin_node("aliases")?;
    fdt.property_string("serial0", CONSOLE)?;
    fdt.end_node(aliases)?;

    chosen(&mut fdt, description)?;

    let memory = fdt.begin_node(&format!("memory@{:x}", map::RAM_BASE))?;
    fdt.property_string("device_type", "memory")?;
    fdt.property_array_u64("reg", &[map::RAM_BASE, description.memory])?;
    fdt.end_node(memory)?;
    for disk in &description.disks {
        memory_disk(&mut fdt, disk)?;
    }

    cpus(&mut fdt, usize::from(description.vcpus), description.topology)?;
    psci(&mut fdt, if description.el2 { "smc" } else { "hvc" })?;
    timer(&mut fdt, description.el2)?;
    interrupt_controller(&mut fdt, description)?;

    let clock = fdt.begin_node("apb-pclk")?;
    fdt.property_string("compatible", "fixed-clock")?;
    fdt.property_u32("#clock-cells", 0)?;
    fdt.property_u32("clock-frequency", map::PL011_CLOCK_HZ)?;
    fdt.property_string("clock-output-names", "clk24mhz")?;
    fdt.property_phandle(CLOCK)?;
    fdt.end_node(clock)?;

    let uart = begin_uart(&mut fdt)?;
    fdt.property_array_u32("clocks", &[CLOCK, CLOCK])?;
    string_list(&mut fdt, "clock-names", &["uartclk", "apb_pclk"])?;
    fdt.end_node(uart)?;

    let rtc = fdt.begin_node(&format!("pl031@{:x}", map::PL031_BASE))?;
    string_list(&mut fdt, "compatible", &["arm,pl031", "arm,primecell"])?;
    fdt.property_array_u64("reg", &[map::PL031_BASE, map::PL031_SIZE])?;
    fdt.property_array_u32("interrupts", &[GIC_SPI, intid::PL031 - intid::SPI_BASE, LEVEL_HIGH])?;
    fdt.property_array_u32("clocks", &[CLOCK])?;
    fdt.property_string("clock-names", "apb_pclk")?;
    fdt.end_node(rtc)?;

    if description.flash {
        flash(&mut fdt)?;
    }
    if description.pci {
        host_bridge(&mut fdt, map::PCI_ECAM_BASE, [map::PCI_WINDOW_BASE, map::PCI_WINDOW_SIZE], 0, ITS)?;
    }
    if description.served != 0 {
        host_bridge(&mut fdt, map::VIRTIO_ECAM_BASE, [map::VIRTIO_WINDOW_BASE, map::VIRTIO_WINDOW_SIZE], 1, MSI_FRAME)?;
    }
    served::nodes(&mut fdt, description.serves)?;
    fdt.end_node(root)?;
    fdt.finish()
}

fn chosen(fdt: &mut FdtWriter, description: &Description<'_>) -> FdtWriterResult<()> {
    let chosen = fdt.begin_node("chosen")?;
    fdt.property_string("bootargs", description.bootargs)?;
    fdt.property_string("stdout-path", CONSOLE)?;
    if let Some(initrd) = &description.initrd {
        fdt.property_u64("linux,initrd-start", initrd.start)?;
        fdt.property_u64("linux,initrd-end", initrd.end)?;
    }
    if let Some((kaslr_seed, rng_seed)) = description.seed.as_ref().map(|seed| seed.split_at(8)) {
        fdt.property("kaslr-seed", kaslr_seed)?;
        fdt.property("rng-seed", rng_seed)?;
    }
    if !description.domains.is_empty() {
        fdt.property_u32("#address-cells", 2)?;
        fdt.property_u32("#size-cells", 2)?;
        // Linux's name for it belongs to the first domain.
        fdt.property_string("xen,xen-bootargs", description.bootargs)?;
    }
    for (index, domain) in description.domains.iter().enumerate() {
        domain::node(fdt, index + 1, domain)?;
    }
    fdt.end_node(chosen)
}

/// The node of the CPUs, which PSCI starts.
pub fn cpus(fdt: &mut FdtWriter, vcpus: usize, topology: Option<Topology>) -> FdtWriterResult<()> {
    let cpus = fdt.begin_node("cpus")?;
    fdt.property_u32("#address-cells", 1)?;
    fdt.property_u32("#size-cells", 0)?;
    for vcpu in 0..vcpus {
        let affinity = mpidr(vcpu) as u32;
        let cpu = fdt.begin_node(&format!("cpu@{affinity:x}"))?;
        fdt.property_string("device_type", "cpu")?;
        fdt.property_string("compatible", "arm,armv8")?;
        fdt.property_u32("reg", affinity)?;
        fdt.property_string("enable-method", "psci")?;
        if topology.is_some() {
            fdt.property_phandle(phandle(vcpu))?;
        }
        fdt.end_node(cpu)?;
    }
    if let Some(topology) = topology {
        cpu_map(fdt, topology)?;
    }
    fdt.end_node(cpus)
}

/// The phandle of a virtual CPU's node.
const fn phandle(vcpu: usize) -> u32 {
    FIRST_CPU + vcpu as u32
}

/// Topology of the CPUs (Linux, Documentation/devicetree/bindings/cpu/cpu-topology.txt). Each socket contains one
/// cluster.
fn cpu_map(fdt: &mut FdtWriter, topology: Topology) -> FdtWriterResult<()> {
    let map = fdt.begin_node("cpu-map")?;
    let mut vcpus = 0..;
    for socket in 0..topology.sockets {
        let socket = fdt.begin_node(&format!("socket{socket}"))?;
        let cluster = fdt.begin_node("cluster0")?;
        for core in 0..topology.cores {
            let core = fdt.begin_node(&format!("core{core}"))?;
            for (thread, vcpu) in (0..topology.threads).zip(&mut vcpus) {
                if topology.threads == 1 {
                    fdt.property_u32("cpu", phandle(vcpu))?;
                } else {
                    let thread = fdt.begin_node(&format!("thread{thread}"))?;
                    fdt.property_u32("cpu", phandle(vcpu))?;
                    fdt.end_node(thread)?;
                }
            }
            fdt.end_node(core)?;
        }
        fdt.end_node(cluster)?;
        fdt.end_node(socket)?;
    }
    fdt.end_node(map)
}

/// Writes the PSCI node for all three versions of its binding; the oldest has properties with function identifiers.
fn psci(fdt: &mut FdtWriter, method: &str) -> FdtWriterResult<()> {
    let psci = fdt.begin_node("psci")?;
    string_list(fdt, "compatible", &["arm,psci-1.0", "arm,psci-0.2", "arm,psci"])?;
    fdt.property_string("method", method)?;
    fdt.property_u32("cpu_suspend", 0xc400_0001)?;
    fdt.property_u32("cpu_off", 0x8400_0002)?;
    fdt.property_u32("cpu_on", 0xc400_0003)?;
    fdt.property_u32("migrate", 0xc400_0005)?;
    fdt.end_node(psci)
}

/// Node of the CPUs' timers; `el2`: with those of EL2.
pub fn timer(fdt: &mut FdtWriter, el2: bool) -> FdtWriterResult<()> {
    let timer = fdt.begin_node("timer")?;
    string_list(fdt, "compatible", &["arm,armv8-timer", "arm,armv7-timer"])?;
    let mut interrupts = vec![intid::TIMER_SECURE, intid::TIMER_EL1_PHYSICAL, intid::TIMER_EL1_VIRTUAL, intid::TIMER_EL2_PHYSICAL];
    if el2 {
        interrupts.push(intid::TIMER_EL2_VIRTUAL);
    }
    let cells: Vec<u32> = interrupts.iter().flat_map(|intid| [GIC_PPI, intid - intid::PPI_BASE, LEVEL_HIGH]).collect();
    fdt.property_array_u32("interrupts", &cells)?;
    fdt.property_null("always-on")?;
    fdt.end_node(timer)
}

/// Begins the node of the console, which the caller may add to, and ends.
pub fn begin_uart(fdt: &mut FdtWriter) -> FdtWriterResult<FdtWriterNode> {
    let uart = fdt.begin_node(CONSOLE.trim_start_matches('/'))?;
    string_list(fdt, "compatible", &["arm,pl011", "arm,primecell"])?;
    fdt.property_array_u64("reg", &[map::PL011_BASE, map::PL011_SIZE])?;
    fdt.property_array_u32("interrupts", &[GIC_SPI, intid::PL011 - intid::SPI_BASE, LEVEL_HIGH])?;
    Ok(uart)
}

/// Begins the node of the interrupt controller, which the caller may add to, and ends. `registers`: addresses and sizes,
/// those of GICD first; `el2`: with the maintenance interrupt.
pub fn begin_gic(fdt: &mut FdtWriter, flavour: Gic, registers: &[u64], el2: bool) -> FdtWriterResult<FdtWriterNode> {
    let gic = fdt.begin_node(&format!("intc@{:x}", map::GICD_BASE))?;
    fdt.property_string("compatible", if flavour == Gic::V2 { "arm,cortex-a15-gic" } else { "arm,gic-v3" })?;
    fdt.property_null("interrupt-controller")?;
    fdt.property_u32("#interrupt-cells", 3)?;
    fdt.property_array_u64("reg", registers)?;
    if el2 {
        fdt.property_array_u32("interrupts", &[GIC_PPI, intid::GIC_MAINTENANCE - intid::PPI_BASE, LEVEL_HIGH])?;
    }
    fdt.property_phandle(GIC)?;
    Ok(gic)
}

fn interrupt_controller(fdt: &mut FdtWriter, description: &Description<'_>) -> FdtWriterResult<()> {
    let vcpus = usize::from(description.vcpus).min(MAX_VCPUS);
    let registers = match description.gic {
        Gic::V2 => vec![map::GICD_BASE, map::GICV2_GICD_SIZE, map::GICC_BASE, map::GICC_SIZE],
        Gic::V3 => {
            let used = redistributors(vcpus).into_iter().filter(|(_, vcpus)| !vcpus.is_empty());
            let regions = used.flat_map(|(base, vcpus)| [base, vcpus.len() as u64 * map::GICR_STRIDE]);
            [map::GICD_BASE, map::GICD_SIZE].into_iter().chain(regions).collect()
        }
    };
    let gic = begin_gic(fdt, description.gic, &registers, description.el2)?;
    if description.gic == Gic::V3 {
        fdt.property_u32("#redistributor-regions", registers.len() as u32 / 2 - 1)?;
    }
    fdt.property_u32("#address-cells", 2)?;
    fdt.property_u32("#size-cells", 2)?;
    fdt.property_null("ranges")?;
    if description.pci {
        let its = fdt.begin_node(&format!("msi-controller@{:x}", map::ITS_BASE))?;
        fdt.property_string("compatible", "arm,gic-v3-its")?;
        fdt.property_null("msi-controller")?;
        fdt.property_u32("#msi-cells", 1)?;
        fdt.property_array_u64("reg", &[map::ITS_BASE, map::ITS_SIZE])?;
        fdt.property_phandle(ITS)?;
        fdt.end_node(its)?;
    }
    if description.served != 0 {
        let frame = fdt.begin_node(&format!("v2m@{:x}", map::MSI_FRAME_BASE))?;
        fdt.property_string("compatible", "arm,gic-v2m-frame")?;
        fdt.property_null("msi-controller")?;
        fdt.property_array_u64("reg", &[map::MSI_FRAME_BASE, map::MSI_FRAME_SIZE])?;
        fdt.property_u32("arm,msi-base-spi", intid::MSI_BASE)?;
        fdt.property_u32("arm,msi-num-spis", intid::MSI_COUNT)?;
        fdt.property_phandle(MSI_FRAME)?;
        fdt.end_node(frame)?;
    }
    fdt.end_node(gic)
}

/// A disk in memory (Linux, Documentation/devicetree/bindings/pmem/pmem-region.yaml). `volatile`: it does not persist, so that Linux
/// flushes no caches for it.
fn memory_disk(fdt: &mut FdtWriter, region: &Range<u64>) -> FdtWriterResult<()> {
    let disk = fdt.begin_node(&format!("pmem@{:x}", region.start))?;
    fdt.property_string("compatible", "pmem-region")?;
    fdt.property_null("volatile")?;
    fdt.property_array_u64("reg", &[region.start, region.end - region.start])?;
    fdt.end_node(disk)
}

/// The flash: two chips of 16 bits side by side.
fn flash(fdt: &mut FdtWriter) -> FdtWriterResult<()> {
    let flash = fdt.begin_node(&format!("flash@{:x}", map::FLASH_BASE))?;
    fdt.property_string("compatible", "cfi-flash")?;
    fdt.property_array_u64("reg", &[map::FLASH_BASE, map::FLASH_SIZE])?;
    fdt.property_u32("bank-width", 4)?;
    fdt.end_node(flash)
}

/// A PCI host bridge: bus 0 only, one window of memory, messages through an MSI controller.
fn host_bridge(fdt: &mut FdtWriter, ecam: u64, [base, size]: [u64; 2], domain: u32, messages: u32) -> FdtWriterResult<()> {
    /// First cell of an address in a 32-bit window of memory.
    const MEMORY32: u32 = 0x0200_0000;
    let words = |value: u64| [(value >> 32) as u32, value as u32];
    let bridge = fdt.begin_node(&format!("pcie@{ecam:x}"))?;
    fdt.property_string("compatible", "pci-host-ecam-generic")?;
    fdt.property_string("device_type", "pci")?;
    fdt.property_array_u64("reg", &[ecam, map::PCI_ECAM_SIZE])?;
    fdt.property_array_u32("bus-range", &[0, 0])?;
    fdt.property_u32("linux,pci-domain", domain)?;
    fdt.property_u32("#address-cells", 3)?;
    fdt.property_u32("#size-cells", 2)?;
    fdt.property_array_u32("ranges", &[&[MEMORY32][..], &words(base), &words(base), &words(size)].concat())?;
    fdt.property_array_u32("msi-map", &[0, messages, 0, 0x1_0000])?;
    fdt.property_null("dma-coherent")?;
    fdt.end_node(bridge)
}
