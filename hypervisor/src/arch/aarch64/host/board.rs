//! The board, as described by its device tree (Devicetree Specification; bindings `arm,gic-v3`, `arm,armv8-timer`,
//! `arm,psci`). Stile has no constants for boards.

use dtoolkit::Node;
use dtoolkit::fdt::{Fdt, FdtNode};
use heapless::Vec;
use stile_board::MAX_CPUS;
use stile_paging::PAGE_SIZE;

use super::pcie::HostBridge;
use crate::address_space::Span;
use crate::once::Once;
use stile_firmware::arm_pci::PROBE_ONLY;
use stile_firmware::configuration::{self, BootMedium};
use stile_firmware::described;
use stile_firmware::frame_buffer::{self, FrameBuffer};
use stile_firmware::gicv2::Gicv2;
use stile_firmware::nodes::{
    affinity, bank, capacity, cells, exclude, find_each_and, intid, is_enabled, registers, spans, spin_table, text, walk,
};
use stile_firmware::numa::Numa;
use stile_firmware::pci_map;
use stile_firmware::serial::{MOST_PORTS, Ports, SerialPort};

/// Names in `compatible` of the nodes that [`Board::new`] searches for.
const COMPATIBLE: [&str; 11] = [
    "arm,pl031",
    frame_buffer::COMPATIBLE,
    "arm,gic-v3-its",
    "pci-host-ecam-generic",
    "arm,smmu-v3",
    "arm,psci-1.0",
    "arm,psci-0.2",
    "arm,psci",
    "brcm,bcm2835-pm-wdt",
    "arm,gic-v3",
    "arm,armv8-timer",
];

const GIC_IN_MEMORY: &str = "the device tree is contradictory: it has the registers of the GIC in memory";
const NO_GIC: &str = "the device tree has neither a GICv3 nor a GICv2 with virtualization extensions";

static BOARD: Once<Board> = Once::new();

/// Publishes the board, once during boot.
pub fn set(board: Board) -> &'static Board {
    BOARD.set(board);
    BOARD.get()
}

/// Returns the board.
pub fn get() -> &'static Board {
    BOARD.get()
}

/// Conduit of firmware calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Conduit {
    /// SMC.
    Smc,
    /// HVC: Stile runs under another hypervisor.
    Hvc,
}

/// A device with registers and one interrupt.
#[derive(Clone)]
pub struct Device {
    /// Registers.
    pub registers: Span,
    /// Physical INTID, if any.
    pub intid: Option<u32>,
    /// Its memory accesses are cache-coherent, even if its registers do not say so.
    pub is_coherent: bool,
}

/// An interrupt controller.
pub enum Gic {
    /// GICv3.
    V3 {
        /// Distributor.
        gicd: Span,
        /// Redistributors.
        gicr: Vec<Span, 8>,
    },
    /// GICv2.
    V2(Gicv2),
}

impl Gic {
    /// All registers.
    fn regions(&self) -> impl Iterator<Item = &Span> {
        let (first, others): (_, &[Span]) = match self {
            // Four, as below.
            Gic::V3 { gicd, gicr } => ([gicd; 4], gicr),
            Gic::V2(gic) => ([&gic.gicd, &gic.gicc, &gic.gich, &gic.gicv], &[]),
        };
        first.into_iter().chain(others)
    }
}

/// Whether a region has a part in one of `banks`.
fn overlaps(banks: &[Span], region: &Span) -> bool {
    banks.iter().any(|bank| bank.start < region.end && region.start < bank.end)
}

/// Description of the board.
pub struct Board {
    /// Name, for the log.
    pub model: &'static str,
    /// RAM: whole pages, without overlap.
    pub ram: Vec<Span, 16>,
    /// Parts of RAM that Stile must not use.
    pub reserved: Vec<Span, 96>,
    /// The device tree has more reservations than `reserved` can hold: Stile must not start.
    pub reserves_more: bool,
    /// MPIDR affinities of the CPUs; the boot CPU is first.
    pub cpus: Vec<u64, MAX_CPUS>,
    /// Capacities of CPUs (`capacity-dmips-mhz`), by their affinities, if the board states them.
    capacities: Vec<(u64, u32), MAX_CPUS>,
    /// Nodes of memory and CPUs.
    pub numa: Numa,
    /// PSCI conduit.
    pub psci: Option<Conduit>,
    /// Spin tables: affinities of CPUs without PSCI, and the physical addresses of the 64-bit words (`cpu-release-addr`) in
    /// which they wait for the address at which they start.
    releases: Vec<(u64, u64), MAX_CPUS>,
    /// Power management of a Broadcom SoC (binding `brcm,bcm2835-pm-wdt`), which turns off a board without PSCI.
    pub power: Option<Span>,
    /// Serial ports, in the order in which they are tried.
    pub ports: Vec<SerialPort, MOST_PORTS>,
    /// Console: the first usable one of [`Self::ports`].
    pub uart: Option<SerialPort>,
    /// Real-time clock (Arm PL031).
    pub rtc: Option<Device>,
    /// The firmware's frame buffer.
    pub frame_buffer: Option<FrameBuffer>,
    /// Unix time at boot, if the device tree was generated from ACPI tables (crate `firmware`, `described`).
    pub time: Option<u64>,
    /// The boot medium's files.
    pub medium: Option<BootMedium<'static>>,
    /// The interrupt controller.
    pub gic: Option<Gic>,
    /// If `gic` is `None`: the reason, for the log.
    pub gic_obstacle: &'static str,
    /// The GIC's ITS.
    pub its: Option<Span>,
    /// The PCI host bridge.
    pub pci: Option<HostBridge>,
    /// SMMUv3, with the interrupt of its event queue.
    pub smmu: Option<Device>,
    /// INTID of the maintenance interrupt.
    pub maintenance: Option<u32>,
    /// It is not in firmware's tables, but that of the architecture.
    pub assumes_maintenance: bool,
    /// INTIDs of EL1's physical and virtual timers, and of EL2's physical one.
    pub timers: Option<[u32; 3]>,
}

fn device(tree: &Fdt<'static>, node: FdtNode<'static>) -> Option<Device> {
    let registers = registers::<1>(tree, node).pop()?;
    let is_coherent = node.property("dma-coherent").is_some();
    Some(Device { registers, intid: intid(&cells(&node, "interrupts")), is_coherent })
}

impl Board {
    /// The interrupt controller, if it is a GICv2.
    pub fn gicv2(&self) -> Option<&Gicv2> {
        match &self.gic {
            Some(Gic::V2(gic)) => Some(gic),
            Some(Gic::V3 { .. }) | None => None,
        }
    }

    /// Performance of a CPU, by its affinity, relative to the board's others (`capacity-dmips-mhz`); 0 if unknown.
    pub fn capacity(&self, mpidr: u64) -> u32 {
        self.capacities.iter().find(|(cpu, _)| *cpu == mpidr).map_or(0, |&(_, capacity)| capacity)
    }

    /// Calls `visit` with the registers of devices that Stile uses, and with RAM: no BAR may be there.
    pub fn visit_used(&self, mut visit: impl FnMut(&Span)) {
        self.ram.iter().for_each(&mut visit);
        self.gic.iter().flat_map(Gic::regions).for_each(&mut visit);
        self.ports.iter().for_each(|port| visit(&port.registers));
        self.frame_buffer.iter().for_each(|buffer| visit(&(buffer.address..buffer.address + buffer.len())));
        self.pci.iter().for_each(|bridge| visit(&bridge.ecam));
        self.rtc.iter().chain(&self.smmu).for_each(|device| visit(&device.registers));
        self.its.iter().chain(&self.power).for_each(visit);
    }

    /// Returns the memory that no serial port or frame buffer may overlap: RAM, and the spans `used` outside it.
    pub fn taken(&self, used: [&Span; 3]) -> Vec<Span, 19> {
        self.ram.iter().chain(used).filter(|span| !span.is_empty()).cloned().collect()
    }

    /// Reads the maintenance interrupt from the interrupt controller's node.
    fn set_maintenance(&mut self, gic: &FdtNode<'static>) {
        self.maintenance = intid(&cells(gic, "interrupts"));
        self.assumes_maintenance = gic.property(described::ASSUMED).is_some();
    }

    /// Returns the physical address of the word in which a CPU waits for the address at which it starts, if it has one.
    ///
    /// # Errors
    /// Another CPU waits in the same word: both would start at once.
    pub fn release(&self, mpidr: u64) -> Result<Option<u64>, &'static str> {
        let release = self.releases.iter().find(|(cpu, _)| *cpu == mpidr).map(|&(_, address)| address);
        let waiting = self.releases.iter().filter(|&&(_, address)| Some(address) == release).count();
        if waiting > 1 { Err("another CPU waits at the same cpu-release-addr") } else { Ok(release) }
    }

    /// Reads the device tree. `boot_mpidr` is the affinity of the calling CPU. Parts that are missing or malformed are `None`
    /// or left out; their users report them.
    pub fn new(tree: &Fdt<'static>, boot_mpidr: u64) -> Board {
        let mut ports = Ports::new(tree);
        let [rtc, frame_buffer, its, pci, smmu, psci, psci_0_2, psci_0_1, power, gic, timer] =
            find_each_and(tree, COMPATIBLE, |node, name| ports.add(tree, node, name));
        // Boards may have several: those of the bridge's functions.
        let of_bridge = |name, compatible, found| match &pci {
            Some(pci) => pci_map::target(tree, pci, name, compatible, found),
            None => found,
        };
        let (its, smmu) = (of_bridge("msi-map", "arm,gic-v3-its", its), of_bridge("iommu-map", "arm,smmu-v3", smmu));
        let chosen = tree.find_node("/chosen");
        let keeps_bars = chosen.is_some_and(|chosen| cells(&chosen, PROBE_ONLY).first().is_some_and(|&value| value != 0));
        let mut board = Board {
            model: text(&tree.root(), "model").unwrap_or("unnamed board"),
            ram: Vec::new(),
            reserved: Vec::new(),
            reserves_more: false,
            cpus: Vec::new(),
            capacities: Vec::new(),
            numa: Numa::read(tree),
            psci: None,
            releases: Vec::new(),
            power: None,
            ports: ports.in_order(),
            uart: None,
            rtc: rtc.and_then(|node| device(tree, node)),
            frame_buffer: frame_buffer.and_then(FrameBuffer::read),
            time: chosen.and_then(|chosen| match cells(&chosen, described::TIME)[..] {
                [high, low] => Some(u64::from(high) << 32 | u64::from(low)),
                _ => None,
            }),
            medium: configuration::read(tree),
            gic: None,
            gic_obstacle: NO_GIC,
            its: its.and_then(|its| registers::<1>(tree, its).pop()),
            pci: pci.and_then(|node| HostBridge::new(node, smmu.as_ref(), its.as_ref(), keeps_bars)),
            // The first interrupt is the event queue's (binding `arm,smmu-v3`).
            smmu: smmu.and_then(|node| device(tree, node)),
            maintenance: None,
            assumes_maintenance: false,
            timers: None,
        };

        walk(tree.root(), &mut |node| {
            let is = |kind: &str| text(&node, "device_type") == Some(kind) && is_enabled(&node);
            if is("memory") {
                for span in spans::<8>(node) {
                    // A bank that exceeds the list is left out.
                    let _ = bank(&board.ram, &span).map(|span| board.ram.push(span));
                }
            } else if is("cpu") {
                let mpidr = affinity(&node);
                let _ = board.cpus.push(mpidr);
                if let Some(release) = spin_table(&node) {
                    let _ = board.releases.push((mpidr, release));
                    // Reserved even if the tree does not do so: CPUs poll this word, usually by code in the same page.
                    let start = release / PAGE_SIZE * PAGE_SIZE;
                    let page = start..start.saturating_add(PAGE_SIZE);
                    if !board.reserved.contains(&page) {
                        board.reserves_more |= board.reserved.push(page).is_err();
                    }
                }
                if let Some(capacity) = capacity(&node) {
                    let _ = board.capacities.push((mpidr, capacity));
                }
            }
        });
        if let Some(buffer) = &board.frame_buffer {
            // It is mapped as device memory, and RAM as normal memory.
            exclude(&mut board.ram, &(buffer.address..buffer.address + buffer.len()));
        }
        match board.cpus.iter().position(|&mpidr| mpidr == boot_mpidr) {
            Some(first) => board.cpus.swap(0, first),
            // The boot CPU is missing in the tree.
            None => {
                board.cpus.truncate(MAX_CPUS - 1);
                let _ = board.cpus.insert(0, boot_mpidr);
            }
        }
        for entry in tree.memory_reservations() {
            let start = entry.address();
            board.reserves_more |= board.reserved.push(start..start.saturating_add(entry.size())).is_err();
        }
        if let Some(reserved) = tree.find_node("/reserved-memory") {
            for node in reserved.children() {
                board.reserves_more |= board.reserved.extend_from_slice(&spans::<4>(node)).is_err();
            }
        }

        if let Some(psci) = psci.or(psci_0_2).or(psci_0_1) {
            board.psci = match text(&psci, "method") {
                Some("smc") => Some(Conduit::Smc),
                Some("hvc") => Some(Conduit::Hvc),
                _ => None,
            };
        }
        if board.psci.is_none() {
            board.power = power.and_then(|node| registers::<1>(tree, node).into_iter().next());
        }

        if let Some(gic) = gic {
            let mut registers = registers::<9>(tree, gic).into_iter();
            let regions = cells(&gic, "#redistributor-regions").first().copied().unwrap_or(1) as usize;
            board.gic = registers.next().map(|gicd| Gic::V3 { gicd, gicr: registers.take(regions.min(8)).collect() });
            board.set_maintenance(&gic);
        } else if let Some(gic) = Gicv2::find(tree) {
            match Gicv2::read(tree, gic) {
                Ok(registers) => board.gic = Some(Gic::V2(registers)),
                Err(why) => board.gic_obstacle = why,
            }
            board.set_maintenance(&gic);
        }
        if board.gic.as_ref().is_some_and(|gic| gic.regions().any(|region| overlaps(&board.ram, region))) {
            (board.gic, board.gic_obstacle) = (None, GIC_IN_MEMORY);
        }
        if let Some(timer) = timer {
            // Secure physical, non-secure physical, virtual, hypervisor physical; each of as many cells as the interrupt
            // controller says, three with GICv2.
            let interrupts = cells(&timer, "interrupts");
            let size = gic.map_or(3, |gic| cells(&gic, "#interrupt-cells").first().map_or(3, |&cells| cells as usize));
            let each = |n: usize| interrupts.get(n * size..).and_then(intid);
            if let (Some(physical), Some(virt), Some(hypervisor)) = (each(1), each(2), each(3)) {
                board.timers = Some([physical, virt, hypervisor]);
            }
        }
        board
    }
}
