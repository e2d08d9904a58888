//! The device tree, read back.

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};
use stile_blob::Topology;

use super::tree_source::source;
use crate::image::domain::Domain;
use crate::image::dtb::{Description, SEED_LEN, build};

fn description(vcpus: u16) -> Description<'static> {
    Description {
        disks: Vec::new(),
        el2: false,
        memory: 512 << 20,
        vcpus,
        topology: None,
        bootargs: "console=ttyAMA0",
        initrd: Some(0x5f00_0000..0x5f12_3456),
        seed: Some(std::array::from_fn::<u8, SEED_LEN, _>(|at| at as u8)),
        pci: false,
        flash: false,
        served: 0,
        serves: 0,
        gic: stile_blob::Gic::V3,
        domains: Vec::new(),
    }
}

#[test]
fn whole_tree() {
    let bytes = build(&description(2)).expect("a tree");
    insta::assert_snapshot!("device_tree", source(&bytes));
}

#[test]
fn cpus_and_redistributors() {
    for vcpus in 1..=8 {
        let bytes = build(&description(vcpus)).expect("a tree");
        let tree = Fdt::new(&bytes).expect("a tree");
        assert_eq!(tree.cpus().expect("CPUs").cpus().count(), usize::from(vcpus));
        let gic = tree.find_node("/intc").expect("the interrupt controller");
        let regions: Vec<_> = gic.reg().expect("whole cells").expect("regions").collect();
        assert_eq!(regions[1].size(), Ok(u64::from(vcpus) * 0x2_0000));
    }
}

#[test]
fn a_topology_refers_to_each_cpu() {
    let topology = Topology { sockets: 2, cores: 3, threads: 2 };
    let bytes = build(&Description { topology: Some(topology), ..description(12) }).expect("a tree");
    let tree = Fdt::new(&bytes).expect("a tree");
    let cell =
        |path: &str, name: &str| tree.find_node(path).and_then(|node| node.property(name)).and_then(|cell| cell.value_as::<u32>().ok());
    for (vcpu, cpu) in tree.cpus().expect("CPUs").cpus().enumerate() {
        let (socket, core, thread) = topology.place(vcpu);
        let path = format!("/cpus/cpu-map/socket{socket}/cluster0/core{core}/thread{thread}");
        let phandle = cpu.property("phandle").and_then(|cell| cell.value_as::<u32>().ok());
        assert!(phandle.is_some() && phandle == cell(&path, "cpu"), "{path}");
    }
    let cores = build(&Description { topology: Some(Topology::flat(2)), ..description(2) }).expect("a tree");
    let cores = Fdt::new(&cores).expect("a tree");
    assert!(cores.find_node("/cpus/cpu-map/socket0/cluster0/core1").is_some_and(|core| core.property("cpu").is_some()));
}

#[test]
fn no_initrd() {
    let bytes = build(&Description { initrd: None, ..description(1) }).expect("a tree");
    let tree = Fdt::new(&bytes).expect("a tree");
    let chosen = tree.find_node("/chosen").expect("chosen");
    assert!(chosen.property("linux,initrd-start").is_none());
    assert_eq!(tree.chosen().expect("chosen").bootargs(), Ok(Some("console=ttyAMA0")));
}

#[test]
fn length_does_not_depend_on_addresses() {
    let here = build(&Description { initrd: Some(0..1), ..description(1) }).expect("a tree");
    let there = build(&Description { initrd: Some(u64::MAX - 1..u64::MAX), ..description(1) }).expect("a tree");
    assert_eq!(here.len(), there.len());
}

#[test]
fn domains_of_xen() {
    let domain = Domain { vcpus: 2, memory: 64 << 20, image: 0x4800_0000..0x4800_8000, bootargs: "only=ipi" };
    let bytes = build(&Description { domains: vec![domain.clone(), domain], ..description(1) }).expect("a tree");
    let tree = Fdt::new(&bytes).expect("a tree");
    let text = |path: &str, name: &str| {
        let property = tree.find_node(path).and_then(|node| node.property(name));
        property.and_then(|property| property.value_as::<&str>().ok()).map(str::to_owned)
    };
    assert_eq!(text("/chosen", "xen,xen-bootargs").as_deref(), Some("console=ttyAMA0"));
    assert_eq!(text("/chosen/domain1", "compatible").as_deref(), Some("xen,domain"));
    assert_eq!(text("/chosen/domain2/module@48000000", "bootargs").as_deref(), Some("only=ipi"));
}

#[test]
fn a_vm_with_functions_has_a_host_bridge_and_an_its() {
    let bytes = build(&Description { pci: true, ..description(1) }).expect("a tree");
    let tree = Fdt::new(&bytes).expect("a tree");
    let cells = |path: &str, name: &str| -> Vec<u32> {
        let Some(property) = tree.find_node(path).and_then(|node| node.property(name)) else { return Vec::new() };
        property.value().chunks_exact(4).map(|cell| u32::from_be_bytes(cell.try_into().expect("four bytes"))).collect()
    };
    assert_eq!(cells("/pcie@3f000000", "reg"), [0, 0x3f00_0000, 0, 0x10_0000]);
    assert_eq!(cells("/pcie@3f000000", "ranges"), [0x0200_0000, 0, 0x1000_0000, 0, 0x1000_0000, 0, 0x2eff_0000]);
    assert_eq!(cells("/pcie@3f000000", "msi-map"), [0, cells("/intc/msi-controller", "phandle")[0], 0, 0x1_0000]);
    assert_eq!(cells("/intc/msi-controller", "reg"), [0, 0x0808_0000, 0, 0x2_0000]);
    assert!(tree.find_node("/intc/v2m").is_none());
    let without = build(&description(1)).expect("a tree");
    assert!(Fdt::new(&without).expect("a tree").find_node("/pcie@3f000000").is_none());
}

#[test]
fn served_devices_have_nodes_on_both_sides() {
    let bytes = build(&Description { served: 2, serves: 1, ..description(1) }).expect("a tree");
    let tree = Fdt::new(&bytes).expect("a tree");
    let cells = |path: &str, name: &str| -> Vec<u32> {
        let property = tree.find_node(path).and_then(|node| node.property(name)).expect("a property");
        property.value().chunks_exact(4).map(|cell| u32::from_be_bytes(cell.try_into().expect("four bytes"))).collect()
    };
    assert_eq!(cells("/pcie@3f100000", "reg"), [0, 0x3f10_0000, 0, 0x10_0000]);
    assert_eq!(cells("/pcie@3f100000", "ranges"), [0x0200_0000, 0, 0x3f20_0000, 0, 0x3f20_0000, 0, 0x1_0000]);
    assert_eq!(cells("/pcie@3f100000", "linux,pci-domain"), [1]);
    assert_eq!(cells("/pcie@3f100000", "msi-map")[1], cells("/intc/v2m", "phandle")[0]);
    assert_eq!((cells("/intc/v2m", "arm,msi-base-spi"), cells("/intc/v2m", "arm,msi-num-spis")), (vec![64], vec![64]));
    assert_eq!(cells("/served-device@a010000", "reg"), [0, 0xa01_0000, 0, 0x1000, 0, 0x701_0000, 0, 0x1000]);
    assert_eq!(cells("/served-device@a010000", "interrupts"), [0, 24, 1]);
}

#[test]
fn bad_command_line() {
    assert!(build(&Description { bootargs: "a\0b", ..description(1) }).is_err());
}

#[test]
fn a_vm_with_an_el2_uses_smc_and_has_el2s_interrupts() {
    let bytes = build(&Description { el2: true, ..description(1) }).expect("a tree");
    let tree = Fdt::new(&bytes).expect("a tree");
    let cells =
        |path: &str, name: &str| tree.find_node(path).and_then(|node| node.property(name)).map_or(0, |property| property.value().len() / 4);
    let method = tree.find_node("/psci").and_then(|node| node.property("method")).and_then(|method| method.value_as::<&str>().ok());
    assert_eq!(method, Some("smc"));
    assert_eq!(cells("/timer", "interrupts"), 5 * 3);
    assert_eq!(cells("/intc@8000000", "interrupts"), 3);
}

#[test]
fn a_gicv2_has_a_distributor_and_a_cpu_interface() {
    let bytes = build(&Description { gic: stile_blob::Gic::V2, ..description(4) }).expect("a tree");
    let tree = Fdt::new(&bytes).expect("valid");
    let gic = tree.find_node("/intc@8000000").expect("an interrupt controller");
    assert_eq!(gic.compatible().expect("names").next(), Some("arm,cortex-a15-gic"));
    let regions: Vec<_> = gic.reg().expect("valid").expect("regions").map(|region| (region.address(), region.size())).collect();
    assert_eq!(regions, [(Ok(0x0800_0000_u64), Ok(0x1000_u64)), (Ok(0x0801_0000), Ok(0x2000))]);
}
