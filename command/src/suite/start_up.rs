//! Stile's start on machines of different sizes: the instructions until a guest's first one do not grow with RAM.
//!
//! The guest reads its counter first, which counts instructions from the machine's reset on (`--icount`). On the
//! emulated PC the firmware and GRUB take most of them, in numbers that change with the image: there is no test.

use anyhow::Result;

use super::figure::Figure;
use super::scenario::{Expect, Scenario, passed};
use stile::programs::Programs;

/// Sizes of the VM's RAM, for which the machine is slightly larger. All have the same limit.
const SIZES: [&str; 2] = ["1G", "15G"];

/// Maximum number of instructions until the guest's first.
const MAX_INSTRUCTIONS: u64 = 3_800_000;

/// A scenario for each size.
///
/// # Errors
/// The guest is missing.
pub(super) fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let one = |size| {
        let config = format!(
            "[machine]\ncpus = 1\n\n[[vm]]\nkernel = \"{}\"\nappend = \"chunks=1 least=0\"\nmemory = \"{size}\"\n",
            programs.path("share")?,
        );
        let figure = Figure { after: "share: starts at tick ", most: MAX_INSTRUCTIONS };
        let expect = Expect { figure: Some(figure), notes: Vec::new(), ..passed() };
        Ok(Scenario { config: Some(config), expect, ..Scenario::new(format!("boot/start-up/{size}"), "--icount") })
    };
    SIZES.into_iter().map(one).collect()
}
