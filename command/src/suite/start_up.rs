//! Stile's start on machines of different sizes: the instructions until a guest's first one do not grow with RAM.
//!
//! The guest reads its counter first, which counts instructions from the machine's reset on: on Arm with `--icount`, and
//! on the emulated PC, where the firmware's and the boot loader's are among them.

use anyhow::Result;

use super::figure::Figure;
use super::scenario::{Expect, Scenario, passed};
use stile::config::Arch;
use stile::programs::Programs;

/// Sizes of the VM's RAM, for which the machine is slightly larger. All have the same limit.
const SIZES: [&str; 2] = ["1G", "15G"];

/// Instructions until the guest starts.
const fn most(arch: Arch) -> u64 {
    match arch {
        Arch::Aarch64 => 5_000_000,
        // The firmware and GRUB, which reads the image, take most of these.
        Arch::X86_64 => 95_000_000,
    }
}

/// A scenario for each size.
///
/// # Errors
/// The guest is missing.
pub(super) fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let icount = if programs.arch == Arch::Aarch64 { "--icount" } else { "" };
    let one = |size| {
        let config = format!(
            "[machine]\narch = \"{}\"\ncpus = 1\n\n[[vm]]\nkernel = \"{}\"\nappend = \"chunks=1 least=0\"\nmemory = \"{size}\"\n",
            programs.arch.name(),
            programs.path("share")?,
        );
        let figure = Figure { after: "share: starts at tick ", most: most(programs.arch) };
        let expect = Expect { figure: Some(figure), notes: Vec::new(), ..passed() };
        Ok(Scenario { config: Some(config), expect, ..Scenario::new(programs.scenario(&format!("boot/start-up/{size}")), icount) })
    };
    SIZES.into_iter().map(one).collect()
}
