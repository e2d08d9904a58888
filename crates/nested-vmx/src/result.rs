//! Outcomes of VMX instructions (SDM, "Conventions" and "VM Instruction Error Numbers").

/// The reason why an instruction fails while there is a current VMCS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum InstructionError {
    /// VMCALL in VMX root operation.
    CallInRoot = 1,
    /// VMCLEAR with an invalid physical address.
    ClearAddress = 2,
    /// VMCLEAR with the VMXON pointer.
    ClearVmxonPointer = 3,
    /// VMLAUNCH with a VMCS that is not clear.
    LaunchNotClear = 4,
    /// VMRESUME with a VMCS that is not launched.
    ResumeNotLaunched = 5,
    /// VMRESUME after VMXOFF.
    ResumeAfterOff = 6,
    /// VM entry with invalid control fields.
    EntryControls = 7,
    /// VM entry with invalid host-state fields.
    EntryHostState = 8,
    /// VMPTRLD with an invalid physical address.
    LoadAddress = 9,
    /// VMPTRLD with the VMXON pointer.
    LoadVmxonPointer = 10,
    /// VMPTRLD with an incorrect VMCS revision identifier.
    LoadRevision = 11,
    /// VMREAD or VMWRITE of an unsupported field.
    UnsupportedField = 12,
    /// VMWRITE to a read-only field.
    WriteReadOnly = 13,
    /// VMXON in VMX root operation.
    OnInRoot = 15,
    /// VM entry with an invalid executive-VMCS pointer.
    ExecutivePointer = 16,
    /// VM entry with a non-launched executive VMCS.
    ExecutiveNotLaunched = 17,
    /// VM entry with an executive-VMCS pointer that is not the VMXON pointer.
    ExecutiveNotVmxon = 18,
    /// VMCALL with a VMCS that is not clear.
    CallNotClear = 19,
    /// VMCALL with invalid VM-exit controls.
    CallExitControls = 20,
    /// VMCALL with an incorrect MSEG revision identifier.
    CallMsegRevision = 22,
    /// VMXOFF under dual-monitor treatment of SMIs and SMM.
    OffDualMonitor = 23,
    /// VMCALL with invalid SMM-monitor features.
    CallSmmFeatures = 24,
    /// VM entry with invalid VM-execution controls in the executive VMCS.
    ExecutiveControls = 25,
    /// VM entry with events blocked by MOV SS.
    EntryMovSs = 26,
    /// INVEPT or INVVPID with an invalid operand.
    InvalidateOperand = 28,
}

/// The outcome of a VMX instruction that completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmxResult {
    /// VMsucceed.
    Succeed,
    /// VMfailInvalid: there is no current VMCS.
    FailInvalid,
    /// VMfailValid: the number belongs in the current VMCS.
    FailValid(InstructionError),
}

impl VmxResult {
    const CF: u64 = 1 << 0;
    const PF: u64 = 1 << 2;
    const AF: u64 = 1 << 4;
    const ZF: u64 = 1 << 6;
    const SF: u64 = 1 << 7;
    const OF: u64 = 1 << 11;

    /// VMfail: which form depends on whether there is a current VMCS.
    pub const fn fail(error: InstructionError, has_current: bool) -> Self {
        if has_current { Self::FailValid(error) } else { Self::FailInvalid }
    }

    /// RFLAGS after the instruction.
    #[inline(always)]
    pub const fn rflags(self, before: u64) -> u64 {
        let clear = before & !(Self::CF | Self::PF | Self::AF | Self::ZF | Self::SF | Self::OF);
        match self {
            Self::Succeed => clear,
            Self::FailInvalid => clear | Self::CF,
            Self::FailValid(_) => clear | Self::ZF,
        }
    }

    /// The value for the VM-instruction error field; `None` if it does not change.
    pub const fn error(self) -> Option<u32> {
        match self {
            Self::FailValid(error) => Some(error as u32),
            Self::Succeed | Self::FailInvalid => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags() {
        assert_eq!(VmxResult::Succeed.rflags(0xad7), 0x202);
        assert_eq!(VmxResult::FailInvalid.rflags(0xad6), 0x203);
        assert_eq!(VmxResult::fail(InstructionError::EntryControls, true).rflags(0xad7), 0x242);
        assert_eq!(VmxResult::fail(InstructionError::EntryControls, false), VmxResult::FailInvalid);
        assert_eq!(VmxResult::FailValid(InstructionError::InvalidateOperand).error(), Some(28));
    }
}
