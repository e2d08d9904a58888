//! Linux sees sockets, cores and threads as configured, with more vCPUs than CPUs.

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};

/// Sockets, cores and threads.
pub fn arm() -> Scenario {
    let config =
        format!("[machine]\ncpus = 1\n\n[[vm]]\nkernel = \"debian\"\ntopology = \"2x2x2\"\nexec = \"nproc; {}\"\n", show("0 3 4 7"));
    let output = vec!["8\n0 0 0-1 0-3\n0 1 2-3 0-3\n1 0 4-5 4-7\n1 1 6-7 4-7\n".into()];
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("boot/topology", "--exits") }
}

/// Sockets and threads of a PC.
pub fn pc() -> Scenario {
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpu = \"corei7_haswell_4770\"\ncpus = 2\n\n\
         [[vm]]\nkernel = \"debian:6.12\"\nmemory = \"256M\"\ntopology = \"2x1x2\"\non_reset = \"stop\"\n\
         exec = \"uname -r; nproc; {}; exit 7\"\n",
        show("0 3")
    );
    let output = vec!["6.12.".into(), "\n4\n0 0 0-1 0-1\n1 0 2-3 2-3\n".into()];
    let expect = Expect { status: 7, output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("pc/debian:6.12/topology", "--exits") }
}

/// A PC with gaps between APICs' identifiers, with AMD-V: Linux starts all of its CPUs, and calls functions on each.
pub fn with_gaps() -> Scenario {
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = 2\n\n\
         [[vm]]\nkernel = \"debian:6.12\"\nmemory = \"256M\"\ntopology = \"2x3x1\"\non_reset = \"stop\"\n\
         exec = \"uname -r; nproc; echo $(sed -n 's/^apicid.*: //p' /proc/cpuinfo); {}; \
         exit 7\"\n",
        show("2 3 5")
    );
    let output = vec!["6.12.".into(), "\n6\n0 1 2 4 5 6\n0 2 2 0-2\n1 0 3 3-5\n1 2 5 3-5\n".into()];
    let expect = Expect { status: 7, output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("pc/amd/debian:6.12/topology-with-gaps", "--exits") }
}

/// A PC with AMD-V and APIC IDs up to 292, beyond 8 bits: Linux starts two of its CPUs, and then two others, one of them with the last ID,
/// which the serial line interrupts.
///
/// No topology with such an ID has fewer than 125 vCPUs.
pub fn beyond_eight_bits() -> Scenario {
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = 2\n\n\
         [[vm]]\nkernel = \"debian:6.12\"\nmemory = \"512M\"\ntopology = \"5x5x5\"\non_reset = \"stop\"\nappend = \"maxcpus=2\"\n\
         exec = \"nproc; for n in 99 124; do echo 1 >/sys/devices/system/cpu/cpu$n/online; done; nproc; \
         echo $(sed -n 's/^apicid.*: //p' /proc/cpuinfo); {}; \
         row() {{ grep ttyS0 /proc/interrupts; }}; set -- $(row); cd /proc/irq/${{1%:}}; echo 124 >smp_affinity_list; seq 300; \
         echo for $(cat effective_affinity_list); set -- $(row); [ $5 -gt 0 ] && echo taken; exit 7\"\n",
        show("124")
    );
    let output = vec!["2\n4\n0 1 228 292\n4 4 124 ".into(), "\n300\nfor 124\ntaken\n".into()];
    let expect = Expect { status: 7, output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("pc/amd/debian:6.12/topology-beyond-eight-bits", "--exits") }
}

/// Commands that print the socket, the core, and the CPUs of each, of these CPUs.
fn show(cpus: &str) -> String {
    const FILES: &str = "physical_package_id core_id thread_siblings_list core_siblings_list";
    format!("for n in {cpus}; do cd /sys/devices/system/cpu/cpu$n/topology; echo $(cat {FILES}); done")
}
