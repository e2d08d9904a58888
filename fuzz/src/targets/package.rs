//! A VM that the operator uploads.

use stile_blob::{Blob, Checksum, Files, Package, PackageError, write};
use stile_board::map;

use super::blob::{blobs, check_vm, vm};
use crate::marks::reach;
use crate::target::Target;

/// A damaged package, as the hypervisor parses it: the checksum, which is no protection from an attacker, is corrected.
pub const PACKAGE: Target = Target {
    name: "package",
    run: package,
    seeds: packages,
    mutations: 4000,
    marks: &["wrong checksum", "configuration", "own file", "file of the image", "refused"],
};

/// Length of the header, and the offset of its checksum.
const HEADER: usize = 16;
const CHECKSUM: usize = 12;

/// A machine whose image has files.
fn image() -> Vec<u8> {
    blobs().swap_remove(1)
}

/// Packages that the writer makes, with files of their own and of the image, a damaged one, and one that is cut off.
fn packages() -> Vec<Vec<u8>> {
    let image = image();
    let files = [
        write::File { vm: 0, bytes: b"kernel", gpa: map::RAM_BASE, mem_len: 8192 },
        write::File { vm: 0, bytes: b"initrd", gpa: map::RAM_BASE + 8192, mem_len: 4096 },
    ];
    let kernel = image.windows(6).position(|bytes| bytes == b"kernel").expect("the image's file") as u64;
    let find = |bytes: &[u8]| (bytes == b"kernel").then_some(kernel);
    let vm = vm("guest", stile_blob::Mode::Reset);
    let mut all: Vec<Vec<u8>> = [&files[..0], &files].into_iter().map(|files| write::package(&vm, files, find).expect("valid")).collect();
    let mut damaged = all[0].clone();
    damaged[HEADER + 2] ^= 1;
    all.push(damaged);
    all.push(all[0][..HEADER + 4].to_vec());
    all
}

fn package(bytes: &[u8]) {
    let image = image();
    let image = Blob::parse(&image).expect("valid").files();
    let Err(error) = Package::parse(bytes, image).map(|package| check(&package, image)) else { return };
    if error != PackageError::Checksum {
        return reach("refused");
    }
    reach("wrong checksum");
    let mut bytes = bytes.to_vec();
    let length = bytes[8..CHECKSUM].try_into().map_or(0, u32::from_le_bytes) as usize;
    let mut checksum = Checksum::new();
    checksum.update(&bytes[8..CHECKSUM]);
    checksum.update(&bytes[HEADER..HEADER + length]);
    bytes[CHECKSUM..HEADER].copy_from_slice(&checksum.finish().to_le_bytes());
    match Package::parse(&bytes, image) {
        Ok(package) => check(&package, image),
        Err(error) => {
            assert_ne!(error, PackageError::Checksum, "it was corrected");
            reach("refused");
        }
    }
}

fn check(package: &Package<'_>, image: Files<'_>) {
    reach("configuration");
    check_vm(&package.vm);
    for load in package.vm.loads.iter().filter(|load| load.len != 0) {
        assert_eq!(package.files.file(load).expect("a file lies in the package or the image").len() as u64, load.len);
        let is_own = load.offset >= Package::OWN;
        assert!(is_own || image.file(load).is_some());
        reach(if is_own { "own file" } else { "file of the image" });
    }
    let start = package.vm.ram_base;
    let first = package.files.contents(&package.vm.loads, start, start + 4096);
    assert!(first.len > 0 && first.len <= 4096);
}
