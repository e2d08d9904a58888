//! Fields of a vCPU's VMCS or VMCB in snapshots, and their values.

/// BTF: the bits of DEBUGCTL that guests may set.
pub const DEBUGCTL: u64 = 1 << 1;
/// Bits of RFLAGS, and the one that is always 1.
pub const RFLAGS: (u64, u64) = (0x3f_7fd5, 1 << 1);

/// The fields: some of the back end's `Field`, those that both back ends have in this order, and further ones.
macro_rules! saved_fields {
    ([$($first:ident),*], [$($last:ident),*]) => {
        [
            $(Field::$first,)*
            Field::GUEST_DEBUGCTL,
            Field::GUEST_PAT,
            Field::GUEST_EFER,
            Field::GUEST_SYSENTER_CS,
            Field::GUEST_SYSENTER_ESP,
            Field::GUEST_SYSENTER_EIP,
            Field::GUEST_ES,
            Field::GUEST_CS,
            Field::GUEST_SS,
            Field::GUEST_DS,
            Field::GUEST_FS,
            Field::GUEST_GS,
            Field::GUEST_LDTR,
            Field::GUEST_TR,
            Field::GUEST_ES_LIMIT,
            Field::GUEST_CS_LIMIT,
            Field::GUEST_SS_LIMIT,
            Field::GUEST_DS_LIMIT,
            Field::GUEST_FS_LIMIT,
            Field::GUEST_GS_LIMIT,
            Field::GUEST_LDTR_LIMIT,
            Field::GUEST_TR_LIMIT,
            Field::GUEST_ES_RIGHTS,
            Field::GUEST_CS_RIGHTS,
            Field::GUEST_SS_RIGHTS,
            Field::GUEST_DS_RIGHTS,
            Field::GUEST_FS_RIGHTS,
            Field::GUEST_GS_RIGHTS,
            Field::GUEST_LDTR_RIGHTS,
            Field::GUEST_TR_RIGHTS,
            Field::GUEST_ES_BASE,
            Field::GUEST_CS_BASE,
            Field::GUEST_SS_BASE,
            Field::GUEST_DS_BASE,
            Field::GUEST_FS_BASE,
            Field::GUEST_GS_BASE,
            Field::GUEST_LDTR_BASE,
            Field::GUEST_TR_BASE,
            Field::GUEST_GDTR_LIMIT,
            Field::GUEST_IDTR_LIMIT,
            Field::GUEST_GDTR_BASE,
            Field::GUEST_IDTR_BASE,
            Field::GUEST_RSP,
            Field::GUEST_RIP,
            Field::GUEST_RFLAGS,
            Field::GUEST_INTERRUPTIBILITY,
            $(Field::$last,)*
        ]
    };
}
pub(in crate::arch::x86_64) use saved_fields;

/// The value of one of the `fields`, which are in the order of their values; 0 if it is none of them.
pub fn get<F: PartialEq>(fields: &[F], values: &[u64], field: F) -> u64 {
    fields.iter().zip(values).find_map(|(of, value)| (*of == field).then_some(*value)).unwrap_or(0)
}

/// Changes the value of one of the `fields`.
pub fn change<F: PartialEq>(fields: &[F], values: &mut [u64], field: F, to: impl FnOnce(u64) -> u64) {
    if let Some((_, value)) = fields.iter().zip(values).find(|(of, _)| **of == field) {
        *value = to(*value);
    }
}
