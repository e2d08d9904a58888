//! A guest hypervisor's registers and instructions.

use stile_nested_arm::at;
use stile_nested_arm::forward::{Control, Controls, Level, verdict};
use stile_nested_arm::inject::{Context, El2, Entry, Kind, eret, hpfar, to_virtual};
use stile_nested_arm::layout;
use stile_nested_arm::tlbi::{self, Scope};
use stile_nested_arm::vgic::{self, OnProcessor, Status};
use stile_nested_arm::vncr::{self, PAGE_SIZE, Page};
use stile_sysreg::SysReg;
use stile_sysreg::syndrome::Esr;
use stile_vgic::{ListRegister, ListRegisters, Maintenance, Vmcr};

use crate::input::Input;
use crate::marks::reach;
use crate::target::{Target, none};

/// Accesses of virtual EL2 to registers, its instructions, its returns, and L2's exits under any of its controls.
pub const REGISTERS: Target = Target {
    name: "nested-registers",
    run: registers,
    seeds: none,
    mutations: 6000,
    marks: &["redirected", "at", "tlbi", "tlbi range", "forwarded", "kept", "undefined", "second stage", "virtual EL2", "illegal return"],
};

/// L1's list registers on the processor, and back.
pub const INTERRUPTS: Target = Target {
    name: "nested-interrupts",
    run: interrupts,
    seeds: none,
    mutations: 6000,
    marks: &["maintenance", "deactivated", "backed", "pending"],
};

/// ESR_EL2.EC of a trapped register.
const MSR: u64 = 0x18;

/// L1's controls: any values.
struct Any([u64; 32]);

impl Controls for Any {
    fn get(&self, control: Control) -> u64 {
        self.0[control as usize % 32]
    }
}

fn registers(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let page = Page::new();
    let mut controls = Any([0; 32]);
    while !input.is_empty() {
        match input.byte() % 4 {
            0 => controls.0[input.below(32)] = input.value(),
            1 => {
                let reg = reg(&mut input);
                let (nv1, value) = (input.bit(), input.value());
                if let Some(slot) = vncr::find(reg, nv1) {
                    reach("redirected");
                    assert!(usize::from(slot.offset()) < PAGE_SIZE && slot.offset().is_multiple_of(8));
                    page.set(slot, value);
                    assert_eq!(page.get(slot), value);
                }
                if at::decode(reg).is_some() {
                    reach("at");
                }
                if let Some(found) = tlbi::decode(reg, value) {
                    reach("tlbi");
                    if let Scope::Va { start, bytes, .. } | Scope::Ipa { start, bytes: Some(bytes), .. } = found.scope {
                        reach("tlbi range");
                        // A range with a reserved granule invalidates nothing.
                        assert!((bytes >= 4096 || bytes == 0) && start.is_multiple_of(4096), "{:x?}", found.scope);
                    }
                }
                let _ = (layout::cptr(value), layout::cnthctl(value), layout::tcr(value), layout::ttbr0(value), layout::sctlr(value));
            }
            2 => {
                // Any syndrome; often that of a register.
                let esr = if input.bit() {
                    Esr(u64::from(input.byte()) << 26 | u64::from(input.word() & 0x3ff_ffff))
                } else {
                    Esr(MSR << 26 | 1 << 25 | u64::from(input.word() & 0x1ff_ffff))
                };
                let from = if input.bit() { Level::El0 } else { Level::El1 };
                reach(match verdict(esr, from, &controls) {
                    stile_nested_arm::forward::Verdict::Forward => "forwarded",
                    stile_nested_arm::forward::Verdict::Keep => "kept",
                    stile_nested_arm::forward::Verdict::Undefined => "undefined",
                    stile_nested_arm::forward::Verdict::SecondStage => "second stage",
                });
            }
            _ => returns(&mut input),
        }
    }
}

/// Returns from virtual EL2, and exceptions to it, with any state.
fn returns(input: &mut Input<'_>) {
    const MODE: u64 = 0x1f;
    const EL1: [u64; 2] = [0b0100, 0b0101];
    const EL0: u64 = 0;
    const AARCH32: u64 = 0x10;
    let (spsr, hcr, has_aarch32) = (input.value(), input.value(), input.bit());
    // Virtual EL2 runs at the processor's EL1.
    let pstate = input.value() & !MODE | input.pick(&EL1);
    let back = eret(spsr, pstate, hcr, has_aarch32);
    let mode = back.pstate & MODE;
    // Nothing lets a guest run at Stile's own level.
    assert!(EL1.contains(&mode) || mode == EL0 || has_aarch32 && mode & AARCH32 != 0, "{:#x}", back.pstate);
    if back.to == Context::El2 {
        reach("virtual EL2");
    }
    if back.pstate & 1 << 20 != 0 && spsr & 1 << 20 == 0 {
        reach("illegal return");
    }
    let kind = input.pick(&[Kind::Synchronous, Kind::Irq, Kind::Fiq, Kind::SError]);
    let context = input.pick(&[Context::El2, Context::HostEl0, Context::Guest]);
    let el2 = El2 { vbar: input.value(), sctlr: input.value(), hcr };
    let entry = Entry::take(kind, pstate, context, &el2);
    assert_eq!(entry.pstate & MODE, 0b0101, "virtual EL2 runs at EL1h");
    assert!((entry.pc.wrapping_sub(el2.vbar & !0x7ff)) < 0x800 && entry.pc.is_multiple_of(0x80));
    let _ = (to_virtual(pstate), hpfar(input.value()));
}

fn reg(input: &mut Input<'_>) -> SysReg {
    let (high, low) = (input.byte(), input.half());
    let op0 = [3, 3, 2, 1][usize::from(high & 3)];
    let op1 = if high & 4 != 0 { 4 } else { high >> 3 & 7 };
    SysReg::new(op0, op1, (low & 0xf) as u8, (low >> 4 & 0xf) as u8, (low >> 8 & 7) as u8)
}

/// The processor's list registers.
struct Registers([ListRegister; 16]);

impl ListRegisters for Registers {
    fn read(&self, n: usize) -> ListRegister {
        self.0[n]
    }

    fn write(&mut self, n: usize, value: ListRegister) {
        self.0[n] = value;
    }

    fn invalid(&self) -> u16 {
        (0..).zip(&self.0).filter(|(_, lr)| lr.invalid()).fold(0, |all, (n, _)| all | 1 << n)
    }

    fn set_maintenance(&mut self, _: Maintenance) {}

    fn take_eoi_count(&mut self) -> u32 {
        0
    }

    fn vmcr(&self) -> Vmcr {
        Vmcr(0)
    }

    fn running_priority(&self) -> u8 {
        0xff
    }

    fn physical_line(&self, _: u32) -> Option<bool> {
        None
    }

    fn deactivate_physical(&mut self, _: u32) {}
}

fn interrupts(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let list_registers = input.below(16) + 1;
    let page = Page::new();
    let mut lrs = Registers([ListRegister(0); 16]);
    while !input.is_empty() {
        page.set(vncr::ICH_HCR_EL2, input.value());
        page.set(vncr::ICH_VMCR_EL2, input.value());
        for _ in 0..input.below(4) {
            page.set(vncr::ich_lr(input.below(16)), input.double());
        }
        let status = Status::of(&page, list_registers);
        assert!(status.eisr >> list_registers == 0 && status.elrsr >> list_registers == 0 && status.eisr & status.elrsr == 0);
        if status.asserts_maintenance(&page) {
            reach("maintenance");
        }
        if vgic::has_pending(&page, list_registers) {
            reach("pending");
        }
        let backing = input.byte();
        let loaded = OnProcessor::load(&page, list_registers, &mut lrs, |intid| {
            (backing & 1 != 0).then(|| {
                reach("backed");
                intid % 32
            })
        });
        // L2 acknowledges and ends as it likes: states change, interrupts don't.
        let states = input.word();
        for n in 0..list_registers {
            let state = u64::from(states >> (2 * n) & 3);
            if lrs.0[n].0 >> 62 != 0 {
                lrs.0[n].0 = lrs.0[n].0 & !(3 << 62) | state << 62;
            }
        }
        let control = input.value();
        let ended = loaded.unload(&page, &mut lrs, control);
        for ended in ended.iter() {
            reach("deactivated");
            assert!(ended.intid < 1 << 13);
        }
        assert!(ended.iter().count() <= list_registers);
        assert!(lrs.0.iter().all(|lr| lr.0 >> 62 == 0), "a list register stays on the processor");
    }
}
