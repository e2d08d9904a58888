//! CPU affinity of threads.

/// Pins this thread to a CPU, if it exists.
pub fn pin(cpu: usize) {
    // SAFETY: the set is this function's own plain bit mask, valid when zeroed; a failure changes nothing.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
