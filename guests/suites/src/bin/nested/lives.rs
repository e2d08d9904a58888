//! L2 VMs that start, run and end, one after the other.

use payload::harness::Test;
use payload::prelude::*;

use crate::enter::check_end;
use crate::guest::{self, Guest, code};
use crate::stage2::{self, Stage2, forget_all};

pub const TESTS: &[Test] = payload::tests![start_and_stop];

/// Each VM has its own tables and alternately its own VMID, accesses memory all over its address space, and
/// ends; the next one reuses its tables' memory.
fn start_and_stop() -> Outcome {
    const TABLES: usize = 8;
    let count = machine::number("vms", 1000);
    let tables: [Stage2; TABLES] = core::array::from_fn(|n| Stage2::new(n as u64 + 1));
    let pages = stage2::pages(TABLES as u64);
    for vm in 0..count {
        let mut stage2 = tables[vm as usize % TABLES];
        stage2.vmid = vm % 250 + 1;
        let mut guest = Guest::new(stage2);
        // The previous VM with this VMID has ended.
        forget_all();
        for gigabyte in 0..TABLES as u64 {
            let address = gigabyte << 33 | (vm % 512) << 12;
            stage2.page(address, pages + 4096 * gigabyte, stage2::ALL);
            guest.x[..2].copy_from_slice(&[vm << 8 | gigabyte, address]);
            check_end(guest.run(code!("ldr x2, [x1]", "str x0, [x1]", "ldr x3, [x1]")))?;
            check_eq!(guest.x[3], vm << 8 | gigabyte, "VM {vm}: what it wrote");
            // Before this VM the one before wrote there.
            check!(vm == 0 || guest.x[2] == (vm - 1) << 8 | gigabyte, "VM {vm}: {:#x} was there", guest.x[2]);
            stage2.set(address, 3, 0);
        }
        forget_all();
        guest.x[1] = 0;
        let exit = guest.run(code!("ldr x2, [x1]"));
        check!(exit.vector == guest::SYNCHRONOUS && exit.class() == 0x24, "VM {vm}: its memory is still there: {exit:x?}");
    }
    println!("{count} VMs of L2 have started and ended");
    Ok(())
}
