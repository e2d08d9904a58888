//! EXITINFO1 and EXITINFO2 of a task switch ("Task Switch Intercept").

const BY_IRET: u64 = 1 << 36;
const BY_JUMP: u64 = 1 << 38;

/// Converts them to VMX's exit qualification: selector, and cause in bits 31:30. `delivers`: an event was being
/// delivered, through a task gate.
pub const fn task_qualification(info_1: u64, info_2: u64, delivers: bool) -> u64 {
    let cause = if info_2 & BY_IRET != 0 {
        1
    } else if info_2 & BY_JUMP != 0 {
        2
    } else if delivers {
        3
    } else {
        0
    };
    info_1 & 0xffff | cause << 30
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_those_of_vmx() {
        assert_eq!(task_qualification(0x28, 0, false), 0x28);
        assert_eq!(task_qualification(0x28, BY_IRET, false), 0x4000_0028);
        assert_eq!(task_qualification(0x28, BY_JUMP, false), 0x8000_0028);
        assert_eq!(task_qualification(0x28, 0, true), 0xc000_0028);
    }
}
