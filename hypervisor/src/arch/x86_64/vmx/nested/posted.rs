//! Interrupts that L1 posts for L2 ("Posted-Interrupt Processing"). The processor recognizes notifications for L1 only, so Stile processes
//! those for L2.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use stile_nested_vmx::Field;

use super::state::GuestVmx;
use crate::address_space;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::delivery;
use crate::arch::x86_64::vcpu::inject::VALID;
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vmx::extension::pin;
use crate::arch::x86_64::vmx::virtual_apic::request;
use crate::arch::x86_64::vmx::vmcs;

/// The descriptor, in words of 64 bits: requests, and whether a notification is outstanding.
const REQUESTS: usize = 4;
const CONTROL: usize = REQUESTS;
const OUTSTANDING: u64 = 1 << 0;
/// Offset of VIRR in the virtual-APIC page. Each 16 bytes have 32 vectors.
const VIRR: usize = 0x200;

impl GuestVmx {
    /// Whether an interrupt that L1's APIC has just acknowledged notifies L2 of posted ones.
    pub fn is_notification(&self, information: u64) -> bool {
        let is_posted = self.vmcs12.get32(Field::PIN_CONTROLS) & pin::POSTED_INTERRUPTS != 0;
        is_posted && information == VALID | self.vmcs12.get(Field::POSTED_INTERRUPT_VECTOR)
    }

    /// Ends the notification, and requests the posted interrupts in L2's virtual APIC. VMCS01 is current before, VMCS02 after.
    pub fn take_posted(&mut self, cpu: &mut Cpu) {
        let effect = cpu.apic().end();
        delivery::apply(cpu, effect);
        delivery::pull(cpu);
        let page = self.machine_page(cpu, self.vmcs12.get(Field::VIRTUAL_APIC));
        let descriptor = Ram(cpu.vcpu().vm()).pointer_to_write::<AtomicU64>(self.vmcs12.get(Field::POSTED_INTERRUPTS));
        self.enter_vmcs02(cpu);
        // No interrupt is posted outside RAM.
        if let Some(vector) = descriptor.and_then(|descriptor| post(descriptor, page)) {
            request(vector);
            // The entry may fail, and then VMCS12's value is the one that is left.
            self.vmcs12.set_from_exit(Field::GUEST_INTERRUPT_STATUS, vmcs::read(Field::GUEST_INTERRUPT_STATUS));
        }
    }
}

/// Moves requests of a descriptor to the virtual-APIC page with a physical address. Returns the highest one.
fn post(descriptor: *const AtomicU64, page: u64) -> Option<u8> {
    // SAFETY: guest RAM, to which no reference but of atomics exists. The entry has checked that the address of the descriptor is a multiple of
    // 64 bytes: its five words are in one page.
    let word = |number: usize| unsafe { &*descriptor.add(number) };
    word(CONTROL).fetch_and(!OUTSTANDING, Ordering::AcqRel);
    let mut highest = None;
    for number in 0..REQUESTS {
        let requests = word(number).swap(0, Ordering::AcqRel);
        for half in 0..2 {
            let bits = (requests >> (32 * half)) as u32;
            if bits != 0 {
                let register = VIRR + 16 * (2 * number + half);
                // SAFETY: guest RAM, or a page of the vCPU's that only guests use; the register is within it, and aligned.
                let register = unsafe { &*address_space::physical(page).add(register).cast::<AtomicU32>() };
                register.fetch_or(bits, Ordering::AcqRel);
                highest = Some((64 * number + 32 * half) as u8 + (31 - bits.leading_zeros()) as u8);
            }
        }
    }
    highest
}
