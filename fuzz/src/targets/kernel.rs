//! Kernels' files: Images, ELF programs, bzImages, Multiboot and PVH programs, compressed or not.

use std::path::Path;

use stile::config::{Arch, Flags, MachineConfig, VmConfig};
use stile::image::{Compression, Kernel, Seed, UNPACKING, VmFiles, VmPlan, is_linux, plan_for, unpack};

use stile_board::map;
use stile_guest_image::gunzip;

use crate::marks::reach;
use crate::target::Target;

/// A file as a kernel on Arm, and as a domain's.
pub const AARCH64: Target = Target {
    name: "kernel-aarch64",
    run: aarch64,
    seeds: arm_files,
    mutations: 1000,
    marks: &["planned", "refused", "arm64 Image", "ELF", "flat binary", "compressed", "unpacked at boot", "domain"],
};

/// A file as a kernel on a PC.
pub const X86_64: Target = Target {
    name: "kernel-x86_64",
    run: x86_64,
    seeds: pc_files,
    mutations: 1000,
    marks: &["planned", "refused", "x86 bzImage", "Multiboot", "PVH"],
};

const RAM: u64 = 64 << 20;

/// A file of zeros, but for these bytes.
fn sparse(len: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; len];
    for (at, bytes) in parts {
        file[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    file
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// An ELF header with 64 bits, and a segment of the 32 bytes after both.
fn elf(machine: u8, address: u32) -> Vec<u8> {
    let program = words([1, 7, 120, 0, address, 0, address, 0, 32, 0, 64, 0, 0x1000, 0]);
    let header =
        [&b"\x7fELF\x02\x01\x01"[..], &[0; 9], &[2, 0, machine, 0], &words([1, address, 0, 64, 0, 0, 0, 0]), &[64, 0, 56, 0, 1, 0, 64, 0]];
    sparse(152, &[(0, &header.concat()), (64, &program)])
}

fn arm_files() -> Vec<Vec<u8>> {
    const GZIP: [u8; 23] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 0xff, 0x63, 0x60, 0x18, 5, 0, 0, 0x86, 0xad, 0x8f, 0xef, 0x40, 0, 0];
    let image = sparse(128, &[(18, &[1]), (24, &[10]), (56, b"ARM\x64")]);
    let gzip = zipped(&image);
    let zboot = [&b"MZ\0\0zimg"[..], &words([64, gzip.len() as u32]), &[0; 8], b"gzip", &[0; 36], &gzip].concat();
    vec![image, gzip, zboot, elf(183, 0x4000_0000), vec![0x1f; 64], GZIP.to_vec()]
}

/// The gzip format, with the bytes as they are (RFC 1951, "Non-compressed blocks").
fn zipped(bytes: &[u8]) -> Vec<u8> {
    let len = bytes.len() as u16;
    let sum = bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 != 0 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 })
    });
    let parts: [&[u8]; 6] = [
        &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1],
        &len.to_le_bytes(),
        &(!len).to_le_bytes(),
        bytes,
        &(!sum).to_le_bytes(),
        &words([len.into()]),
    ];
    parts.concat()
}

fn pc_files() -> Vec<Vec<u8>> {
    const SETUP: usize = 0x1f1;
    let linux: [(usize, &[u8]); 7] = [
        (SETUP, &[1]),
        (0x201, &[0x66]),
        (0x202, b"HdrS"),
        (0x206, &[0xf, 2]),
        (0x22c, &[0xff, 0xff, 0xff, 0x7f]),
        (0x236, &[1]),
        (0x25a, &[0, 1, 0, 0, 0, 0, 0, 0, 0x20, 0]),
    ];
    let multiboot = words([0x1bad_b002, 1 << 16, 0xe451_4ffe, 0x10_0000, 0x10_0000, 0, 0, 0x10_0020]);
    // A PVH program: an ELF program with a note.
    let mut pvh = elf(62, 0x10_0000);
    pvh[56] = 2;
    let note = [words([4, 0, 184, 0, 0, 0, 0, 0, 20, 0, 20, 0, 4, 0]), words([4, 4, 18]), b"Xen\0".to_vec(), words([0x10_0010])].concat();
    pvh.splice(120.., [&note[..56], &[0; 8], &note[56..]].concat());
    vec![sparse(1536, &linux), sparse(64, &[(0, &multiboot)]), pvh, elf(62, 0x10_0000), vec![0x90; 600]]
}

fn vm(arch: &str) -> VmConfig {
    let text = format!("[machine]\narch = \"{arch}\"\n[[vm]]\nkernel = \"debian\"\nmemory = \"64M\"\nvcpus = 2\n");
    let machine = MachineConfig::from_text("fuzz.toml", &text, Path::new(""), &Flags::default());
    machine.unwrap_or_else(|mistakes| panic!("{mistakes}")).vms.remove(0)
}

thread_local! {
    static VMS: [VmConfig; 2] = ["aarch64", "x86_64"].map(vm);
}

fn aarch64(bytes: &[u8]) {
    plan(Arch::Aarch64, bytes);
    if Kernel::check_domain(bytes, &UNPACKING).is_ok() {
        reach("domain");
    }
}

fn x86_64(bytes: &[u8]) {
    plan(Arch::X86_64, bytes);
}

fn plan(arch: Arch, bytes: &[u8]) {
    // The output of a few bytes is bounded, but slow to produce.
    if bytes.len() > 2048 {
        return;
    }
    unpack_at_boot(bytes);
    let vm = VMS.with(|vms| vms[usize::from(arch == Arch::X86_64)].clone());
    let files = VmFiles { kernel: bytes, initrd: Some(&[7; 100]), bootargs: "quiet", domains: &[], disks: &[] };
    let _ = is_linux(arch, bytes, RAM);
    match plan_for(arch, &vm, &files, Seed::Fixed) {
        Ok(plan) => {
            reach("planned");
            check(&plan);
        }
        Err(error) => {
            reach("refused");
            assert!(!error.to_string().is_empty());
        }
    }
}

/// Checks that Stile at boot unpacks to the same bytes as `stile`, and to the size for which it reserves memory.
fn unpack_at_boot(bytes: &[u8]) {
    let size = gunzip::unpacked_size(bytes, false);
    if let Ok(unpacked) = gunzip::unpack(Compression::Gzip, bytes, 1 << 20) {
        reach("unpacked at boot");
        assert_eq!(unpacked.len() as u64, size);
        // The host's decoder also checks the header's optional checksum.
        assert!(unpack(bytes).ok().is_none_or(|(host, _)| host[..] == unpacked));
    }
}

/// Checks the hypervisor's requirements of a VM's layout.
fn check(plan: &VmPlan) {
    reach(match plan.kernel.format {
        stile::image::Format::Image => "arm64 Image",
        stile::image::Format::Elf => "ELF",
        stile::image::Format::BzImage => "x86 bzImage",
        stile::image::Format::Multiboot => "Multiboot",
        stile::image::Format::Pvh => "PVH",
        stile::image::Format::Firmware => "UEFI firmware",
        stile::image::Format::Flat => "flat binary",
    });
    if plan.kernel.compression.is_some() {
        reach("compressed");
    }
    let ram = match plan.kernel.firmware_size() {
        0 => plan.ram_base..plan.ram_base + RAM,
        size => map::FIRMWARE_BASE..map::FIRMWARE_BASE + size,
    };
    assert!(ram.contains(&plan.kernel.entry), "{:#x}", plan.kernel.entry);
    let mut last = 0;
    for segment in &plan.kernel.segments {
        let memory = segment.memory();
        assert!(ram.start <= memory.start && memory.end <= ram.end && last <= memory.start, "{memory:x?}");
        assert!(plan.kernel.bytes(segment).len() as u64 <= segment.mem_len);
        last = memory.end;
    }
}
