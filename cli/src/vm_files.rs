//! Kernels, initial RAM file systems and disks in memory of VMs as files of a stick, which its user can replace (docs/stick.md).

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use stile_blob::Files;
use stile_config::boot::VMS;
use stile_firmware::boot_files::is_named;
use stile_guest_image::Guest;
use stile_guest_image::remake::{AT_BOOT, check_copies};

use crate::config::{Arch, InitrdSource, KernelSource, MachineConfig, VmConfig};
use crate::exit;
use crate::image::{Format, Kernel, pc};

/// A file for the folder `VMS`.
#[derive(Debug)]
pub struct VmFile {
    /// Its name there.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A kernel, an initial RAM file system or a disk in memory that the configuration names.
struct Named<'c> {
    vm: &'c VmConfig,
    path: &'c Path,
    name: &'c str,
    is_kernel: bool,
}

impl Named<'_> {
    fn is_called(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    fn refuse(&self, what: &str) -> anyhow::Error {
        exit::usage(format!("{}: {} can't be a file of the stick: {what}", self.vm.name, self.path.display()))
    }
}

/// The files of a machine whose configuration is `text`, and the names of the VMs whose files are left out, since Stile can't rebuild them
/// at boot.
///
/// # Errors
/// A file can't be read, or its name can't be on a stick; two files have one name; Stile can't unpack a kernel at boot.
pub fn of<'c>(config: &'c MachineConfig, text: &str) -> Result<(Vec<VmFile>, Vec<&'c str>)> {
    let mut all = Vec::new();
    for vm in &config.vms {
        let initrd = match &vm.initrd {
            InitrdSource::File(path) => Some((path, false)),
            InitrdSource::None | InitrdSource::Busybox | InitrdSource::Bundled | InitrdSource::Answered(_) => None,
        };
        let kernel = match &vm.kernel {
            KernelSource::File(path) => Some((path, true)),
            KernelSource::Debian(_) | KernelSource::Disk | KernelSource::Stile(_) => None,
        };
        let disks = vm.memory_disks.iter().map(|disk| (&disk.file, false));
        for (path, is_kernel) in kernel.into_iter().chain(initrd).chain(disks) {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.ok_or_else(|| exit::usage(format!("{}: the name of {} is not UTF-8: rename it", vm.name, path.display())))?;
            all.push(Named { vm, path, name, is_kernel });
        }
    }
    let mut contents = Contents::default();
    let left_out = left_out(config, &all, &mut contents)?;
    let mut found: Vec<&Named<'_>> = Vec::new();
    for named in all.iter().filter(|named| !left_out.contains(&&named.vm.name[..])) {
        check_name(named, text)?;
        let bytes = contents.read(named.path)?;
        if named.is_kernel {
            check_kernel(config.arch, named, bytes)?;
        }
        match found.iter().find(|other| named.is_called(other.name)) {
            Some(other) if contents.are_same(other.path, named.path) => {}
            Some(other) => return Err(named.refuse(&format!("{} has the same name: rename one", other.path.display()))),
            None => found.push(named),
        }
    }
    let files = found.into_iter().filter_map(|named| Some(VmFile { name: named.name.to_owned(), bytes: contents.0.remove(named.path)? }));
    Ok((files.collect(), left_out))
}

/// The contents of files, each of which is read once.
#[derive(Default)]
struct Contents<'c>(BTreeMap<&'c Path, Vec<u8>>);

impl<'c> Contents<'c> {
    fn read(&mut self, path: &'c Path) -> Result<&[u8]> {
        if !self.0.contains_key(path) {
            let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            self.0.insert(path, bytes);
        }
        Ok(self.0.get(path).map(Vec::as_slice).unwrap_or_default())
    }

    /// Whether two files that were read have the same contents.
    fn are_same(&self, one: &Path, other: &Path) -> bool {
        self.0.get(one) == self.0.get(other)
    }
}

/// Returns the VMs whose files are left out: those that Stile can't rebuild at boot, and those that share a file with one. With such a file
/// on the stick, Stile would refuse to start.
fn left_out<'c>(config: &'c MachineConfig, all: &[Named<'c>], contents: &mut Contents<'c>) -> Result<Vec<&'c str>> {
    let mut left_out = Vec::new();
    for vm in &config.vms {
        let has_links = !vm.served.is_empty() || vm.serves != 0 || !vm.domains.is_empty();
        if has_links || has_other_kernel(config.arch, vm) || is_firmware(config.arch, vm, contents)? {
            left_out.push(&vm.name[..]);
        }
    }
    loop {
        let is_out = |named: &&Named<'_>| left_out.contains(&&named.vm.name[..]);
        let shares = |named: &&Named<'_>| all.iter().filter(is_out).any(|other| other.is_called(named.name));
        match all.iter().find(|named| !is_out(named) && shares(named)) {
            Some(named) => left_out.push(&named.vm.name),
            None => return Ok(left_out),
        }
    }
}

/// Whether a PC has a kernel that is not Linux, and of which the stick has no file: at boot, Stile can't get it back from the image.
fn has_other_kernel(arch: Arch, vm: &VmConfig) -> bool {
    let is_other = match &vm.kernel {
        KernelSource::Stile(_) => true,
        KernelSource::Debian(which) => !which.is_linux(),
        KernelSource::File(_) | KernelSource::Disk => false,
    };
    arch == Arch::X86_64 && is_other
}

/// Whether a VM starts from UEFI firmware (Arm only).
fn is_firmware<'c>(arch: Arch, vm: &'c VmConfig, contents: &mut Contents<'c>) -> Result<bool> {
    let (Arch::Aarch64, KernelSource::File(path)) = (arch, &vm.kernel) else { return Ok(false) };
    let file = contents.read(path)?;
    Ok(Kernel::recognise(file, vm.memory, &AT_BOOT).is_ok_and(|kernel| kernel.format == Format::Firmware))
}

/// Checks that the configuration names the file as a booting Stile looks for it, and that a FAT file system can have it.
fn check_name(named: &Named<'_>, text: &str) -> Result<()> {
    can_be_on_fat(named.name).map_err(|why| named.refuse(&format!("FAT does not allow its name ({why}): rename it")))?;
    let utf16: Vec<u16> = named.name.encode_utf16().collect();
    if is_named(text.as_bytes(), &utf16) {
        return Ok(());
    }
    Err(named.refuse("the configuration has an escape sequence in its name: write the characters themselves"))
}

/// Checks a name by creating a file with it in a small FAT file system.
fn can_be_on_fat(name: &str) -> Result<()> {
    /// Sectors of 512 bytes: the fewest that can be formatted are about 40.
    const SIZE: usize = 64 * 512;
    // Other systems drop a dot or a space at the end.
    if name.ends_with(['.', ' ']) {
        bail!("it ends with a dot or a space");
    }
    let mut disk = vec![0; SIZE];
    fatfs::format_volume(Cursor::new(&mut disk), FormatVolumeOptions::new())?;
    let volume = FileSystem::new(Cursor::new(&mut disk), FsOptions::new())?;
    volume.root_dir().create_dir(VMS)?.create_file(name)?;
    Ok(())
}

/// Checks that Stile can unpack a kernel at boot, and that the memory for its segments is bounded. Other mistakes are reported for the copy
/// in the image.
fn check_kernel(arch: Arch, named: &Named<'_>, bytes: &[u8]) -> Result<()> {
    let refuse = |error: &dyn std::fmt::Display| named.refuse(&format!("{error}; without --files, the image has it"));
    let kernel = match arch {
        Arch::Aarch64 => Some(Kernel::recognise(bytes, named.vm.memory, &AT_BOOT).map_err(|error| refuse(&error))?),
        Arch::X86_64 => {
            pc::unpack(bytes, &AT_BOOT).map_err(|error| refuse(&error))?;
            pc::plan(&guest(named.vm), bytes, &AT_BOOT).ok().map(|plan| plan.kernel)
        }
    };
    let medium = Files::at_boot(Files::default(), bytes, &[]);
    kernel.map_or(Ok(()), |kernel| check_copies(&kernel, |bytes| medium.offset_of(bytes).is_some())).map_err(|error| refuse(&error))
}

/// Describes a PC with the VM's memory and a kernel only.
fn guest(vm: &VmConfig) -> Guest<'_> {
    Guest {
        kernel_name: "",
        initrd: None,
        bootargs: "",
        memory: vm.memory,
        vcpus: 1,
        topology: None,
        nested: false,
        pci: false,
        served: 0,
        serves: 0,
        gic: vm.gic,
        domains: &[],
        seed: None,
        disks: &[],
    }
}

#[cfg(test)]
mod tests {
    use stile_board::map::RAM_BASE;

    use super::*;
    use crate::config::Flags;

    /// Files by name and length, and the VMs that are left out.
    type Found = (Vec<(String, usize)>, Vec<String>);

    /// The files of a configuration in a directory with `files`; or the mistake.
    fn result(text: &str, files: &[(&str, &[u8])]) -> Result<Found, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let config = MachineConfig::from_text("machine.toml", text, dir.path(), &Flags::default()).unwrap();
        let (files, left_out) = of(&config, text).map_err(|error| error.to_string())?;
        let files = files.into_iter().map(|file| (file.name, file.bytes.len())).collect();
        Ok((files, left_out.into_iter().map(ToOwned::to_owned).collect()))
    }

    fn vm(name: &str, more: &str) -> String {
        format!("[[vm]]\nname = \"{name}\"\n{more}\n")
    }

    #[test]
    fn each_named_file_is_there_once() {
        let text = [
            vm("a", "kernel = \"sub/größe Image.gz\"\ninitrd = \"initrd\""),
            vm("b", "kernel = \"sub/größe Image.gz\""),
            vm("c", "kernel = \"debian\"\n[[vm.disk]]\nfile = \"sub/data.img\"\nin_memory = true"),
        ];
        let zipped = {
            use std::io::Write;
            let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            zipped.write_all(&[0x90; 5000]).unwrap();
            zipped.finish().unwrap()
        };
        let length = zipped.len();
        let (files, left_out) =
            result(&text.concat(), &[("sub/größe Image.gz", &zipped), ("initrd", &[1; 7]), ("sub/data.img", &[2; 512])]).unwrap();
        assert_eq!(files, [("größe Image.gz".to_owned(), length), ("initrd".to_owned(), 7), ("data.img".to_owned(), 512)]);
        assert!(left_out.is_empty());
    }

    #[test]
    fn a_pc_is_rebuilt_with_linux_only() {
        let disk = "[[vm.disk]]\nfile = \"d\"\nin_memory = true";
        for (arch, kernel, is_out) in [("x86_64", "stile", true), ("x86_64", "debian", false), ("aarch64", "stile", false)] {
            let text = format!("[machine]\narch = \"{arch}\"\n{}", vm("a", &format!("kernel = \"{kernel}\"\nnested = true\n{disk}")));
            assert_eq!(result(&text, &[("d", &[1; 512])]).unwrap().1.len(), usize::from(is_out), "{arch} {kernel}");
        }
    }

    #[test]
    fn files_that_a_stick_cannot_have_are_refused() {
        for (name, bytes, why) in [
            ("a:b", &[1_u8; 100][..], "FAT does not allow its name"),
            ("end.", &[1; 100], "FAT does not allow its name"),
            ("xz", b"\xfd7zXZ\0 and more", "xz; expected gzip or none"),
            ("gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff], "more than 256M"),
        ] {
            let mistake = result(&vm("a", &format!("kernel = \"{name}\"")), &[(name, bytes)]).unwrap_err();
            assert!(mistake.starts_with("a: ") && mistake.contains(name) && mistake.contains(why), "{name}: {mistake}");
        }
        assert!(can_be_on_fat(&"x".repeat(256)).is_err());
        let mistake = result(&vm("a", "kernel = \"\\u0042\""), &[("B", &[1; 100])]).unwrap_err();
        assert!(mistake.contains("escape sequence"), "{mistake}");
        let two = [vm("a", "kernel = \"one/Image\""), vm("b", "kernel = \"two/image\"")].concat();
        let mistake = result(&two, &[("one/Image", &[1; 100]), ("two/image", &[2; 100])]).unwrap_err();
        assert!(mistake.starts_with("b: ") && mistake.contains("one/Image has the same name"), "{mistake}");
        assert_eq!(result(&two, &[("one/Image", &[1; 100]), ("two/image", &[1; 100])]).unwrap().0.len(), 1);
    }

    /// An ELF program for AArch64 with `count` segments, all of which are the whole file.
    fn program(count: u16) -> Vec<u8> {
        const LENGTH: u64 = 16 << 10;
        let mut file = vec![0; LENGTH as usize];
        file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
        let mut put = |at: usize, value: u64, size: usize| file[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        for (at, value, size) in [(16, 2, 2), (18, 183, 2), (24, RAM_BASE, 8), (32, 64, 8), (54, 56, 2), (56, count.into(), 2)] {
            put(at, value, size);
        }
        for n in 0..u64::from(count) {
            let (at, gpa) = (64 + 56 * n as usize, RAM_BASE + n * LENGTH);
            put(at, 1, 4);
            for (at, value) in [(at + 16, gpa), (at + 24, gpa), (at + 32, LENGTH), (at + 40, LENGTH)] {
                put(at, value, 8);
            }
        }
        file
    }

    #[test]
    fn kernels_with_overlapping_segments_are_refused_as_at_boot() {
        use std::io::Write;
        let zipped = |file: &[u8]| {
            let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            zipped.write_all(file).unwrap();
            zipped.finish().unwrap()
        };
        let refused = |file: &[u8]| result(&vm("a", "kernel = \"program\""), &[("program", file)]).err();
        assert_eq!((refused(&program(2)), refused(&zipped(&program(1)))), (None, None));
        let why = refused(&zipped(&program(2))).unwrap();
        assert!(why.contains("its segments have bytes of the file in common"), "{why}");
    }

    #[test]
    fn a_file_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kernel");
        fs::write(&path, "contents").unwrap();
        let mut contents = Contents::default();
        contents.read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(contents.read(&path).unwrap(), b"contents");
    }

    #[test]
    fn files_of_vms_that_are_not_rebuilt_are_left_out() {
        let text = [
            vm("disk", "kernel = \"Image\"\nserved = [{ device = \"block\", by = \"service\" }]"),
            vm("same", "kernel = \"image\"\ninitrd = \"other\""),
            vm("third", "kernel = \"third\"\ninitrd = \"other\""),
            vm("fourth", "kernel = \"fourth\""),
            vm("service", "kernel = \"service\""),
        ];
        let files: Vec<(&str, &[u8])> =
            ["Image", "image", "other", "third", "fourth", "service"].map(|name| (name, &[1_u8; 100][..])).to_vec();
        let (files, left_out) = result(&text.concat(), &files).unwrap();
        assert_eq!(files, [("fourth".to_owned(), 100)]);
        assert_eq!(left_out, ["disk", "service", "same", "third"]);
    }
}
