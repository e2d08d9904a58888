//! Variants: scenarios that differ from others in the CPU's model, the kernel or the number of CPUs alone; and budgets of Debian's requests to
//! disks (`budgets/io`), whose paths others limit with smaller guests.
//!
//! The suite leaves them out, unless they are named or `--all` is given, so that it takes less than 30 minutes on two
//! CPUs. The scenarios that stay have each CPU model, each kernel and each number of CPUs at least once.

/// The variants' names.
pub const NAMES: [&str; 38] = [
    "boot/debian-installer",
    "boot/debian/cortex-a57",
    "boot/debian/cortex-a76",
    "boot/debian:6.1/cortex-a76",
    "boot/debian:6.1/max",
    "boot/debian:6.12/cortex-a57",
    "boot/debian:6.12/max",
    "budgets/io",
    "direct/switch/debian/direct",
    "direct/switch/debian/trusted",
    "direct/switch/debian:6.12/direct",
    "direct/switch/debian:6.12/trusted",
    "direct/switch/debian:6.1/direct",
    "nested/debian-6.1-nvhe-two-vcpus-of-l2",
    "nested/debian-6.12-two-vcpus-of-l2",
    "nested/debian-as-l2",
    "nested/nvhe-debian-as-l2",
    "pc/amd/debian:6.1/max-1-on-1",
    "pc/amd/suite/max-1-on-1",
    "pc/debian/corei7_haswell_4770-1-on-1",
    "pc/debian:6.1/corei7_haswell_4770-2-on-1",
    "pc/debian:6.1/corei7_skylake_x-2-on-2",
    "pc/gate/crash",
    "pc/ipi/crash-kernel",
    "pc/ipi/debian",
    "pc/ipi/kexec",
    "pc/nested/cpu-offline",
    "pc/nested/kvm-of-debian",
    "pc/nested/kvm-of-debian:6.12",
    "pc/nested/stile-debian",
    "pc/nested/xen",
    "pc/switch/debian/gate",
    "pc/switch/debian/ipi-direct",
    "pc/switch/debian/timer-trapped",
    "pc/switch/debian:6.1/timer-trapped",
    "pc/switch/debian:6.12/gate",
    "pc/switch/debian:6.12/ipi-direct",
    "pc/switch/debian:6.12/timer-trapped",
];
