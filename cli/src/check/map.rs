//! A virtual machine's memory map and ports.

use std::ops::Range;

use stile_blob::Gic;
use stile_board::pc::{self, port};
use stile_board::{intid, map, redistributors};

use super::explanation::Place;
use crate::{
    config::{Arch, VmConfig, units},
    image::{Format, VmPlan},
};

/// The last of the interrupts that messages become.
const MSI_LAST: u32 = intid::MSI_BASE + intid::MSI_COUNT - 1;

/// Rows of the redistributors.
fn redistributor_places(vcpus: usize) -> impl Iterator<Item = Place> {
    let regions = redistributors(vcpus).into_iter().filter(|(_, of)| !of.is_empty());
    regions.map(|(base, of)| Place::new(base..base + of.len() as u64 * map::GICR_STRIDE, units::plural(of.len(), "GICv3 redistributor")))
}

/// An Arm guest's devices, RAM and loaded files, by address.
pub fn arm(vm: &VmConfig, plan: Option<&VmPlan>) -> Vec<Place> {
    let vcpus = usize::from(vm.vcpus);
    let stolen_time = map::stolen_time_size(vcpus);
    let mut rows = vec![
        Place::new(map::STOLEN_TIME_BASE..map::STOLEN_TIME_BASE + stolen_time, "stolen time of the vCPUs"),
        Place::new(map::PL011_BASE..map::PL011_BASE + map::PL011_SIZE, "PL011 UART, the console"),
        Place::new(map::PL031_BASE..map::PL031_BASE + map::PL031_SIZE, "PL031 real-time clock"),
        Place::new(map::RAM_BASE..map::RAM_BASE + vm.memory, "RAM"),
    ];
    rows.extend(memory_disks(Arch::Aarch64, vm));
    if vm.gic == Gic::V2 {
        rows.push(Place::new(map::GICD_BASE..map::GICD_BASE + map::GICV2_GICD_SIZE, "GICv2 distributor"));
        rows.push(Place::new(map::GICC_BASE..map::GICC_BASE + map::GICC_SIZE, "GICv2 CPU interface, virtualized by hardware"));
    } else {
        rows.push(Place::new(map::GICD_BASE..map::GICD_BASE + map::GICD_SIZE, "GICv3 distributor"));
        rows.extend(redistributor_places(vcpus));
    }
    let firmware = plan.map_or(0, |plan| plan.kernel.firmware_size());
    if firmware != 0 {
        rows.extend([
            Place::new(map::FIRMWARE_BASE..map::FIRMWARE_BASE + firmware, "firmware, executes in place"),
            Place::new(map::FLASH_BASE..map::FLASH_BASE + map::FLASH_SIZE, "NOR flash, the firmware's variables"),
        ]);
    }
    if !vm.served.is_empty() {
        rows.push(Place::new(map::MSI_FRAME_BASE..map::MSI_FRAME_BASE + map::MSI_FRAME_SIZE, "MSI frame (GICv2m)"));
    }
    if !vm.functions.is_empty() {
        rows.extend([
            Place::new(map::ITS_BASE..map::ITS_BASE + map::ITS_SIZE, "GICv3 ITS"),
            Place::new(map::PCI_WINDOW_BASE..map::PCI_WINDOW_BASE + map::PCI_WINDOW_SIZE, "BARs of PCI functions"),
            Place::new(map::PCI_ECAM_BASE..map::PCI_ECAM_BASE + map::PCI_ECAM_SIZE, "PCI configuration space, bus 0"),
        ]);
    }
    if !vm.served.is_empty() {
        let (window, size) = (map::VIRTIO_WINDOW_BASE, map::VIRTIO_WINDOW_SIZE);
        rows.extend([
            Place::new(map::VIRTIO_ECAM_BASE..map::VIRTIO_ECAM_BASE + map::PCI_ECAM_SIZE, "PCI configuration space of served devices"),
            Place::new(window..window + size, "BARs of served devices"),
        ]);
    }
    rows.extend(serves(vm).map(|start| Place::new(start..start + map::SERVER_STRIDE, "registers of a device that it serves")));
    let events = (0..u64::from(vm.serves)).map(|number| map::EVENTS_BASE + number * map::EVENTS_STRIDE);
    rows.extend(events.map(|start| Place::new(start..start + map::EVENTS_STRIDE, "events of a device that it serves")));
    rows.sort_by_key(|place| place.range.start);
    rows.extend(loads(plan));
    rows
}

/// An Arm guest's interrupts, by number.
pub fn arm_interrupts(vm: &VmConfig) -> Vec<Vec<String>> {
    let row = |interrupt: String, trigger: &str, what: String| vec![interrupt, trigger.to_owned(), what];
    let ppi = |intid: u32| format!("{intid} (PPI {})", intid - intid::PPI_BASE);
    let spi = |intid: u32| format!("{intid} (SPI {})", intid - intid::SPI_BASE);
    let mut rows = vec![
        row(ppi(intid::TIMER_EL1_VIRTUAL), "level", "virtual timer".to_owned()),
        row(ppi(intid::TIMER_EL1_PHYSICAL), "level", "physical timer".to_owned()),
        row(spi(intid::PL011), "level", "PL011 UART".to_owned()),
        row(spi(intid::PL031), "level", "PL031 real-time clock".to_owned()),
    ];
    for (start, intid) in serves(vm).zip(intid::SERVER..) {
        rows.push(row(spi(intid), "edge", format!("served device at {start:#x}")));
    }
    if !vm.functions.is_empty() {
        let range = format!("{}-{} (LPI)", intid::LPI_BASE, intid::LPI_BASE + intid::LPI_COUNT - 1);
        rows.push(row(range, "edge", "messages of PCI functions".to_owned()));
    }
    if !vm.served.is_empty() {
        let [first, last] = [intid::MSI_BASE, MSI_LAST].map(|intid| intid - intid::SPI_BASE);
        rows.push(row(format!("{}-{MSI_LAST} (SPI {first}-{last})", intid::MSI_BASE), "edge", "messages of served devices".to_owned()));
    }
    rows
}

/// Addresses of the devices that an Arm guest serves.
fn serves(vm: &VmConfig) -> impl Iterator<Item = u64> {
    (0..u64::from(vm.serves)).map(|number| map::SERVER_BASE + number * map::SERVER_STRIDE)
}

/// A PC guest's RAM, loaded files and devices, by address.
pub fn pc(vm: &VmConfig, plan: Option<&VmPlan>) -> Vec<Place> {
    const PAGE: u64 = 4096;
    let [low, high] = pc::ram(vm.memory);
    let mut rows = vec![Place::new(low, "RAM")];
    rows.extend(memory_disks(Arch::X86_64, vm).filter(|disk| disk.range.start < pc::HIGH_RAM));
    rows.extend(loads(plan));
    if !(vm.functions.is_empty() && vm.served.is_empty()) {
        rows.extend([Place::new(pc::PCI_WINDOW, "BARs of PCI functions"), Place::new(pc::PCI_ECAM, "PCI configuration space, bus 0")]);
    }
    for number in 0..u64::from(vm.serves) {
        let (registers, events) = (pc::SERVER_REGISTERS + number * map::SERVER_STRIDE, pc::SERVER_EVENTS + number * map::EVENTS_STRIDE);
        rows.push(Place::new(registers..registers + map::SERVER_STRIDE, "registers of a device that it serves"));
        rows.push(Place::new(events..events + map::EVENTS_STRIDE, "events of a device that it serves"));
    }
    rows.sort_by_key(|place| place.range.start);
    rows.push(Place::new(pc::IO_APIC..pc::IO_APIC + PAGE, "I/O APIC, 24 inputs"));
    rows.push(Place::new(pc::LOCAL_APIC..pc::LOCAL_APIC + PAGE, "local APIC, each vCPU its own; elsewhere or MSRs if the guest wants"));
    rows.push(Place::new(pc::TEST_MEMORY, "memory for test programs"));
    if !high.is_empty() {
        rows.push(Place::new(high, "RAM"));
    }
    rows.extend(memory_disks(Arch::X86_64, vm).filter(|disk| disk.range.start >= pc::HIGH_RAM));
    rows
}

/// Disks in memory.
fn memory_disks(arch: Arch, vm: &VmConfig) -> impl Iterator<Item = Place> {
    vm.disk_regions(arch).into_iter().enumerate().map(|(number, region)| Place::new(region, format!("disk /dev/pmem{number}")))
}

/// A PC guest's port-I/O devices, by number.
pub fn ports() -> Vec<Vec<String>> {
    let input = |input: u32| input.to_string();
    let at = |ports: Range<u16>, what: &str, input: String| {
        let last = ports.end - 1;
        let numbers = if ports.len() == 1 { format!("{last:#06x}") } else { format!("{:#06x}-{last:#06x}", ports.start) };
        vec![numbers, what.to_owned(), input]
    };
    let none = String::new;
    vec![
        at(0x20..0x22, "8259A, first; the second is at 0xa0", none()),
        at(0x40..0x44, "8254 timer; 0x61 is its gate", input(pc::TIMER_INPUT)),
        at(0x60..0x65, "keyboard controller; 0x92, too", none()),
        at(port::CLOCK..port::CLOCK_END, "MC146818 clock and its memory", input(pc::CLOCK_INPUT)),
        at(port::TEST_WORD..port::TEST_WORD_END, "a word for test programs", none()),
        at(port::DEBUG_EXIT..port::DEBUG_EXIT + 1, "a write ends the VM with that status", none()),
        at(0x3d4..0x3d6, "a screen's cursor; 0x3da: its beam", none()),
        at(port::COM1..port::COM1_END, "16550A UART, the console", input(pc::COM1_INPUT)),
        at(port::FW_CFG..port::FW_CFG_END, "fw_cfg", none()),
        at(port::PM1A_EVENT..port::PM_END, "ACPI fixed registers, power", input(pc::ACPI_INPUT)),
        at(port::RESET..port::RESET + 1, "reset", none()),
        at(port::TEST_LINES..port::TEST_LINES_END, "interrupt lines for test programs", none()),
    ]
}

/// The files loaded into RAM, by address.
fn loads(plan: Option<&VmPlan>) -> Vec<Place> {
    let Some(plan) = plan else { return Vec::new() };
    let mut loads = Vec::new();
    // Firmware has a separate row.
    for segment in plan.kernel.segments.iter().filter(|_| plan.kernel.format != Format::Firmware) {
        let file = segment.file.len() as u64;
        let rest = match segment.mem_len - file {
            0 => String::new(),
            rest => format!(", {} of it zeroes", units::rounded_size(rest)),
        };
        loads.push(Place::new(segment.memory(), format!("- kernel{rest}")));
    }
    loads.extend(plan.layout.initrd.clone().map(|range| Place::new(range, "- initrd")));
    let (about, more) = match plan.kernel.format {
        Format::BzImage | Format::Multiboot | Format::Pvh => ("- boot information", "- BIOS data, ACPI tables"),
        Format::Image | Format::Elf | Format::Flat | Format::Firmware => ("- device tree", "- a domain's kernel"),
    };
    loads.extend(plan.more.iter().map(|(start, bytes)| Place::new(*start..start + bytes.len() as u64, more)));
    loads.push(Place::new(plan.layout.dtb.clone(), about));
    loads.sort_by_key(|place| place.range.start);
    loads
}
