//! Bits of the clean fields (TLFS, "Clean Fields"): a group of fields is unchanged. Groups without a bit are read at each entry.

macro_rules! bits {
    ($($name:ident = $bit:literal),+ $(,)?) => {
        $(#[doc = concat!(stringify!($name), ": bit ", stringify!($bit), ".")] pub const $name: u32 = 1 << $bit;)+
    };
}
bits! {
    IO_BITMAPS = 0, MSR_BITMAP = 1, CONTROLS_2 = 2, CONTROLS_1 = 3, PROCESSOR = 4, EVENT = 5, ENTRY = 6, EXCEPTIONS = 7,
    CONTROL_REGISTERS = 8, TRANSLATION = 9, GUEST_BASIC = 10, GUEST_1 = 11, GUEST_2 = 12, HOST_POINTERS = 13, HOST_1 = 14,
    ENLIGHTENMENTS = 15,
}
/// Fields that belong to no group: read at each entry.
pub const NONE: u32 = 0;
/// All groups. Fields that the TLFS has no group for are read unless all of it is clean.
pub const ALL: u32 = 0xffff;
