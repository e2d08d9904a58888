//! Sockets, cores and threads of a virtual machine.

use stile_blob::Topology;
use stile_board::MAX_VCPUS;

use super::{Mistake, draft::Given, units};

/// Sockets, cores of a socket and threads of a core. As many as `vcpus`, if that is given.
pub fn topology(given: &Given<String>, vcpus: Option<usize>, mistakes: &mut Vec<Mistake>) -> Option<Topology> {
    let expected = "sockets, cores of each and threads of each, such as \"1x4x2\"";
    let counts: Vec<Option<u16>> = given.value.split('x').map(|count| count.parse().ok().filter(|&count| count > 0)).collect();
    let &[Some(sockets), Some(cores), Some(threads)] = &counts[..] else {
        mistakes.push(Mistake::new(given.place.clone(), format!("\"{}\" is not a topology", given.value)).expected(expected));
        return None;
    };
    let topology = Topology { sockets, cores, threads };
    let all = topology.vcpus();
    if all > MAX_VCPUS {
        mistakes.push(
            Mistake::new(given.place.clone(), format!("\"{}\" has {all} threads", given.value)).expected(format!("at most {MAX_VCPUS}")),
        );
        return None;
    }
    if let Some(vcpus) = vcpus.filter(|&vcpus| vcpus != all) {
        let what =
            format!("\"{}\" has {}, and the virtual machine {}", given.value, units::plural(all, "thread"), units::plural(vcpus, "vCPU"));
        mistakes.push(Mistake::new(given.place.clone(), what).expected(format!("vcpus = {all}, or another topology")));
        return None;
    }
    Some(topology)
}
