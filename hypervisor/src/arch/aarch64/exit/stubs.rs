//! Dispatch tables from exception class to stub, for `exit.S` and the exit paths that `build.rs` makes out of it: a pair
//! for each combination of recording a trace and of clearing the guest's registers (docs/speculation.md).

/// Address of a stub in `exit.S`, which is not callable as a function.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "read by exit.S")]
struct Stub(unsafe extern "C" fn());

/// The stub for each exception class (Arm ARM, ESR_EL2.EC). Aligned to a page, so that the vector needs one ADRP for the
/// address, without low bits to add.
#[repr(C, align(4096))]
struct Stubs([Stub; 64]);

/// Defines the two tables of an exit path: of ordinary vCPUs, and of vCPUs with direct interrupts.
macro_rules! tables {
    ($ordinary:ident, $direct:ident: $other:ident $wfx:ident $hvc:ident $smc:ident $sysreg:ident $data_abort:ident $direct_sysreg:ident) => {
        unsafe extern "C" {
            fn $other();
            fn $wfx();
            fn $hvc();
            fn $smc();
            fn $sysreg();
            fn $data_abort();
            fn $direct_sysreg();
        }

        #[unsafe(no_mangle)]
        static $ordinary: Stubs = Stubs(stubs($other, $wfx, $hvc, $smc, $sysreg, $data_abort));

        #[unsafe(no_mangle)]
        static $direct: Stubs = Stubs(stubs($other, $wfx, $hvc, $smc, $direct_sysreg, $data_abort));
    };
}

/// The type of [`Stub`]'s address.
type Address = unsafe extern "C" fn();

const fn stubs(other: Address, wfx: Address, hvc: Address, smc: Address, sysreg: Address, data_abort: Address) -> [Stub; 64] {
    let mut stubs = [Stub(other); 64];
    stubs[0x01] = Stub(wfx); // WF* instruction
    stubs[0x16] = Stub(hvc); // HVC from AArch64
    stubs[0x17] = Stub(smc); // SMC from AArch64
    stubs[0x18] = Stub(sysreg); // MSR, MRS or System instruction from AArch64
    stubs[0x24] = Stub(data_abort); // Data Abort from a lower Exception level
    stubs
}

tables! { SYNCHRONOUS_STUBS, DIRECT_STUBS:
exit_other exit_wfx exit_hvc exit_smc exit_sysreg exit_data_abort direct_exit_sysreg }
tables! { TRACED_SYNCHRONOUS_STUBS, TRACED_DIRECT_STUBS:
traced_exit_other traced_exit_wfx traced_exit_hvc traced_exit_smc traced_exit_sysreg traced_exit_data_abort traced_direct_exit_sysreg }
tables! { CLEARED_SYNCHRONOUS_STUBS, CLEARED_DIRECT_STUBS:
cleared_exit_other cleared_exit_wfx cleared_exit_hvc cleared_exit_smc cleared_exit_sysreg cleared_exit_data_abort
cleared_direct_exit_sysreg }
tables! { CLEARED_TRACED_SYNCHRONOUS_STUBS, CLEARED_TRACED_DIRECT_STUBS:
cleared_traced_exit_other cleared_traced_exit_wfx cleared_traced_exit_hvc cleared_traced_exit_smc cleared_traced_exit_sysreg
cleared_traced_exit_data_abort cleared_traced_direct_exit_sysreg }
