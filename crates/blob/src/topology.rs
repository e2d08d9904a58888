//! Sockets, cores and threads of a virtual machine.

use serde::{Deserialize, Serialize};

/// Arrangement of a virtual machine's vCPUs that the guest sees: numbered thread by thread, core by core, socket by socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Sockets, at least 1.
    pub sockets: u16,
    /// Cores of a socket, at least 1.
    pub cores: u16,
    /// Threads of a core, at least 1.
    pub threads: u16,
}

impl Topology {
    /// One socket with a core for each vCPU.
    pub const fn flat(vcpus: u16) -> Topology {
        Topology { sockets: 1, cores: vcpus, threads: 1 }
    }

    /// The number of vCPUs.
    pub const fn vcpus(self) -> usize {
        self.sockets as usize * self.per_socket()
    }

    /// The number of vCPUs of a socket.
    pub const fn per_socket(self) -> usize {
        self.cores as usize * self.threads as usize
    }

    /// Socket, core in the socket, and thread in the core of a vCPU. The topology is not empty.
    pub const fn place(self, vcpu: usize) -> (usize, usize, usize) {
        let (threads, cores) = (self.threads as usize, self.cores as usize);
        (vcpu / threads / cores, vcpu / threads % cores, vcpu % threads)
    }

    /// The bits of an x86-64 APIC identifier below those that name the core, and below those that name the socket.
    pub const fn apic_shifts(self) -> (u32, u32) {
        let threads = (self.threads as u32).next_power_of_two().trailing_zeros();
        let cores = (self.cores as u32).next_power_of_two().trailing_zeros();
        (threads, threads + cores)
    }

    /// The identifier of a vCPU's APIC on x86-64, below 1024: thread, core and socket in fields of
    /// [`apic_shifts`](Self::apic_shifts). The topology is not empty.
    pub const fn apic_id(self, vcpu: usize) -> u32 {
        let (socket, core, thread) = self.place(vcpu);
        let (core_at, socket_at) = self.apic_shifts();
        (socket << socket_at | core << core_at | thread) as u32
    }

    /// Returns the vCPU whose APIC on x86-64 has the identifier `apic_id`; `None` for an identifier in a gap or above all.
    pub const fn vcpu_of(self, apic_id: u32) -> Option<usize> {
        let (core_at, socket_at) = self.apic_shifts();
        let id = apic_id as usize;
        let (socket, core, thread) = (id >> socket_at, (id >> core_at) & ((1 << (socket_at - core_at)) - 1), id & ((1 << core_at) - 1));
        let exists = socket < self.sockets as usize && core < self.cores as usize && thread < self.threads as usize;
        if exists { Some((socket * self.cores as usize + core) * self.threads as usize + thread) } else { None }
    }

    /// The greatest identifier of an APIC on x86-64. The topology is not empty.
    pub const fn last_apic_id(self) -> u32 {
        self.apic_id(self.vcpus() - 1)
    }

    /// Whether identifiers that count from 0 are those of this arrangement on x86-64: all that is below another level
    /// must be a power of two.
    pub const fn fits_apic_ids(self) -> bool {
        let threads_fit = self.threads.is_power_of_two() || self.cores == 1 && self.sockets == 1;
        let cores_fit = self.cores.is_power_of_two() || self.sockets == 1;
        threads_fit && cores_fit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_threads_first() {
        let topology = Topology { sockets: 2, cores: 3, threads: 2 };
        assert_eq!((topology.vcpus(), topology.per_socket()), (12, 6));
        assert_eq!(Topology::flat(3).per_socket(), 3, "the exact number, not one of identifiers");
        let places = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)];
        assert!(places.into_iter().enumerate().all(|(vcpu, place)| topology.place(vcpu) == place));
        assert_eq!(Topology::flat(5).place(4), (0, 4, 0));
    }

    #[test]
    fn apic_identifiers_have_fields() {
        let topology = |sockets, cores, threads| Topology { sockets, cores, threads };
        assert_eq!(topology(2, 8, 2).apic_shifts(), (1, 4));
        assert_eq!(Topology::flat(6).apic_shifts(), (0, 3));
        assert_eq!(Topology::flat(1).apic_shifts(), (0, 0));
        for fits in [topology(2, 8, 2), topology(3, 4, 1), topology(1, 6, 2), Topology::flat(7), topology(1, 1, 3)] {
            assert!(fits.fits_apic_ids(), "{fits:?}");
            let (core, socket) = fits.apic_shifts();
            let fields = |id: usize| (id >> socket, id >> core & ((1 << (socket - core)) - 1), id & ((1 << core) - 1));
            assert!((0..fits.vcpus()).all(|vcpu| fields(vcpu) == fits.place(vcpu)), "{fits:?}");
            assert!((0..fits.vcpus()).all(|vcpu| fits.apic_id(vcpu) == vcpu as u32), "{fits:?}");
        }
        assert!(!topology(2, 3, 1).fits_apic_ids() && !topology(1, 2, 3).fits_apic_ids());
    }

    #[test]
    fn apic_identifiers_have_gaps() {
        let ids = |sockets, cores, threads| {
            let topology = Topology { sockets, cores, threads };
            (0..topology.vcpus()).map(move |vcpu| topology.apic_id(vcpu))
        };
        assert!(ids(2, 3, 1).eq([0, 1, 2, 4, 5, 6]));
        assert!(ids(1, 2, 3).eq([0, 1, 2, 4, 5, 6]));
        assert_eq!(Topology { sockets: 5, cores: 5, threads: 5 }.last_apic_id(), 292);
        assert_eq!(Topology::flat(256).last_apic_id(), 255);
        for vcpus in [1_u16, 2, 12, 30, 125, 255, 256] {
            for (sockets, cores) in (1..=vcpus).flat_map(|sockets| (1..=vcpus / sockets).map(move |cores| (sockets, cores))) {
                let threads = vcpus / sockets / cores;
                let topology = Topology { sockets, cores, threads };
                let last = topology.last_apic_id();
                assert!(last < 1024, "{topology:?}");
                assert!((0..topology.vcpus()).all(|vcpu| topology.vcpu_of(topology.apic_id(vcpu)) == Some(vcpu)), "{topology:?}");
                assert_eq!((0..1024).filter(|&id| topology.vcpu_of(id).is_some()).count(), topology.vcpus(), "{topology:?}");
            }
        }
    }
}
