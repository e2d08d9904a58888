use alloc::string::ToString;

use stile_board::CpuId;

use super::*;

const IMAGE: &str = r#"[machine]
arch = "aarch64"
cpus = 4
slice = "2ms"

[[vm]]
name = "one"
kernel = "Image"
cpus = [0, 1]
weight = 200

[[vm]]
name = "two"
kernel = "Image"
cap = "50%"
"#;

/// The image's virtual machines.
const VMS: &[&str] = &["one", "two"];

fn read(text: &str) -> Result<Changes, String> {
    Changes::read("STILE.TOML", text.as_bytes(), (IMAGE, VMS), 4, &[]).map_err(|mistakes| mistakes.to_string())
}

fn replaced(from: &str, to: &str) -> Result<Changes, String> {
    assert!(IMAGE.contains(from));
    read(&IMAGE.replacen(from, to, 1))
}

#[test]
fn the_same_text_changes_nothing() {
    let none = Changes { vms: vec![VmChanges::default(); 2], ..Changes::default() };
    assert_eq!(read(IMAGE), Ok(none.clone()));
    assert_eq!(read(&IMAGE.replace('\n', "\r\n")), Ok(none.clone()));
    assert_eq!(replaced("cpus = [0, 1]", "\n# comment\ncpus = [ 0,\n 1 ]"), Ok(none));
}

#[test]
fn changes_are_found() {
    assert_eq!(replaced("\"2ms\"", "\"1s\"").unwrap().slice_us, Some(1_000_000));
    assert_eq!(replaced("slice = \"2ms\"", "").unwrap().slice_us, Some(DEFAULT_SLICE_US));
    assert_eq!(replaced("cpus = 4", "cpus = 4\nmitigations = \"off\"").unwrap().mitigations, Some(Mitigations::Off));
    let changes = replaced("cpus = [0, 1]\nweight = 200", "cpus = \"3\"\npinned = true\ncap = \"10%\"\non_reset = \"stop\"").unwrap();
    let three = [CpuId::new(3).unwrap()].into_iter().collect();
    let one = VmChanges {
        cpus: Some((three, None)),
        pinned: Some(true),
        weight: Some(100),
        cap: Some(Some(10)),
        on_reset: Some(OnReset::Stop),
        ..VmChanges::default()
    };
    assert_eq!(changes.vms, [one, VmChanges::default()]);
    assert_eq!(changes.keys, ["one: cpus", "one: pinned", "one: weight", "one: cap", "one: on_reset"]);
    let two = VmChanges { cap: Some(None), wfi_passthrough: Some(false), ..VmChanges::default() };
    let changes = replaced("cap = \"50%\"", "techniques = { wfi_passthrough = false }").unwrap();
    assert_eq!(changes.vms, [VmChanges::default(), two]);
}

#[test]
fn virtual_machines_are_removed() {
    let (first, second) = IMAGE.split_at(IMAGE.rfind("[[vm]]").unwrap());
    let removed = VmChanges { is_removed: true, ..VmChanges::default() };
    let changes = read(first).unwrap();
    assert_eq!((&changes.vms[..], &changes.keys[..]), (&[VmChanges::default(), removed][..], &["two: removed".to_owned()][..]));
    let machine = &first[..first.find("[[vm]]").unwrap()];
    assert_eq!(read(&format!("{machine}{second}")).unwrap().vms, [removed, VmChanges::default()]);
    for served in [
        "[[vm.served]]\ndevice = \"block\"\nby = \"one\"",
        "[[vm.disk]]\nfile = \"web.img\"\nserved = true",
        "[[vm.net]]\nserved = true",
        "[[vm.share]]\npath = \"web\"\ntag = \"web\"\nserved = true",
    ] {
        let image = format!("{IMAGE}{served}\n");
        let mistakes = Changes::read("STILE.TOML", first.as_bytes(), (&image, VMS), 4, &[]).unwrap_err().to_string();
        assert_eq!(
            mistakes,
            "STILE.TOML: virtual machine \"two\" can't be removed here, since virtual machines serve others devices; \
             expected the virtual machines of the image, or a new image",
            "{served}"
        );
    }
}

#[test]
fn mistakes_are_shown_with_their_place() {
    let message = |from: &str, to: &str| replaced(from, to).unwrap_err();
    assert_eq!(
        message("weight = 200", "weight = 0"),
        "STILE.TOML:10:10: the weight 0 is out of range; expected 1 to 10000; a VM that is not given one has 100\n   |\n10 | weight = 0\n   |          ^"
    );
    let first = |from: &str, to: &str| message(from, to).lines().next().unwrap().to_owned();
    assert_eq!(
        first("kernel = \"Image\"", "kernel = \"Imag\""),
        "STILE.TOML:8:10: the folder VMS has no file \"Imag\"; expected kernel as in the image, or the name of a file there"
    );
    assert_eq!(
        first("kernel = \"Image\"\n", ""),
        "STILE.TOML:6:1: \"kernel\" can't be removed here: the image was made by it; expected the image's value, or a new image by \
         `stile image`"
    );
    assert_eq!(
        first("cpus = 4", "cpus = 4\nmemory = \"1G\""),
        "STILE.TOML:4:10: \"memory\" can't be added here: the image was made without it; expected no such key, or a new image by \
         `stile image`"
    );
    assert_eq!(
        first("\"two\"", "\"tow\""),
        "STILE.TOML:13:8: the image has no virtual machine \"tow\"; expected one of \"one\", \"two\", or for a new one a kernel in the \
         folder VMS; did you mean \"two\"?"
    );
    assert_eq!(first("[0, 1]", "[0, 4]"), "STILE.TOML:9:12: there is no CPU 4; expected 0 to 3");
    assert_eq!(
        first("\"two\"", "\"one\""),
        "STILE.TOML:13:8: another virtual machine is called \"one\" already; expected a name of its own"
    );
    assert!(first("[machine]", "[machine").starts_with("STILE.TOML:1:"));
    assert!(first("weight", "wieght").ends_with("did you mean \"weight\"?"));
    let bytes = Changes::read("STILE.TOML", b"# \xff", (IMAGE, VMS), 4, &[]).unwrap_err().to_string();
    let long = vec![b'#'; LONGEST + 1];
    assert_eq!(
        Changes::read("STILE.TOML", &long, (IMAGE, VMS), 4, &[]).unwrap_err().to_string(),
        "STILE.TOML: the file is too long; expected at most 64K"
    );
    assert!(bytes.starts_with("STILE.TOML:1:3: a byte that is not UTF-8; expected a text file"), "{bytes}");
}

/// Reads [`IMAGE`] with another virtual machine, with files on the medium.
fn with_added(more: &str) -> Result<Changes, String> {
    let text = format!("{IMAGE}\n[[vm]]\n{more}");
    Changes::read("STILE.TOML", text.as_bytes(), (IMAGE, VMS), 4, &["vmlinuz", "initrd.gz"]).map_err(|mistakes| mistakes.to_string())
}

#[test]
fn virtual_machines_are_added() {
    let changes = with_added("name = \"web\"\nkernel = \"boot/vmlinuz\"\ncpus = [2]\n").unwrap();
    let two = [CpuId::new(2).unwrap()].into_iter().collect();
    let web = VmChanges { cpus: Some((two, None)), ..VmChanges::default() };
    assert_eq!(changes.vms, [VmChanges::default(), VmChanges::default(), web]);
    assert_eq!(changes.keys, ["web: added, VMS\\vmlinuz"]);
    let [remake] = &changes.remakes[..] else { panic!("{changes:?}") };
    let value = |given: &Option<Given<String>>| given.as_ref().map(|given| given.value.clone());
    assert_eq!((remake.vm, &remake.name[..], value(&remake.kernel)), (2, "web", Some("vmlinuz".to_owned())));
    assert_eq!((remake.initrd.clone(), remake.has_initrd, &remake.append.new[..]), (Some(None), false, ""));
    let memory = remake.memory.as_ref().map(|given| given.value);
    assert_eq!((memory, remake.vcpus.as_ref().map(|given| given.value)), (Some(512 << 20), Some(1)));
    let changes = with_added("kernel = \"vmlinuz\"\ninitrd = \"initrd.gz\"\nappend = \"quiet\"\nmemory = \"64M\"\nvcpus = 3\n").unwrap();
    let [remake] = &changes.remakes[..] else { panic!("{changes:?}") };
    assert_eq!((&remake.name[..], value(remake.initrd.as_ref().unwrap())), ("vm2", Some("initrd.gz".to_owned())));
    let memory = remake.memory.as_ref().map(|given| given.value);
    assert_eq!((memory, remake.vcpus.as_ref().map(|given| given.value), &remake.append.new[..]), (Some(64 << 20), Some(3), "quiet"));
    // The number of a removed virtual machine stays free.
    let text = format!("{}[[vm]]\nname = \"web\"\nkernel = \"vmlinuz\"\n", &IMAGE[..IMAGE.find("[[vm]]").unwrap()]);
    let changes = Changes::read("STILE.TOML", text.as_bytes(), (IMAGE, VMS), 4, &["vmlinuz"]).unwrap();
    assert_eq!(changes.vms.iter().map(|vm| vm.is_removed).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(changes.remakes[0].vm, 2);
}

#[test]
fn only_what_a_booting_stile_can_make_is_added() {
    for (more, whats) in [
        ("name = \"web\"\n", &["the image has no virtual machine \"web\""][..]),
        ("name = \"tow\"\nkernel = \"vmlinux\"\n", &["did you mean \"two\"?", "no file \"vmlinux\"", "did you mean \"vmlinuz\"?"]),
        ("kernel = \"debian\"\n", &["the image has no virtual machine \"vm2\"", "the kernel \"debian\" is not available at boot"]),
        ("kernel = \"vmlinuz\"\ninitrd = \"busybox\"\n", &["the initrd \"busybox\" is not available at boot"]),
        ("kernel = \"vmlinuz\"\nnested = true\n", &["\"nested\" can't be added here"]),
        ("kernel = \"vmlinuz\"\n[[vm.pci]]\nfunction = \"00:03.0\"\n", &["\"pci\" can't be added here"]),
        ("kernel = \"vmlinuz\"\n[vm.techniques]\nipi = \"trapped\"\n", &["\"ipi\" can't be added here"]),
        ("kernel = \"vmlinuz\"\nmemory = \"3M\"\nvcpus = 999\n", &["can't have 3M of memory", "999 is out of range"]),
        ("name = \"Web\"\nkernel = \"vmlinuz\"\n", &["\"Web\" can't be a name"]),
        ("name = \"a\"\nkernel = \"vmlinuz\"\n[[vm]]\nname = \"a\"\nkernel = \"vmlinuz\"\n", &["another virtual machine is called \"a\""]),
    ] {
        let mistakes = with_added(more).unwrap_err();
        assert!(whats.iter().all(|what| mistakes.contains(what)), "{more}: {mistakes}");
    }
    let many = "[[vm]]\nkernel = \"vmlinuz\"\n";
    assert!(with_added(&many["[[vm]]\n".len()..].to_owned().chars().chain(many.repeat(125).chars()).collect::<String>()).is_ok());
    let mistakes = with_added(&(many["[[vm]]\n".len()..].to_owned() + &many.repeat(126))).unwrap_err();
    assert!(mistakes.contains("there are 129 virtual machines, those of the image included; expected at most 128"), "{mistakes}");
}

/// Reads [`IMAGE`] with another text in the place of one in it, with files on the medium.
fn remade(from: &str, to: &str, files: &[&str]) -> Result<Changes, String> {
    assert!(IMAGE.contains(from));
    Changes::read("STILE.TOML", IMAGE.replacen(from, to, 1).as_bytes(), (IMAGE, VMS), 4, files).map_err(|mistakes| mistakes.to_string())
}

#[test]
fn virtual_machines_are_made_anew() {
    let keys = "kernel = \"boot/Image-2\"\ninitrd = \"initrd\"\nmemory = \"1G\"\nvcpus = 3\nappend = \"quiet\"";
    let changes = remade("kernel = \"Image\"", keys, &["IMAGE-2", "initrd"]).unwrap();
    let all = ["one: kernel, VMS\\IMAGE-2", "one: initrd, VMS\\initrd", "one: append", "one: memory", "one: vcpus"];
    assert_eq!((&changes.keys[..], changes.remakes.len()), (&all.map(ToOwned::to_owned)[..], 1));
    let one = &changes.remakes[0];
    let value = |given: &Option<Given<String>>| given.as_ref().map(|given| given.value.clone());
    assert_eq!((one.vm, value(&one.kernel), value(one.initrd.as_ref().unwrap())), (0, Some("IMAGE-2".into()), Some("initrd".into())));
    assert_eq!((one.memory.as_ref().unwrap().value, one.vcpus.as_ref().unwrap().value), (1 << 30, 3));
    assert_eq!((&one.append.old[..], &one.append.new[..]), ("", "quiet"));
    // A file with the image's name takes the place of the image's, for each virtual machine that has it.
    let changes = Changes::read("STILE.TOML", IMAGE.as_bytes(), (IMAGE, VMS), 4, &["Image"]).unwrap();
    assert_eq!(changes.keys, ["one: kernel, VMS\\Image", "two: kernel, VMS\\Image"]);
    assert_eq!(changes.vms, [VmChanges::default(); 2]);
    let removed = remade("kernel = \"Image\"", "kernel = \"Image\"\ninitrd = \"none\"", &[]).unwrap();
    assert_eq!(removed.remakes[0].initrd, Some(None));
}

#[test]
fn what_only_the_command_has_can_not_be_named() {
    let first = |to: &str, files: &[&str]| remade("kernel = \"Image\"", to, files).unwrap_err().lines().next().unwrap().to_owned();
    for word in ["debian", "debian:6.1", "debian-xen", "stile", "disk"] {
        let mistake = first(&format!("kernel = \"{word}\""), &[word]);
        assert!(mistake.contains(&format!("the kernel \"{word}\" is not available at boot: only `stile` provides it")), "{mistake}");
    }
    let busybox = first("kernel = \"Image\"\ninitrd = \"busybox\"", &["busybox"]);
    assert!(busybox.contains("the folder VMS has no file \"busybox\""), "{busybox}");
    let near = first("kernel = \"Imgae-2\"", &["Image-2"]);
    assert!(near.ends_with("did you mean \"Image-2\"?"), "{near}");
    for (key, why) in [
        ("memory = \"1G\"\n[[vm.served]]\ndevice = \"block\"", "served devices"),
        ("vcpus = 4\ntopology = \"1x2x2\"", "a topology"),
        ("memory = \"1G\"\ndomain = [{ kernel = \"x\" }]", "domains"),
    ] {
        let mistake = first(&format!("kernel = \"Image\"\n{key}"), &[]);
        assert!(mistake.contains(&format!("since the virtual machine has {why}")), "{mistake}");
    }
    let image = IMAGE.replacen("\"Image\"", "\"debian\"", 1);
    let mistake = Changes::read("STILE.TOML", IMAGE.as_bytes(), (&image, VMS), 4, &["Image"]).unwrap_err().to_string();
    assert!(mistake.contains("the image's initial RAM file system belongs to the kernel \"debian\""), "{mistake}");
}

#[test]
fn the_end_of_the_command_line_is_replaced() {
    let append = |old: &str, new: &str| Append { old: old.into(), new: new.into(), place: Some(Place::File) };
    assert_eq!(append("quiet", "debug").apply("console=ttyS0 quiet").as_deref(), Some("console=ttyS0 debug"));
    assert_eq!(append("", "debug").apply("console=ttyS0").as_deref(), Some("console=ttyS0 debug"));
    assert_eq!(append(" quiet ", "").apply("quiet").as_deref(), Some(""));
    assert_eq!(append("quiet", "debug").apply("console=ttyS0 other"), None);
    assert_eq!(Append::default().apply("anything").as_deref(), Some("anything"));
}

#[test]
fn virtual_machines_that_no_text_has_stay() {
    let vms = ["one", "two", "service"];
    let read = |text: &str| Changes::read("STILE.TOML", text.as_bytes(), (IMAGE, &vms), 4, &["vmlinuz"]);
    let added = |name: &str| format!("{IMAGE}[[vm]]\nname = \"{name}\"\nkernel = \"vmlinuz\"\n");
    assert_eq!(read(IMAGE).unwrap().vms, [VmChanges::default(); 3]);
    let changes = read(&added("three")).unwrap();
    assert_eq!((changes.vms.len(), changes.remakes.len()), (4, 1));
    assert_eq!((changes.remakes[0].vm, &changes.remakes[0].name[..]), (3, "three"));
    let mistake = read(&added("service")).unwrap_err().to_string();
    assert_eq!(
        mistake.lines().next(),
        Some("STILE.TOML:17:8: the image has a virtual machine \"service\", which serves the others devices; expected another name")
    );
}

#[test]
fn files_of_disks_in_memory_change() {
    let disk = |more: &str| format!("[[vm.disk]]\nfile = \"images/data.img\"\n{more}\n");
    let image = format!("{IMAGE}{}{}", disk("in_memory = true"), disk("in_memory = true"));
    let read = |text: &str, files: &[&str]| {
        let result = Changes::read("STILE.TOML", text.as_bytes(), (&image, VMS), 4, files);
        result.map_err(|mistakes| mistakes.to_string().lines().next().unwrap_or_default().to_owned())
    };
    let files = |changes: &Changes| -> Vec<_> {
        let all = changes.remakes.iter().flat_map(|remake| remake.disks.iter());
        all.map(|disk| disk.as_ref().map(|given| given.value.clone())).collect()
    };
    assert_eq!(read(&image, &["other"]).unwrap().remakes, []);
    let same = read(&image, &["Data.img"]).unwrap();
    assert_eq!(files(&same), [Some("Data.img".to_owned()), Some("Data.img".to_owned())]);
    assert_eq!(same.keys, ["two: disk, VMS\\Data.img, VMS\\Data.img"]);
    let other = image.replacen("images/data.img", "new.img", 1);
    let changed = read(&other, &["new.img"]).unwrap();
    assert_eq!((files(&changed), changed.remakes[0].files().count()), (vec![Some("new.img".to_owned()), None], 1));
    let start = "STILE.TOML:17:8: the folder VMS has no file \"new.img\"; expected file as in the image, or the name of a file there";
    assert!(read(&other, &["newer.img"]).unwrap_err().starts_with(start));
    // Other keys, and other numbers of disks.
    for wrong in [
        image.replacen("in_memory = true", "in_memory = false", 1),
        image.replacen("in_memory = true", "in_memory = true\nformat = \"raw\"", 1),
        format!("{image}{}", disk("in_memory = true")),
        image.replacen(&disk("in_memory = true"), "", 1),
    ] {
        let said = read(&wrong, &["data.img"]).unwrap_err();
        assert!(said.contains("\"disk\" can't be changed here: the image was made by it"), "{said}\n{wrong}");
    }
}

#[test]
fn added_virtual_machines_have_disks_in_memory() {
    let added = |disk: &str| format!("{IMAGE}[[vm]]\nname = \"new\"\nkernel = \"Image\"\n[[vm.disk]]\n{disk}\n");
    let read = |disk: &str| {
        let result = Changes::read("STILE.TOML", added(disk).as_bytes(), (IMAGE, VMS), 4, &["Image", "web.img"]);
        result.map_err(|mistakes| mistakes.to_string().lines().next().unwrap_or_default().to_owned())
    };
    let changes = read("file = \"web.img\"\nin_memory = true").unwrap();
    let new = changes.remakes.iter().find(|remake| remake.name == "new").unwrap();
    assert_eq!(new.disks.iter().flatten().map(|given| &given.value[..]).collect::<Vec<_>>(), ["web.img"]);
    assert!(read("file = \"none.img\"\nin_memory = true").unwrap_err().contains("the folder VMS has no file \"none.img\""));
    assert!(read("in_memory = true").unwrap_err().contains("this disk has no image"));
    for (other, said) in [
        ("", "STILE.TOML:19:1: this disk is not in memory: others can't be added here; expected in_memory = true"),
        ("in_memory = true\nserved = true", "STILE.TOML:19:1: a disk in memory can't be served"),
        ("in_memory = true\nreadonly = true", "STILE.TOML:19:1: a disk in memory can't be read-only"),
        ("in_memory = true\nformat = \"qcow2\"", "STILE.TOML:22:10: a disk in memory can't have the format \"qcow2\""),
    ] {
        let found = read(&format!("file = \"web.img\"\n{other}")).unwrap_err();
        assert!(found.starts_with(said), "{found}");
    }
    let five = "file = \"web.img\"\nin_memory = true\n[[vm.disk]]\n".repeat(4) + "file = \"web.img\"\nin_memory = true";
    assert!(read(&five).unwrap_err().contains("there are 5 disks; expected at most 4"));
}
