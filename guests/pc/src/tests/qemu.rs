//! Tests of what QEMU's AMD processors do otherwise than the manual says, with or without a hypervisor (`docs/upstream/qemu-x86.md`).

/// Names, and what QEMU does.
const OTHERWISE: [(&str, &str); 14] = [
    ("registers_kept", "WRMSR takes addresses that are not canonical"),
    ("breakpoints", "MOV SS does not hold a breakpoint on code"),
    ("aps_alternate", "PAUSE has no filter, so that vCPUs that spin keep the CPU, and time is real"),
    ("aps_lose_their_cpu", "time is real: a CPU that the host stops has lost no CPU of Stile's"),
    ("tasks_by_a_fault", "RFLAGS.RF is not saved"),
    ("tasks_by_an_nmi", "task switches can't be intercepted: the TSS of an NMI's task has the TF by which its IRET was stepped over"),
    ("tasks_of_users", "segments are not marked as accessed"),
    ("tasks_and_debug_registers", "the T flag of a TSS raises no debug exception"),
    ("tasks_that_are_wrong", "checks of a TSS fault in the other task"),
    ("tasks_that_can_not_begin", "faults of the new task are those of the old one"),
    ("tasks_by_events_that_fault", "error codes lack the EXT bit"),
    ("interrupt_on_an_odd_stack", "alignment is not checked"),
    ("interrupt_of_the_8259s_on_an_odd_stack", "alignment is not checked"),
    ("device_steps", "a repeated instruction on RAM ends with another step"),
];

/// QEMU's deviation from a test's expectation, if any.
pub fn differs(test: &str) -> Option<&'static str> {
    OTHERWISE.iter().find(|(name, _)| *name == test).map(|(_, what)| *what)
}
