//! Where threads run.

/// Keeps this thread on one CPU, if there are so many.
pub fn pin(cpu: usize) {
    // SAFETY: the set is a plain bit mask of this function's own, valid when zeroed; a failure changes nothing.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
