//! The configuration file of the boot medium, which may change the settings of the image.
//!
//! Its bytes are untrusted input. It is read once, before the VMs are created, with memory that is free afterwards.

use stile_blob::Settings;
use stile_board::MAX_VMS;
use stile_config::Look;
use stile_config::boot::{Changes, NAME, VmChanges};

use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::console::log;
use crate::cpu::SCHEDULE;
use crate::nodes::Near;
use crate::{heap, memory};

/// Memory for reading the file: many times what a file with one VM takes.
const HEAP: u64 = 16 << 20;

/// Changes of the VMs, by their numbers. None for those beyond its end.
pub type OfVms = &'static [VmChanges];

/// Applies the changes that `file` makes to `settings` of an image that was made of the configuration `image`. Returns
/// those of the VMs.
///
/// # Errors
/// The file has mistakes, each of which is in the log; or there is no memory to read it.
pub fn read(file: &[u8], image: &str, settings: &mut Settings) -> Result<OfVms, &'static str> {
    if image.is_empty() {
        log!("{NAME} is ignored: this image is signed, or was made without a configuration file");
        return Ok(&[]);
    }
    if file == image.as_bytes() {
        return Ok(&[]);
    }
    let vms = memory::allocate::<[VmChanges; MAX_VMS]>()?.write([VmChanges::default(); MAX_VMS]);
    let pages = memory::take(HEAP, &Near::new()).ok_or("there is no memory to read its configuration file")?;
    let start = Arch::physical(pages.start) as usize;
    let mut count = Err("its configuration file has mistakes");
    let work = || {
        let cpus = SCHEDULE.online().last().map_or(1, |cpu| cpu.index() as u32 + 1);
        match Changes::read(NAME, file, image, cpus) {
            Ok(changes) => {
                changes.keys.iter().for_each(|key| log!("{NAME} changes {key}"));
                changes.apply(settings);
                vms.iter_mut().zip(&changes.vms).for_each(|(to, vm)| *to = *vm);
                count = Ok(changes.vms.len());
            }
            Err(mistakes) => mistakes.render(Look::default()).lines().for_each(|line| log!("{line}")),
        }
    };
    // SAFETY: the pages are free memory in the direct map, of which nothing else knows. What `work` leaves, in `settings`,
    // `vms` and `count`, has no pointers.
    unsafe { heap::with(start..start + HEAP as usize, work) };
    memory::free(pages);
    Ok(vms.get(..count?).unwrap_or_default())
}
