//! Resolved configurations, and the messages about invalid ones.

use std::{fs, time::Duration};

use proptest::prelude::*;
use stile_blob::{
    ApicVirtualization, BinaryPoint, CpuClass, DecodeCache, Gic, Interrupts, IpiAccess, Mitigations, Nested, OnReset, Share, TimerAccess,
};
use stile_board::CpuSet;

use super::*;

/// A folder with the files that the tests' configurations name.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["Image", "initrd.img"] {
        fs::write(folder.path().join(name), name).expect("a file in it");
    }
    folder
}

fn read(text: &str) -> Result<MachineConfig, Mistakes> {
    MachineConfig::from_text("machine.toml", text, folder().path(), &Flags::default())
}

/// The messages about an invalid configuration.
fn refusal(text: &str) -> String {
    read(text).expect_err("an invalid configuration").to_string()
}

/// Compares the messages about each configuration with the snapshot `name`.
macro_rules! refused {
    ($($name:ident: $text:expr;)*) => { $(
        #[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), refusal($text));
        }
    )* };
}

refused! {
    nothing: "";
    only_a_machine: "[machine]\ncpus = 2\n";
    syntax: "[machine\ncpus = 2\n[[vm]]\nkernel = Image\n";
    unknown_keys: "[machin]\n[[vm]]\nkernal = \"Image\"\nmemroy = \"1G\"\ncolour = \"red\"\n[vm.techniques]\nwfi_pasthrough = true\n";
    wrong_types: "[machine]\ncpus = \"2\"\nslice = 5\nmemory = 2.5\n[[vm]]\nkernel = [\"Image\"]\nmemory = 512\npinned = \"yes\"\ncpus = 1\nvcpus = 1e3\ntechniques = true\nname = 1979-05-27\n";
    bad_values: "[machine]\narch = \"arm64\"\ncpus = 513\ncpu = \"max; rm\"\nslice = \"5m\"\nmemory = \"2GB\"\n[[vm]]\nname = \"My_Guest\"\nkernel = \"Image\"\nmemory = \"3M\"\nvcpus = 0\non_reset = \"reboot\"\ncpus = \"0..3\"\n";
    shares: "[[vm]]\nkernel = \"Image\"\nweight = 0\ncap = \"150\"\n[[vm]]\nkernel = \"Image\"\nweight = 10001\ncap = \"0%\"\n[[vm]]\nkernel = \"Image\"\ncap = 50\n";
    nodes: "[machine]\ncpus = 2\nnodes = 3\n[[vm]]\nkernel = \"Image\"\n";
    nodes_of_a_pc: "[machine]\narch = \"x86_64\"\nnodes = 2\n[[vm]]\nkernel = \"Image\"\n";
    too_many_nodes: "[machine]\ncpus = 16\nnodes = 9\n[[vm]]\nkernel = \"Image\"\n";
    topologies: "[machine]\narch = \"x86_64\"\n[[vm]]\nkernel = \"Image\"\ntopology = \"2x2\"\n[[vm]]\nkernel = \"Image\"\ntopology = \"8x8x8\"\n[[vm]]\nkernel = \"Image\"\nvcpus = 6\ntopology = \"1x4x2\"\n[[vm]]\nkernel = \"Image\"\ntopology = \"2x3x1\"\n[vm.techniques]\nipi = \"direct\"\n[[vm]]\nkernel = \"Image\"\ntopology = 4\n[[vm]]\nkernel = \"Image\"\ntopology = \"0x1x256\"\n";
    out_of_range: "[machine]\nslice = \"2s\"\ncpus = 99999999999999999999\nmemory = \"1T\"\n[[vm]]\nname = \"a-name-that-is-much-too-long-for-a-vm\"\nkernel = \"Image\"\nmemory = \"1K\"\nvcpus = -1\n";
    ablations: "[[vm]]\nkernel = \"Image\"\n[vm.techniques]\nablate = [\"state\", \"times\"]\n[[vm]]\nkernel = \"Image\"\n[vm.techniques]\nablate = \"traps\"\n[[vm]]\nkernel = \"Image\"\n[vm.techniques]\nablate = [1]\n";
    memory_is_a_bare_number: "[[vm]]\nkernel = \"Image\"\nmemory = \"512\"\n";
    no_kernel: "[[vm]]\nname = \"a\"\n\n[[vm]]\nkernel = \"Image\"\n";
    files_not_there: "[[vm]]\nkernel = \"Imgae\"\ninitrd = \"initrd.gz\"\n[[vm]]\nname = \"b\"\nkernel = \"debain\"\ninitrd = \"bussybox\"\n[[vm]]\nname = \"c\"\nkernel = \".\"\ninitrd = \"\"\n";
    debian_has_none: "[[vm]]\nkernel = \"debian:6.13\"\n";
    same_name_twice: "[[vm]]\nname = \"a\"\nkernel = \"Image\"\n[[vm]]\nname = \"a\"\nkernel = \"Image\"\n";
    cpus_not_there: "[machine]\ncpus = 4\n[[vm]]\nkernel = \"Image\"\ncpus = [0, 4, -1]\n[[vm]]\nkernel = \"Image\"\ncpus = \"2-6\"\n[[vm]]\nkernel = \"Image\"\ncpus = []\n";
    the_only_cpu: "[machine]\ncpus = 1\n[[vm]]\nkernel = \"Image\"\ncpus = [1]\n";
    cpus_of_no_machine: "[[vm]]\nkernel = \"Image\"\ncpus = [512]\n";
    too_little_memory: "[machine]\nmemory = \"1G\"\n[[vm]]\nkernel = \"Image\"\nmemory = \"1G\"\n";
    too_many_vms: &"[[vm]]\nkernel = \"Image\"\n".repeat(129);
    one_table_for_vms: "[vm]\nkernel = \"Image\"\n";
    vms_that_are_none: "vm = [1]\n";
    no_vms: "vm = []\n";
    key_given_twice: "[[vm]]\nkernel = \"Image\"\nkernel = \"Image\"\n";
    command_without_busybox: "[[vm]]\nkernel = \"Image\"\nexec = \"true\"\n";
    nul_in_text: "[[vm]]\nkernel = \"Image\"\nappend = \"a\\u0000b\"\n";
    wide_characters_before: "[[vm]]\nname = \"gäste\"\nkernel = \"Image\" # Ünïcödé\n\"schlüssel\" = \"日本\"\n";
    text_over_lines: "[[vm]]\nkernel = \"Image\"\nmemory = \"\"\"\n512\nM\"\"\"\n";
    tabs_and_carriage_returns: "[[vm]]\r\n\tkernel\t= \"Image\"\r\n\tvcpus\t= 999\r\n";
}

#[test]
fn defaults() {
    let config = read("[[vm]]\nkernel = \"Image\"\n").expect("valid");
    assert_eq!((config.arch, config.cpus, config.memory), (Arch::Aarch64, 1, None));
    assert_eq!((&config.cpu_model[..], config.slice), ("max", Duration::from_millis(5)));
    let [vm] = &config.vms[..] else { panic!("one virtual machine") };
    assert_eq!((&vm.name[..], vm.memory, vm.vcpus, vm.cpus), ("vm0", 512 << 20, 1, CpuSet::EMPTY));
    assert!(matches!(&vm.kernel, KernelSource::File(path) if path.ends_with("Image")));
    assert_eq!((&vm.initrd, &vm.append[..], vm.pinned), (&InitrdSource::None, "", false));
    assert_eq!((vm.on_reset, &vm.exec, vm.techniques.wfi_passthrough), (OnReset::Restart, &None, true));
    assert_eq!(config.physical_memory(10 << 20), Ok((512 + 10 + 256) << 20));
    assert_eq!(config.present_cpus(), CpuSet::from_bits(1));
}

/// Each vCPU of a virtual machine with an EL2 has 4 MiB of shadow tables reserved.
#[test]
fn nested_virtual_machines_need_more_memory() {
    let vms = "[[vm]]\nkernel = \"Image\"\nnested = true\nvcpus = 3\n[[vm]]\nkernel = \"Image\"\nvcpus = 2\n";
    let config = read(&format!("[machine]\ncpus = 1\n{vms}")).expect("valid");
    assert_eq!(config.physical_memory(0), Ok((1024 + 12 + 256) << 20));
    let config = read(&format!("[machine]\nmemory = \"1100M\"\n{vms}")).expect("just enough");
    assert_eq!(config.physical_memory(0), Ok(1100 << 20));
    let refusal = config.physical_memory(1).expect_err("a byte too much");
    assert!(refusal.contains("Stile (76M)"), "{refusal}");
    let mistakes = read(&format!("[machine]\nmemory = \"1098M\"\n{vms}")).expect_err("too little").to_string();
    assert!(mistakes.contains("1098M") && mistakes.contains("76M"), "{mistakes}");
}

#[test]
fn everything_given() {
    let config = read(
        "[machine]\narch = \"aarch64\"\ncpus = 4\nnodes = 3\nmemory = \"2G\"\ncpu = \"cortex-a57\"\nslice = \"1ms\"\nmitigations = \"off\"\n\
         [[vm]]\nname = \"a\"\nkernel = \"Image\"\ninitrd = \"initrd.img\"\nappend = \"quiet\"\nmemory = \"256M\"\nvcpus = 2\n\
         cpus = [1, 3]\npinned = true\nweight = 250\ncap = \"150%\"\non_reset = \"stop\"\n\
         [vm.budget]\nexits_per_second = 500\nexit_time = \"0.5%\"\n\
         [vm.techniques]\nwfi_passthrough = false\n\
         [[vm]]\nkernel = \"debian:6.1\"\nexec = \"uname -a\"\ncpus = \"0-2\"\n\
         [[vm]]\nkernel = \"debian-installer\"\n",
    )
    .expect("valid");
    assert_eq!((config.cpus, config.memory), (4, Some(2 << 30)));
    assert_eq!((&config.cpu_model[..], config.slice), ("cortex-a57", Duration::from_millis(1)));
    assert_eq!(config.mitigations, Mitigations::Off);
    assert_eq!(config.present_cpus(), CpuSet::from_bits(0b1111));
    assert_eq!(config.node_cpus(), [0..1, 1..2, 2..4]);
    let [a, b, c] = &config.vms[..] else { panic!("three virtual machines") };
    assert!(matches!(&a.initrd, InitrdSource::File(path) if path.ends_with("initrd.img")));
    assert_eq!((&a.append[..], a.memory, a.vcpus, a.cpus), ("quiet", 256 << 20, 2, CpuSet::from_bits(0b1010)));
    assert!(a.pinned && !a.techniques.wfi_passthrough);
    assert_eq!(a.on_reset, OnReset::Stop);
    assert_eq!((a.share, b.share), (Share { weight: 250, cap: Some(150) }, Share::default()));
    assert_eq!((a.budget.exits_per_second, a.budget.exit_time, b.budget.is_empty()), (Some(500), Some(5_000), true));
    assert_eq!((&b.name[..], &b.kernel), ("vm1", &KernelSource::Debian(DebianKernel::V6_1)));
    assert_eq!((&b.initrd, b.exec.as_deref(), b.cpus), (&InitrdSource::Busybox, Some("uname -a"), CpuSet::from_bits(0b111)));
    assert_eq!((&c.initrd, c.memory), (&InitrdSource::Bundled, 1 << 30));
}

#[test]
fn answers_are_for_the_installer() {
    let folder = folder();
    fs::write(folder.path().join("answers.cfg"), "").expect("a file");
    let read = |text: &str| MachineConfig::from_text("machine.toml", text, folder.path(), &Flags::default());
    let preseed = "preseed = \"answers.cfg\"\n";
    let vm = &read(&format!("[[vm]]\nkernel = \"debian-installer\"\n{preseed}")).unwrap().vms[0];
    assert!(matches!(&vm.initrd, InitrdSource::Answered(path) if path.ends_with("answers.cfg")), "{:?}", vm.initrd);

    let refusal = read(&format!("[[vm]]\nkernel = \"debian\"\n{preseed}")).unwrap_err().to_string();
    assert!(refusal.contains("no effect") && refusal.contains("kernel = \"debian-installer\""), "{refusal}");
    let refusal = read(&format!("[[vm]]\nkernel = \"debian-installer\"\ninitrd = \"none\"\n{preseed}")).unwrap_err().to_string();
    assert!(refusal.contains("initrd = \"none\"") && refusal.contains("one of the two"), "{refusal}");
    let refusal = read("[[vm]]\nkernel = \"debian-installer\"\npreseed = \"answer.cfg\"\n").unwrap_err().to_string();
    assert!(refusal.contains("answers.cfg"), "{refusal}");
}

#[test]
fn classes_of_cpus() {
    let class = |word: &str| {
        let config = read(&format!("[[vm]]\nkernel = \"Image\"\ncpus = \"{word}\"\n")).expect("valid");
        (config.vms[0].class, config.vms[0].cpus)
    };
    assert_eq!(class("big"), (Some(CpuClass::Nth(0)), CpuSet::EMPTY));
    assert_eq!(class("little"), (Some(CpuClass::Last), CpuSet::EMPTY));
    assert_eq!(class("class 1"), (Some(CpuClass::Nth(1)), CpuSet::EMPTY));
    assert_eq!(class("0"), (None, CpuSet::from_bits(1)));
}

#[test]
fn reset_actions() {
    let vm = |on_reset: &str| format!("[[vm]]\nkernel = \"Image\"\non_reset = \"{on_reset}\"\n");
    let given = |on_reset| read(&vm(on_reset)).expect("valid").vms[0].on_reset;
    assert_eq!(given("restart"), OnReset::Restart);
    assert_eq!(given("restart:10"), OnReset::RestartAtMost(10));
    assert_eq!(given("stop"), OnReset::Stop);
    for wrong in ["restart:0", "restart:", "restart:-1", "restart:4294967296", "stop:1"] {
        assert!(refusal(&vm(wrong)).contains("is not a reset action"), "{wrong}");
    }
}

#[test]
fn number_of_cpus_follows_from_those_named() {
    let config = read("[[vm]]\nkernel = \"Image\"\ncpus = \"2,5\"\n").expect("valid");
    assert_eq!(config.cpus, 6);
    let config = read("[[vm]]\nkernel = \"Image\"\ncpus = [63]\n").expect("valid");
    assert_eq!((config.cpus, config.present_cpus()), (64, CpuSet::from_bits(u64::MAX)));
    let config = read("[[vm]]\nkernel = \"Image\"\ncpus = \"100-511\"\n").expect("valid");
    assert_eq!((config.cpus, config.present_cpus(), config.vms[0].cpus.len()), (512, CpuSet::ALL, 412));
    assert!(refusal("[[vm]]\nkernel = \"Image\"\ncpus = [512]\n").contains("there is no CPU 512"));
}

#[test]
fn memory_for_the_image() {
    let config = read("[machine]\nmemory = \"1G\"\n[[vm]]\nkernel = \"Image\"\n").expect("valid");
    assert_eq!(config.physical_memory(400 << 20), Ok(1 << 30));
    let refusal = config.physical_memory((448 << 20) + 1).expect_err("a byte too much");
    insta::assert_snapshot!("memory_for_the_image", refusal);
}

#[test]
fn flags_alone() {
    let flags = Flags {
        kernel: Some("debian".to_owned()),
        vcpus: Some(2),
        memory: Some("1G".to_owned()),
        cpus: Some("0-1".to_owned()),
        pinned: true,
        exec: Some("true".to_owned()),
        machine_cpus: Some(3),
        ..Flags::default()
    };
    let config = MachineConfig::load(None, &flags).expect("valid");
    assert_eq!((config.cpus, config.vms.len()), (3, 1));
    let vm = &config.vms[0];
    assert_eq!((vm.vcpus, vm.memory, vm.cpus, vm.pinned), (2, 1 << 30, CpuSet::from_bits(0b11), true));
    assert_eq!((&vm.initrd, vm.exec.as_deref()), (&InitrdSource::Busybox, Some("true")));
}

#[test]
fn wrong_flags() {
    let flags = Flags {
        kernel: Some("debain".to_owned()),
        vcpus: Some(999),
        memory: Some("lots".to_owned()),
        cpus: Some("3".to_owned()),
        machine_cpus: Some(2),
        ..Flags::default()
    };
    let mistakes = MachineConfig::load(None, &flags).expect_err("wrong");
    assert_eq!(mistakes.count(), 4);
    insta::assert_snapshot!("wrong_flags", mistakes);
    let nothing = MachineConfig::load(None, &Flags::default()).expect_err("no kernel");
    insta::assert_snapshot!("no_flags", nothing);
}

#[test]
fn flags_over_a_file() {
    let one = "[[vm]]\nname = \"a\"\nkernel = \"debian\"\nmemory = \"wrong\"\n";
    let flags = Flags { memory: Some("256M".to_owned()), exec: Some("true".to_owned()), ..Flags::default() };
    let read = |text: &str| MachineConfig::from_text("m.toml", text, Path::new(""), &flags);
    let config = read(one).expect("the flag overrides the invalid value");
    assert_eq!((config.vms[0].memory, &config.vms[0].name[..]), (256 << 20, "a"));
    let two = "[[vm]]\nkernel = \"debian\"\n[[vm]]\nkernel = \"debian\"\n";
    insta::assert_snapshot!("flags_over_two_vms", read(two).expect_err("for which?"));
}

#[test]
fn files() {
    let folder = folder();
    let path = folder.path().join("machine.toml");
    fs::write(&path, "[[vm]]\nkernel = \"Image\"\n").expect("a file");
    assert!(MachineConfig::load(Some(&path), &Flags::default()).is_ok());
    fs::write(&path, b"[[vm]]\nkernel = \"\xff\"\n").expect("a file");
    let said = |path: &Path| {
        let mistakes = MachineConfig::load(Some(path), &Flags::default()).expect_err("wrong");
        mistakes.to_string().replace(&folder.path().display().to_string(), "FOLDER")
    };
    insta::assert_snapshot!("file_of_other_bytes", said(&path));
    insta::assert_snapshot!("file_misspelt", said(&folder.path().join("machin.toml")));
}

#[test]
fn colours() {
    let mistakes = read("[[vm]]\nkernel = 1\n").expect_err("wrong");
    assert!(mistakes.render(Look { colour: true, width: None }).contains('\x1b'));
    assert!(!mistakes.render(Look::default()).contains('\x1b'));
}

#[test]
fn mistakes_fit_a_terminal() {
    let text = "[[vm]]\nkernel = \"debian\"\nwieght = 3\n[vm.techniques]\nnestedd = 1\n";
    let whole = read(text).expect_err("wrong");
    assert!(whole.to_string().lines().any(|line| line.len() > 200));
    insta::assert_snapshot!("mistakes_in_80_columns", whole.render(Look { colour: false, width: Some(80) }));
}

const SAMPLE: &str = "[machine]\ncpus = 2\nmemory = \"1G\"\n[[vm]]\nname = \"a\"\nkernel = \"debian\"\ncpus = [0, 1]\nvcpus = 2\n\
    pinned = true\n[vm.techniques]\nwfi_passthrough = false\n[[vm]]\nkernel = \"debian:6.1\"\nmemory = \"64M\"\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A file with arbitrary changes is read, or its mistakes can be shown.
    #[test]
    fn mutated_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), "[\\[\\]=\"0-9a-z\n{}#,ü-]{0,3}", 0..4usize), 1..4)
    ) {
        let mut text: Vec<char> = SAMPLE.chars().collect();
        for (at, insert, remove) in edits {
            let at = at.index(text.len());
            let end = (at + remove).min(text.len());
            text.splice(at..end, insert.chars());
        }
        let text: String = text.into_iter().collect();
        match MachineConfig::from_text("m.toml", &text, Path::new(""), &Flags::default()) {
            Ok(config) => prop_assert!(config.vms.iter().all(|vm| vm.vcpus >= 1 && vm.memory > 0)),
            Err(mistakes) => {
                prop_assert!(mistakes.count() > 0);
                let look = Look { colour: true, width: Some(40) };
                prop_assert!(!mistakes.render(look).is_empty());
            }
        }
    }
}

#[test]
fn binary_point_words() {
    let point = |techniques: &str| {
        MachineConfig::from_text("f", &format!("[[vm]]\nkernel = \"debian\"\n{techniques}"), Path::new(""), &Flags::default())
            .map(|config| config.vms[0].techniques.binary_point)
    };
    assert_eq!(point("").unwrap(), BinaryPoint::Auto);
    for (word, wanted) in BinaryPoint::WORDS {
        assert_eq!(point(&format!("[vm.techniques]\nbinary_point = \"{word}\"\n")).unwrap(), wanted);
    }
    assert!(point("[vm.techniques]\nbinary_point = \"comon\"\n").unwrap_err().to_string().contains("common"));
}

#[test]
fn decode_cache_words() {
    let cache = |more: &str| {
        let text = format!("[machine]\narch = \"x86_64\"\n[[vm]]\nkernel = \"debian\"\n{more}");
        MachineConfig::from_text("machine.toml", &text, Path::new(""), &Flags::default())
            .map(|config| config.vms[0].techniques.decode_cache)
    };
    assert_eq!(cache("").unwrap(), DecodeCache::Verify);
    assert_eq!(cache("[vm.techniques]\ndecode_cache = \"protect\"\n").unwrap(), DecodeCache::Protect);
    assert_eq!(cache("[vm.techniques]\ndecode_cache = \"off\"\n").unwrap(), DecodeCache::Off);
    let refusal = cache("[vm.techniques]\ndecode_cache = \"verfy\"\n").unwrap_err().to_string();
    assert!(refusal.contains("\"verfy\"") && refusal.contains("verify"), "{refusal}");
}

#[test]
fn the_timer_is_trapped_passed_through_or_direct() {
    let timer = |more: &str| {
        let text = format!("[machine]\narch = \"x86_64\"\n[[vm]]\nkernel = \"debian\"\n{more}");
        MachineConfig::from_text("machine.toml", &text, Path::new(""), &Flags::default()).map(|config| config.vms[0].techniques.timer)
    };
    assert_eq!(timer("").unwrap(), TimerAccess::Passthrough);
    assert_eq!(timer("[vm.techniques]\ntimer = \"trapped\"\n").unwrap(), TimerAccess::Trapped);
    assert_eq!(timer("[vm.techniques]\ntimer = \"direct\"\n").unwrap(), TimerAccess::Direct);
    let refusal = timer("[vm.techniques]\ntimer = \"passtrough\"\n").unwrap_err().to_string();
    assert!(refusal.contains("did you mean \"passthrough\""), "{refusal}");
}

#[test]
fn ipis_are_direct_only_on_request() {
    let ipi = |more: &str| {
        let text = format!("[[vm]]\nkernel = \"debian\"\n{more}");
        MachineConfig::from_text("machine.toml", &text, Path::new(""), &Flags::default()).map(|config| config.vms[0].techniques.ipi)
    };
    assert_eq!(ipi("").unwrap(), IpiAccess::Trapped);
    assert_eq!(ipi("[vm.techniques]\nipi = \"trapped\"\n").unwrap(), IpiAccess::Trapped);
    assert_eq!(ipi("[vm.techniques]\nipi = \"direct\"\n").unwrap(), IpiAccess::Direct);
    assert_eq!(ipi("[vm.techniques]\nipi = \"gate\"\n").unwrap(), IpiAccess::Gate);
    let refusal = ipi("[vm.techniques]\nipi = \"dirrect\"\n").unwrap_err().to_string();
    assert!(refusal.contains("did you mean \"direct\""), "{refusal}");
}

#[test]
fn nested_vms_of_a_pc_lack_some_techniques() {
    let refusal = |technique: &str| {
        let text = format!("[machine]\narch = \"x86_64\"\n[[vm]]\nkernel = \"debian\"\nnested = true\n[vm.techniques]\n{technique}\n");
        MachineConfig::from_text("machine.toml", &text, Path::new(""), &Flags::default()).map_err(|error| error.to_string()).err()
    };
    assert_eq!(refusal("ipi = \"trapped\""), None);
    assert!(refusal("ipi = \"direct\"").unwrap().contains("can't send interrupts directly"));
    assert!(refusal("decode_cache = \"protect\"").unwrap().contains("can't have write-protected code"));
}

#[test]
fn vms_of_a_pc_with_functions_have_no_write_protected_code() {
    let refusal = |machine: &str, vm: &str| {
        let text = format!("[machine]\n{machine}\n[[vm]]\nkernel = \"debian\"\n{vm}\n[vm.techniques]\ndecode_cache = \"protect\"\n");
        MachineConfig::from_text("machine.toml", &text, Path::new(""), &Flags::default()).map_err(|error| error.to_string()).err()
    };
    let amd = "arch = \"x86_64\"\ncpu = \"max\"";
    for vm in ["[[vm.pci]]\nfunction = \"0000:00:02.0\"", "[[vm.net]]"] {
        let refusal = refusal(amd, vm).unwrap();
        assert!(refusal.contains("can't have write-protected code") && refusal.contains("\"verify\" or \"off\""), "{refusal}");
    }
    assert_eq!(refusal(amd, ""), None);
    // Arm's back end has no decoder.
    assert_eq!(refusal("arch = \"aarch64\"", "[[vm.net]]"), None);
}

#[test]
fn vms_of_a_pc_with_functions_have_identifiers_of_eight_bits() {
    let refusal = |topology: &str, functions: &str| {
        let text =
            format!("[machine]\narch = \"x86_64\"\ncpu = \"max\"\n[[vm]]\nkernel = \"debian\"\ntopology = \"{topology}\"\n{functions}\n");
        MachineConfig::from_text("machine.toml", &text, Path::new(""), &Flags::default()).map_err(|error| error.to_string()).err()
    };
    for functions in ["[[vm.pci]]\nfunction = \"0000:00:02.0\"", "[[vm.net]]"] {
        let refused = refusal("5x5x5", functions).unwrap();
        assert!(refused.contains("\"5x5x5\" has APIC identifiers above 255"), "{refused}");
        // The last identifiers are 115 and 255.
        assert_eq!([refusal("4x5x4", functions), refusal("1x256x1", functions)], [None, None]);
    }
    assert_eq!(refusal("5x5x5", ""), None);
}

#[test]
fn interrupts_are_virtual_or_direct() {
    let interrupts = |more: &str| {
        let text = format!("[[vm]]\nkernel = \"debian\"\n{more}");
        MachineConfig::from_text("machine.toml", &text, Path::new(""), &Flags::default()).map(|config| config.vms[0].techniques.interrupts)
    };
    assert_eq!(interrupts("").unwrap(), Interrupts::Virtual);
    assert_eq!(interrupts("[vm.techniques]\ninterrupts = \"direct\"\n").unwrap(), Interrupts::Direct);
    let refusal = interrupts("[vm.techniques]\ninterrupts = \"dircet\"\n").unwrap_err().to_string();
    assert!(refusal.contains("did you mean \"direct\""), "{refusal}");
}

#[test]
fn apic_virtualization_words() {
    let level = |more: &str| {
        let text = format!("[[vm]]\nkernel = \"debian\"\n{more}");
        let config = MachineConfig::from_text("machine.toml", &text, Path::new(""), &Flags::default());
        config.map(|config| config.vms[0].techniques.apic_virtualization)
    };
    assert_eq!(level("").unwrap(), ApicVirtualization::Posted);
    for (word, expected) in ApicVirtualization::WORDS {
        assert_eq!(level(&format!("[vm.techniques]\napic_virtualization = \"{word}\"\n")).unwrap(), expected);
    }
    let refusal = level("[vm.techniques]\napic_virtualization = \"post\"\n").unwrap_err().to_string();
    assert!(refusal.contains("\"post\"") && refusal.contains("posted"), "{refusal}");
}

#[test]
fn a_nesting_mode_requires_nested() {
    let nested = |more: &str| {
        let text = format!("[[vm]]\nkernel = \"debian\"\n{more}");
        MachineConfig::from_text("machine.toml", &text, Path::new(""), &Flags::default()).map(|config| config.vms[0].techniques.nested)
    };
    assert_eq!(nested("").unwrap(), Nested::Off);
    assert_eq!(nested("nested = true\n").unwrap(), Nested::Nv2);
    assert_eq!(nested("nested = true\n[vm.techniques]\nnested = \"nv\"\n").unwrap(), Nested::Nv);
    assert_eq!(nested("nested = false\n[vm.techniques]\nnested = \"nv\"\n").unwrap(), Nested::Off);
    let refusal = nested("[vm.techniques]\nnested = \"nv\"\n").unwrap_err().to_string();
    assert!(refusal.contains("nested = \"nv\" has no effect") && refusal.contains("nested = true"), "{refusal}");
    let refusal = nested("nested = true\n[vm.techniques]\nnested = \"nv3\"\n").unwrap_err().to_string();
    assert!(refusal.contains("\"nv3\"") && refusal.contains("nv2"), "{refusal}");
    assert_eq!(nested("nested = true\n[machine]\narch = \"x86_64\"\n").unwrap(), Nested::Nv2);
    let enlightened = "nested = true\n[vm.techniques]\nnested = \"enlightened\"\n";
    assert_eq!(nested(&format!("{enlightened}[machine]\narch = \"x86_64\"\n")).unwrap(), Nested::Enlightened);
    let refusal = nested(enlightened).unwrap_err().to_string();
    assert!(refusal.contains("only VMX has enlightened VMCSs") && refusal.contains("arch = \"x86_64\""), "{refusal}");
    let protect = "nested = true\n[vm.techniques]\ndecode_cache = \"protect\"\n[machine]\narch = \"x86_64\"\n";
    let refusal = nested(protect).unwrap_err().to_string();
    assert!(refusal.contains("write-protected") && refusal.contains("decode_cache"), "{refusal}");
    assert_eq!(nested("nested = false\n[machine]\narch = \"x86_64\"\n").unwrap(), Nested::Off);
}

#[test]
fn domains_of_a_vm() {
    let folder = folder();
    let read = |text: &str| MachineConfig::from_text("machine.toml", text, folder.path(), &Flags::default());
    let config = read("[[vm]]\nkernel = \"Image\"\nnested = true\n[[vm.domain]]\nkernel = \"Image\"\nvcpus = 2\n").expect("right");
    let [domain] = &config.vms[0].domains[..] else { panic!("one domain: {:?}", config.vms[0].domains) };
    assert_eq!((domain.vcpus, domain.memory, &domain.append[..]), (2, 64 << 20, ""));
    let five = "[[vm.domain]]\nkernel = \"Image\"\n".repeat(5);
    let wrong = [
        ("[[vm]]\nkernel = \"Image\"\n[[vm.domain]]\nkernel = \"Image\"\n".to_owned(), "nested = true"),
        ("[[vm]]\nkernel = \"Image\"\nnested = true\n[[vm.domain]]\nvcpus = 2\n".to_owned(), "no kernel"),
        ("[[vm]]\nkernel = \"Image\"\nnested = true\n[vm.domain]\nkernel = \"Image\"\n".to_owned(), "[[vm.domain]]"),
        (format!("[[vm]]\nkernel = \"Image\"\nnested = true\n{five}"), "at most 4"),
    ];
    for (text, said) in wrong {
        let mistakes = read(&text).expect_err("wrong").to_string();
        assert!(mistakes.contains(said), "{mistakes}");
    }
}

#[test]
fn pci_functions_of_a_vm() {
    let read = |text: &str| MachineConfig::from_text("machine.toml", text, Path::new(""), &Flags::default());
    let pci = |address: &str| format!("[[vm.pci]]\nfunction = \"{address}\"\n");
    let vm = |name: &str, more: &str| format!("[[vm]]\nname = \"{name}\"\nkernel = \"debian\"\n{more}");
    let config = read(&vm("a", &[pci("0000:00:02.0"), pci("00:1f.7")].concat())).expect("right");
    let ids: Vec<u16> = config.vms[0].functions.iter().map(|function| function.routing_id()).collect();
    assert_eq!((ids, config.has_functions()), (vec![0x10, 0xff], true));
    assert!(!read(&vm("a", "")).expect("right").has_functions());
    let nine: String = (1..=9).map(|device| pci(&format!("00:{device:02x}.0"))).collect();
    let twice = vm("a", &pci("00:02.0")) + &vm("b", &pci("0000:00:02.0"));
    let wrong = [
        (vm("a", &pci("2")), "not the address of a PCI function"),
        (vm("a", &pci("0000:00:20.0")), "a device above 1f"),
        (vm("a", &pci("0000:01:00.0")), "behind a bridge"),
        (vm("a", &pci("0001:00:02.0")), "another PCI segment"),
        (vm("a", "[[vm.pci]]\n"), "names no function"),
        (vm("a", "[vm.pci]\nfunction = \"00:02.0\"\n"), "[[vm.pci]]"),
        (vm("a", &[pci("00:02.0"), pci("00:02.0")].concat()), "assigned to this virtual machine already"),
        (twice, "function 0000:00:02.0 is assigned to a already"),
        (vm("a", &nine), "at most 8"),
        (vm("a", &format!("nested = true\n{}", pci("00:02.0"))), "with an EL2 of its own"),
        (format!("[machine]\narch = \"x86_64\"\n{}", vm("a", &pci("00:02.0"))), "on x86_64 with VMX yet"),
    ];
    for (text, said) in wrong {
        let mistakes = read(&text).expect_err("wrong").to_string();
        assert!(mistakes.contains(said), "{text}: {mistakes}");
    }
}

#[test]
fn stile_in_a_vm_has_its_own_machine() {
    let outer = "[[vm]]\nkernel = \"stile\"\nnested = true\nexec = \"true\"\n";
    let config = MachineConfig::from_text("machine.toml", outer, Path::new(""), &Flags::default()).unwrap();
    let [vm] = &config.vms[..] else { panic!("{config:?}") };
    let KernelSource::Stile(inner) = &vm.kernel else { panic!("{vm:?}") };
    assert_eq!((vm.exec.as_deref(), vm.memory, vm.vcpus), (None, 768 << 20, 1));
    let [guest] = &inner.vms[..] else { panic!("{inner:?}") };
    assert_eq!((guest.exec.as_deref(), &guest.initrd), (Some("true"), &InitrdSource::Busybox));

    // The machine in the VM has the board's architecture.
    let outer = format!("[machine]\narch = \"x86_64\"\n{outer}");
    let config = MachineConfig::from_text("machine.toml", &outer, Path::new(""), &Flags::default()).unwrap();
    let KernelSource::Stile(inner) = &config.vms[0].kernel else { panic!("{config:?}") };
    assert_eq!(inner.arch, Arch::X86_64);

    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("pc.toml", "[machine]\narch = \"x86_64\"\n[[vm]]\nkernel = \"debian\"\n");
    write("two.toml", "[machine]\ncpus = 2\nmemory = \"400M\"\n[[vm]]\nkernel = \"debian\"\nmemory = \"128M\"\n");
    write("self.toml", "[[vm]]\nkernel = \"stile:self.toml\"\nnested = true\n");
    let load = |text: &str| MachineConfig::from_text("machine.toml", text, folder.path(), &Flags::default());
    let config = load("[[vm]]\nkernel = \"stile:two.toml\"\nnested = true\n").unwrap();
    assert_eq!((config.vms[0].memory, config.vms[0].vcpus), (400 << 20, 2));
    for (text, mistake) in [
        ("[[vm]]\nkernel = \"stile\"\n", "Stile needs an EL2"),
        ("[[vm]]\nkernel = \"stile:two.toml\"\nnested = true\nvcpus = 1\n", "has 2 CPUs, and this virtual machine 1"),
        ("[machine]\narch = \"x86_64\"\n[[vm]]\nkernel = \"stile\"\n", "Stile needs VMX"),
        ("[[vm]]\nkernel = \"stile:pc.toml\"\nnested = true\n", "can't be a machine of architecture x86_64"),
        ("[[vm]]\nkernel = \"stile:none.toml\"\nnested = true\n", "there is no such file"),
        ("[[vm]]\nkernel = \"stile:self.toml\"\nnested = true\n", "can have none in its own"),
        ("[[vm]]\nkernel = \"stile\"\nnested = true\nappend = \"x\"\n", "Stile takes no command line"),
    ] {
        let found = load(text).unwrap_err().to_string();
        assert!(found.contains(mistake), "{text}: {found}");
    }
}

#[test]
fn a_machine_s_settings_can_be_ignored() {
    let flags = Flags { arch: Some("x86_64".into()), machine_cpus: Some(4), vms_only: true, ..Flags::default() };
    let text = "[machine]\narch = \"aarch64\"\nmemory = \"64M\"\ncpu = \"cortex-a57\"\n[[vm]]\nkernel = \"Image\"\n";
    let config = MachineConfig::from_text("machine.toml", text, folder().path(), &flags).expect("a machine");
    assert_eq!((config.memory, config.cpus, &config.cpu_model[..]), (None, 4, Arch::X86_64.default_cpu_model()));
}

#[test]
fn the_first_error_of_a_nested_machine_is_named() {
    let folder = folder();
    fs::write(folder.path().join("inner.toml"), "[[vm]]\nkernel = \"Image\"\nmemory = \"512\"\nvcpus = 0\n").expect("a file");
    let text = "[[vm]]\nnested = true\nkernel = \"stile:inner.toml\"\n";
    let said = MachineConfig::from_text("machine.toml", text, folder.path(), &Flags::default()).expect_err("two mistakes").to_string();
    assert!(said.contains("inner.toml:3:10: \"512\" is not a size") && said.contains("inner.toml` shows all)"), "{said}");
    assert!(!said.contains("\\n"), "{said}");
}

#[test]
fn suggestions_make_sense() {
    let said = refusal("[[vm]]\nkernel = \"Image\"\nmemory = \"0\"\n");
    assert!(said.contains("\"0\" is not a size") && !said.contains("did you mean"), "{said}");
    // Megabytes took minutes.
    assert_eq!((similar(&"a".repeat(5 << 20), ["debian"]), similar("debain", ["debian"])), (None, Some("debian")));
    // Names of several words, for one of them and for more.
    assert_eq!(
        (similar("cpu_model", ["arch", "cpus", "cpu"]), similar("exits", ["exit_time", "exits_per_second"])),
        (Some("cpu"), Some("exits_per_second"))
    );
    assert_eq!((similar("a_b", ["a"]), similar("cpumodel", ["cpu"])), (None, None));
}

#[test]
fn a_gicv2_excludes_what_takes_a_gicv3() {
    let with = |machine: &str, vm: &str| read(&format!("[machine]\n{machine}\n[[vm]]\nkernel = \"Image\"\n{vm}\n"));
    let config = with("gic = 2", "vcpus = 8").expect("valid");
    assert_eq!((config.gic, config.vms[0].gic), (Gic::V2, Gic::V2));
    assert_eq!(with("gic = 3", "vcpus = 9").expect("valid").gic, Gic::V3);
    let wrong = [
        ("gic = 4", "", "no GIC of version 4"),
        ("gic = 2\narch = \"x86_64\"", "", "x86_64 has no GIC"),
        ("gic = 2", "vcpus = 9", "at most 8 vCPUs"),
        ("gic = 2", "nested = true", "nested = false"),
        ("gic = 2", "[vm.techniques]\ninterrupts = \"direct\"", "interrupts = \"virtual\""),
        ("gic = 2", "[[vm.pci]]\nfunction = \"00:02.0\"", "no functions"),
    ];
    for (machine, vm, why) in wrong {
        let mistakes = with(machine, vm).expect_err(why).to_string();
        assert!(mistakes.contains(why), "{mistakes}");
    }
}
