//! The scenarios with a hypervisor in a VM of a PC.

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};

/// The small system of a PC loads Debian's KVM.
pub fn starts() -> Scenario {
    let scenario = Scenario::new("pc/nested/kvm-starts", "--arch x86_64 --nested --kernel debian:6.1 --vcpus 2 --exits")
        .with("--exec", "ls /dev/kvm; grep -wo -m1 vmx /proc/cpuinfo");
    let expect = Expect { output: vec!["/dev/kvm".into(), "vmx".into()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { timeout: 900, expect, ..scenario }
}
