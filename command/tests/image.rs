//! `stile image` with contents and places that a stick can't have.

mod common;

use std::fs;
use std::process::{Command, Stdio};

use common::{Sandbox, end};

const MACHINE: &str = "[[vm]]\nkernel = \"kernel\"\nmemory = \"64M\"\n";

/// The names in the sandbox's directory, and in its directory for temporary files.
fn names(sandbox: &Sandbox) -> Vec<String> {
    let of = |dir| fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = of(sandbox.path(".")).chain(of(sandbox.tmp())).collect();
    names.sort();
    names
}

#[test]
fn a_full_disk_leaves_the_old_image() {
    let sandbox = Sandbox::new(b"");
    fs::write(sandbox.path("machine.toml"), MACHINE).expect("a file");
    fs::write(sandbox.path("stick.img"), "old").expect("a file");
    // The first run makes the cache's directories.
    let image = ["image", "machine.toml", "--files", "-o", "größe stick.img"];
    let (status, said) = end(&sandbox.stile(&image).output().expect("it starts"));
    assert_eq!((status, &said[..]), (0, ""));
    assert!(fs::metadata(sandbox.path("größe stick.img")).expect("a file").len() > 64 << 20);
    let before = names(&sandbox);
    // Files of at most 512 KiB.
    let plain = sandbox.stile(&["image", "machine.toml", "-o", "stick.img"]);
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    limited.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(sandbox.path("."));
    let (status, said) = end(&limited.stdin(Stdio::null()).output().expect("it starts"));
    assert!(status != 0 && said.contains("File too large") && said.contains("writing"), "{status}: {said}");
    assert_eq!(fs::read(sandbox.path("stick.img")).expect("a file"), b"old");
    assert_eq!(names(&sandbox), before);
}

#[test]
fn what_a_stick_cannot_have_is_refused() {
    let sandbox = Sandbox::new(b"");
    fs::create_dir(sandbox.path("folder")).expect("a directory");
    fs::write(sandbox.path("a?b"), fs::read(sandbox.path("kernel")).expect("a file")).expect("a file");
    fs::write(sandbox.path("web.img"), [0; 1 << 20]).expect("a file");
    let before = names(&sandbox);
    for (text, more, what) in [
        (MACHINE, &["-o", "folder"][..], "is a directory"),
        (MACHINE, &["-o", "none/stick.img"], "there is no directory none"),
        (MACHINE, &["-o", "/dev/full"], "is not a file: write to one, and copy that with dd"),
        ("[[vm]]\nkernle = \"kernel\"\n", &["-o", "x"], "machine.toml:2:1: unknown key \"kernle\""),
        ("[[vm]]\nkernel = \"missing\"\n", &["-o", "x"], "missing"),
        ("[[vm]]\nkernel = \"folder\"\n", &["-o", "x"], "folder"),
        ("[[vm]]\nkernel = \"kernel\"\n[[vm.disk]]\nfile = \"web.img\"\nformat = \"raw\"\n", &["-o", "x"], "vm0: the disk web.img: only"),
        ("[[vm]]\nkernel = \"a?b\"\n", &["--files", "-o", "x"], "FAT does not allow its name"),
        (MACHINE, &["--files", "--kernel", "kernel", "-o", "x"], "cannot be used with"),
        (MACHINE, &["--files", "--netboot", "x"], "cannot be used with"),
    ] {
        fs::write(sandbox.path("machine.toml"), text).expect("a file");
        let (status, said) = end(&sandbox.stile(&[&["image", "machine.toml"], more].concat()).output().expect("it starts"));
        assert!(status == 2 && said.contains(what), "{more:?}: {status}: {said}");
        fs::remove_file(sandbox.path("machine.toml")).expect("the file");
    }
    let (status, said) = end(&sandbox.stile(&["image", "--kernel", "kernel", "--files", "-o", "x"]).output().expect("it starts"));
    assert!(status == 2 && said.contains("CONFIG.toml"), "{status}: {said}");
    let after: Vec<String> = names(&sandbox).into_iter().filter(|name| name != "cache").collect();
    assert_eq!(after, before, "nothing is left over");
}
