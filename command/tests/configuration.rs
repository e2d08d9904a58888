//! Configurations that the command refuses or comments on, with stand-ins for the programs that it runs.

mod common;

use std::fmt::Write as _;
use std::fs;

use common::{Sandbox, end};

/// Returns the ID registers of a CPU model as the probe prints them: all 0 but ID_AA64MMFR2_EL1.NV.
fn registers(nested: u64) -> Vec<u8> {
    [0, 0, 0, 0, nested << 24, 0].into_iter().flat_map(u64::to_le_bytes).collect()
}

#[test]
fn a_cpu_without_nesting_runs_no_hypervisor_in_a_vm() {
    for (field, arguments, status) in [(0, "--nested", 2), (1, "--nested", 2), (1, "--nested=nv", 0), (2, "--nested", 0)] {
        let sandbox = Sandbox::new(&registers(field));
        let words = ["check", "--kernel", "kernel", "--cpu", "cortex-a57", arguments];
        let (ended, said) = end(&sandbox.stile(&words).output().expect("it starts"));
        assert_eq!(ended, status, "{field} {arguments}: {said}");
        assert_eq!(said.contains("CPU model cortex-a57 has no FEAT_NV"), status == 2, "{said}");
    }
}

#[test]
fn programs_find_the_places_of_mistakes() {
    let sandbox = Sandbox::new(b"");
    let file = sandbox.path("bad.toml").display().to_string();
    fs::write(&file, "[[vm]]\nkernel = \"kernel\"\nvcpus = 999\n").expect("a file");
    for (words, mistake) in [
        (&[file.as_str()][..], serde_json::json!({"file": file, "line": 3, "column": 9})),
        (&["--kernel", "kernel", "--vcpus", "999"], serde_json::json!({"flag": "--vcpus"})),
    ] {
        let output = sandbox.stile(&[&["check", "--json"][..], words].concat()).output().expect("it starts");
        let mut found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let message = found["mistakes"][0].as_object_mut().and_then(|mistake| mistake.remove("message"));
        assert!(message.is_some_and(|message| message.as_str().is_some_and(|message| message.contains("999 is out of range"))));
        assert_eq!((output.status.code(), found), (Some(2), serde_json::json!({"mistakes": [mistake]})));
    }
}

#[test]
fn a_cpu_model_that_the_emulator_does_not_have_is_refused() {
    let sandbox = Sandbox::new(b"");
    let refusal = "echo \"$0: can't apply global max-arm-cpu.foo=on: Property not found\" >&2; exit 1";
    let help = "printf 'Available CPUs:\\n  cortex-a57\\n  cortex-m3\\n  max\\n'";
    sandbox.script("qemu-system-aarch64", &format!("case \"$*\" in\n*-cpu?help*) {help} ;;\n*foo=on*) {refusal} ;;\nesac\n"));
    let check = |model: &str| end(&sandbox.stile(&["check", "--kernel", "kernel", "--cpu", model]).output().expect("it starts"));
    for model in ["cortex-a57", "max", "max,sve=off"] {
        assert_eq!(check(model).0, 0, "{model}: {}", check(model).1);
    }
    for (model, text) in [
        ("cortex-a75", "no 64-bit CPU model called cortex-a75; expected one of cortex-a57, max; did you mean cortex-a57?"),
        ("cortex-m3", "no 64-bit CPU model called cortex-m3"),
        ("max,foo=on", "the emulator does not accept the CPU model max,foo=on"),
    ] {
        let (status, said) = check(model);
        assert_eq!(status, 2, "{model}: {said}");
        assert!(said.contains(text), "{said}");
    }
}

#[test]
fn what_amd_v_does_not_have_is_refused() {
    let sandbox = Sandbox::new(b"");
    sandbox.script(
        "qemu-system-x86_64",
        "printf 'Available CPUs:\\n  EPYC                  (alias)\\n  max                   Enables all\\n'\n",
    );
    let check = |more: &[&str]| sandbox.stile(&[&["check", "--arch", "x86_64"][..], more].concat()).output().expect("it starts");
    for (more, text) in [
        (&["--cpu", "max", "--nested"][..], "vm0: nested: on CPU model max, which has AMD-V, a VM can't have VMs of its own"),
        (&["--cpu", "EPYC-Turin"], "no 64-bit CPU model called EPYC-Turin"),
    ] {
        let (ended, said) = end(&check(more));
        assert!(ended == 2 && said.contains(text), "{more:?}: {ended}: {said}");
    }
    let output = check(&["--cpu", "max"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("AVIC is not used") && text.contains("Stile programs the CPU's timer"), "{text}{}", end(&output).1);
}

#[test]
fn a_flat_binary_is_noted() {
    let sandbox = Sandbox::new(b"");
    fs::write(sandbox.path("flat"), [0x1f, 0x20, 0x03, 0xd5].repeat(16)).expect("a file");
    let build = |kernel: &str| end(&sandbox.stile(&["build", "--kernel", kernel, "-o", "image"]).output().expect("it starts"));
    let (status, said) = build("flat");
    assert_eq!(status, 0, "{said}");
    assert!(
        said.contains("vm0: flat is not an Image, an ELF program or firmware: it is taken for a flat binary, loaded at 0x40080000"),
        "{said}"
    );
    assert_eq!(build("kernel"), (0, String::new()));
}

#[test]
fn very_many_mistakes_are_few_lines() {
    let sandbox = Sandbox::new(b"");
    let mut text = String::new();
    for key in 0..20_000 {
        let _ = writeln!(text, "key{key} = 1");
    }
    for vm in 0..5_000 {
        let _ = writeln!(text, "[[vm]]\nkernle = \"debian\"\nvcpus = {vm}");
    }
    fs::write(sandbox.path("machine.toml"), text).expect("a file");
    let (status, said) = end(&sandbox.stile(&["check", "machine.toml"]).output().expect("it starts"));
    assert_eq!(status, 2);
    assert!(said.contains("machine.toml:1:1: unknown key \"key0\""), "{said}");
    assert!(said.contains("19980 more unknown keys in the file") && said.contains("\nand "), "{said}");
    assert!(said.lines().count() < 500, "{} lines", said.lines().count());
}

#[test]
fn an_image_of_stile_needs_an_el2() {
    let sandbox = Sandbox::new(b"");
    let (status, said) = end(&sandbox.stile(&["build", "--kernel", "kernel", "-o", "image"]).output().expect("it starts"));
    assert_eq!(status, 0, "{said}");
    let (status, said) = end(&sandbox.stile(&["check", "--kernel", "image"]).output().expect("it starts"));
    assert_eq!(status, 2, "{said}");
    assert!(said.contains("--nested") && !said.contains("virtualization=on"), "{said}");
    let (status, said) = end(&sandbox.stile(&["check", "--kernel", "image", "--nested"]).output().expect("it starts"));
    assert_eq!(status, 0, "{said}");
}
