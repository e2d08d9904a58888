//! Routes of a function's messages.

/// Route of a physical LPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(u32);

/// Handling of a message that has arrived on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The CPU runs a vCPU of the function's VM: this LPI of the VM becomes pending.
    Own(u32),
    /// The message leads nowhere, and has taken time of its own VM only.
    Dropped,
    /// The message may have taken another VM's time: it counts as a miss (crate `pci`, `Misses`).
    Foreign,
}

impl Route {
    /// A route to an LPI of VM number `vm` (less than 2^16), or to none (0) while the VM's ITS does not translate the event.
    pub const fn new(vm: usize, lpi: u16) -> Self {
        Self((vm as u32) << 16 | lpi as u32)
    }

    /// The route that [`bits`](Self::bits) returned.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The route as a word.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The number of the function's VM.
    pub const fn vm(self) -> usize {
        (self.0 >> 16) as usize
    }

    /// The VM's LPI, or 0.
    pub const fn lpi(self) -> u32 {
        self.0 & 0xffff
    }

    /// Decides about a message that has arrived on a CPU where a vCPU of VM number `loaded` is loaded, if any.
    ///
    /// An event without an LPI is no reason to drop its message uncounted: the function's DMA reaches the doorbell, so that its
    /// guest can send the message of any event, at any rate, whatever the MSI-X table masks.
    #[inline(always)]
    pub const fn arrive(self, loaded: Option<usize>) -> Arrival {
        match loaded {
            Some(vm) if vm == self.vm() => {
                if self.lpi() == 0 {
                    Arrival::Dropped
                } else {
                    Arrival::Own(self.lpi())
                }
            }
            _ => Arrival::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_has_its_parts() {
        let route = Route::new(127, 8447);
        assert_eq!((route.vm(), route.lpi(), Route::from_bits(route.bits())), (127, 8447, route));
    }

    #[test]
    fn only_the_own_vm_pays_for_messages_that_lead_nowhere() {
        for lpi in [0, 8192] {
            let route = Route::new(3, lpi);
            assert_eq!(route.arrive(None), Arrival::Foreign);
            assert_eq!(route.arrive(Some(2)), Arrival::Foreign);
        }
        assert_eq!(Route::new(3, 0).arrive(Some(3)), Arrival::Dropped);
        assert_eq!(Route::new(3, 8192).arrive(Some(3)), Arrival::Own(8192));
    }
}
