//! A VM entry in plain form, from the text of the SDM, volume 3, sections 26.2 and 26.3, with the numbers of fields and bits, for the
//! processor of `stile_nested_vmx::model`. Guest state that fails for several reasons reports the first in the order of the sections.

#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Enters,
    Fails(u32),
    Exits(u64),
}

type Get<'a> = &'a dyn Fn(u32) -> u64;

const PHYSICAL: u64 = 1 << 40;

fn bit(value: u64, bit: u32) -> bool {
    value >> bit & 1 == 1
}

fn canonical(value: u64) -> bool {
    !(1 << 47..0xffff_8000_0000_0000).contains(&value)
}

fn page(value: u64) -> bool {
    value.is_multiple_of(4096) && value < PHYSICAL
}

fn within(value: u64, must: u64, may: u64) -> bool {
    value & must == must && value | may == may
}

fn pat(value: u64) -> bool {
    (0..8).all(|n| [0, 1, 4, 5, 6, 7].contains(&(value >> (8 * n) & 0xff)))
}

pub fn enter(get: Get, is_long: bool, memory: u64) -> Outcome {
    if !controls(get, memory) {
        return Outcome::Fails(7);
    }
    if !host(get, is_long) {
        return Outcome::Fails(8);
    }
    if !registers(get) || !segments(get) || !descriptor_tables(get) || !rip_and_rflags(get) || !non_register(get) {
        return Outcome::Exits(0);
    }
    let link = get(0x2800);
    if link != u64::MAX {
        let shadow = bit(secondary(get), 14);
        let first = memory & 0xffff_ffff;
        if !page(link) || link == 0x7000 || first != if shadow { 0xd356_0001 } else { 0x5356_0001 } {
            return Outcome::Exits(4);
        }
    }
    let pae = bit(get(0x6800), 31) && bit(get(0x6804), 5) && !bit(get(0x4012), 9);
    if pae {
        for n in 0..4 {
            let entry = if bit(secondary(get), 1) { get(0x280a + 2 * n) } else { memory };
            if bit(entry, 0) && (entry & 0x1e6 != 0 || entry >= PHYSICAL) {
                return Outcome::Exits(2);
            }
        }
    }
    Outcome::Enters
}

fn secondary(get: Get) -> u64 {
    if bit(get(0x4002), 31) { get(0x401e) } else { 0 }
}

fn controls(get: Get, memory: u64) -> bool {
    let (pin, primary, secondary, exit, entry) = (get(0x4000), get(0x4002), secondary(get), get(0x400c), get(0x4012));
    let allowed = within(pin, 0x16, 0xff)
        && within(primary, 0x0400_6172, 0xfff9_fffe)
        && within(secondary, 0, 0x0001_5fff)
        && within(exit, 0x0003_6dfb, 0x007f_efff)
        && within(entry, 0x11fb, 0xd3ff);
    if !allowed || get(0x400a) > 4 {
        return false;
    }
    if bit(primary, 25) && !(page(get(0x2000)) && page(get(0x2002))) || bit(primary, 28) && !page(get(0x2004)) {
        return false;
    }
    let delivery = bit(secondary, 9);
    if bit(primary, 21) {
        if !page(get(0x2012)) {
            return false;
        }
        if !delivery && get(0x401c) > 15 {
            return false;
        }
        if !delivery && !bit(secondary, 0) && get(0x401c) % 16 > memory >> 4 & 15 {
            return false;
        }
    } else if bit(secondary, 4) || bit(secondary, 8) || delivery {
        return false;
    }
    if !bit(pin, 3) && bit(pin, 5) || !bit(pin, 5) && bit(primary, 22) {
        return false;
    }
    if bit(secondary, 0) && (!page(get(0x2014)) || bit(secondary, 4)) || delivery && !bit(pin, 0) {
        return false;
    }
    if bit(pin, 7) {
        let descriptor = get(0x2016);
        if !delivery || !bit(exit, 15) || get(2) > 255 || !descriptor.is_multiple_of(64) || descriptor >= PHYSICAL {
            return false;
        }
    }
    if bit(secondary, 5) && get(0) == 0 {
        return false;
    }
    if bit(secondary, 1) {
        let eptp = get(0x201a);
        if ![0, 6].contains(&(eptp & 7)) || eptp >> 3 & 7 != 3 || eptp & 0xf80 != 0 || eptp >= PHYSICAL {
            return false;
        }
    } else if bit(secondary, 7) {
        return false;
    }
    if bit(secondary, 14) && !(page(get(0x2026)) && page(get(0x2028))) {
        return false;
    }
    if !bit(pin, 6) && bit(exit, 22) {
        return false;
    }
    for (count, area) in [(0x400e, 0x2006), (0x4010, 0x2008), (0x4014, 0x200a)] {
        let (count, area) = (u128::from(get(count)), u128::from(get(area)));
        if count != 0 && (area % 16 != 0 || area + 16 * count > u128::from(PHYSICAL)) {
            return false;
        }
    }
    injection(get)
}

fn injection(get: Get) -> bool {
    let event = get(0x4016);
    if !bit(event, 31) {
        return true;
    }
    let (kind, vector) = (event >> 8 & 7, event & 255);
    let vector_fits = match kind {
        0 | 4 | 5 | 6 => true,
        2 => vector == 2,
        3 => vector < 32,
        7 => vector == 0,
        _ => false,
    };
    let real = bit(secondary(get), 7) && !bit(get(0x6800), 0);
    let has_code = kind == 3 && !real && [8, 10, 11, 12, 13, 14, 17].contains(&vector);
    let length_fits = ![4, 5, 6].contains(&kind) || get(0x401a) <= 15;
    vector_fits && bit(event, 11) == has_code && event & 0x7fff_f000 == 0 && (!has_code || get(0x4018) >> 16 == 0) && length_fits
}

fn host(get: Get, is_long: bool) -> bool {
    let (exit, entry) = (get(0x400c), get(0x4012));
    let wide = bit(exit, 9);
    let cr4 = get(0x6c04);
    if !within(get(0x6c00), 0x8000_0021, 0xffff_ffff) || !within(cr4, 0x2000, 0x0037_27ff) || get(0x6c02) >= PHYSICAL {
        return false;
    }
    if bit(exit, 19) && !pat(get(0x2c00)) {
        return false;
    }
    if bit(exit, 21) {
        let efer = get(0x2c02);
        if efer & !0xd01 != 0 || bit(efer, 8) != wide || bit(efer, 10) != wide {
            return false;
        }
    }
    if (0..7).any(|n| get(0xc00 + 2 * n) & 7 != 0) || get(0xc02) == 0 || get(0xc0c) == 0 || !wide && get(0xc04) == 0 {
        return false;
    }
    // FS, GS, TR, GDTR, IDTR, and the stack and entry of SYSENTER.
    if (0x6c06..=0x6c12).step_by(2).any(|field| !canonical(get(field))) {
        return false;
    }
    if wide != is_long || !is_long && bit(entry, 9) {
        return false;
    }
    let rip = get(0x6c16);
    if wide { bit(cr4, 5) && canonical(rip) } else { !bit(cr4, 17) && rip < 1 << 32 }
}

fn registers(get: Get) -> bool {
    let (entry, cr0, cr4) = (get(0x4012), get(0x6800), get(0x6804));
    let must = if bit(secondary(get), 7) { 0x20 } else { 0x8000_0021 };
    if !within(cr0, must, 0xffff_ffff) || bit(cr0, 31) && !bit(cr0, 0) || !within(cr4, 0x2000, 0x0037_27ff) {
        return false;
    }
    let long = bit(entry, 9);
    if long && !(bit(cr0, 31) && bit(cr4, 5)) || !long && bit(cr4, 17) || get(0x6802) >= PHYSICAL {
        return false;
    }
    if bit(entry, 2) && (get(0x2802) > 3 || get(0x681a) >= 1 << 32) {
        return false;
    }
    if !canonical(get(0x6824)) || !canonical(get(0x6826)) || bit(entry, 14) && !pat(get(0x2804)) {
        return false;
    }
    let efer = get(0x2806);
    !bit(entry, 15) || efer & !0xd01 == 0 && bit(efer, 10) == long && (!bit(cr0, 31) || bit(efer, 8) == long)
}

fn segments(get: Get) -> bool {
    let long = bit(get(0x4012), 9);
    let unrestricted = bit(secondary(get), 7);
    let virtual_8086 = bit(get(0x6820), 17);
    let [es, cs, ss, ds, fs, gs, ldtr, tr] = [0u32, 1, 2, 3, 4, 5, 6, 7];
    let selector = |n: u32| get(0x800 + 2 * n);
    let limit = |n: u32| get(0x4800 + 2 * n);
    let rights = |n: u32| get(0x4814 + 2 * n);
    let base = |n: u32| get(0x6806 + 2 * n);
    let usable = |n: u32| !bit(rights(n), 16);
    let dpl = |n: u32| rights(n) >> 5 & 3;
    let granularity = |n: u32| {
        let small = bit(rights(n), 15) && limit(n) & 0xfff != 0xfff;
        let large = !bit(rights(n), 15) && limit(n) & 0xfff0_0000 != 0;
        !small && !large
    };
    let reserved = |n: u32| rights(n) & 0xf00 != 0 || rights(n) >> 17 != 0;
    if bit(selector(tr), 2) || usable(ldtr) && bit(selector(ldtr), 2) {
        return false;
    }
    if ![tr, fs, gs].into_iter().all(|n| canonical(base(n))) || usable(ldtr) && !canonical(base(ldtr)) {
        return false;
    }
    if virtual_8086 {
        let all = [cs, ss, ds, es, fs, gs];
        if !all.into_iter().all(|n| base(n) == selector(n) * 16 && limit(n) == 0xffff && rights(n) == 0xf3) {
            return false;
        }
    } else {
        if !unrestricted && (selector(ss) % 4 != selector(cs) % 4 || dpl(ss) != selector(ss) % 4) {
            return false;
        }
        if base(cs) >> 32 != 0 || [ss, ds, es].into_iter().any(|n| usable(n) && base(n) >> 32 != 0) {
            return false;
        }
        let cs_fits = match rights(cs) & 15 {
            3 => unrestricted && dpl(cs) == 0 && dpl(ss) == 0,
            9 | 11 => dpl(cs) == dpl(ss),
            13 | 15 => dpl(cs) <= dpl(ss),
            _ => false,
        };
        if !cs_fits || !bit(get(0x6800), 0) && dpl(ss) != 0 || usable(ss) && ![3, 7].contains(&(rights(ss) & 15)) {
            return false;
        }
        for n in [ds, es, fs, gs] {
            let kind = rights(n) & 15;
            let wrong = !bit(kind, 0) || bit(kind, 3) && !bit(kind, 1);
            let beneath = !unrestricted && kind <= 11 && dpl(n) < selector(n) % 4;
            if usable(n) && (wrong || beneath) {
                return false;
            }
        }
        for n in [cs, ss, ds, es, fs, gs] {
            if (n == cs || usable(n)) && (!bit(rights(n), 4) || !bit(rights(n), 7) || reserved(n) || !granularity(n)) {
                return false;
            }
        }
        if long && bit(rights(cs), 13) && bit(rights(cs), 14) {
            return false;
        }
    }
    let system = |n: u32| !bit(rights(n), 4) && bit(rights(n), 7) && !reserved(n) && granularity(n);
    let tss = rights(tr) & 15;
    let tr_fits = (tss == 11 || tss == 3 && !long) && system(tr) && usable(tr);
    tr_fits && (!usable(ldtr) || rights(ldtr) & 15 == 2 && system(ldtr))
}

fn descriptor_tables(get: Get) -> bool {
    canonical(get(0x6816)) && canonical(get(0x6818)) && get(0x4810) < 0x1_0000 && get(0x4812) < 0x1_0000
}

fn rip_and_rflags(get: Get) -> bool {
    let long = bit(get(0x4012), 9);
    let (rip, rflags) = (get(0x681e), get(0x6820));
    let rip_fits = if long && bit(get(0x4816), 13) { !(1 << 48..0xffff << 48).contains(&rip) } else { rip < 1 << 32 };
    let event = get(0x4016);
    let interrupt = bit(event, 31) && event >> 8 & 7 == 0;
    rip_fits
        && rflags < 1 << 22
        && bit(rflags, 1)
        && rflags & 0x8028 == 0
        && (!bit(rflags, 17) || !long && bit(get(0x6800), 0))
        && (!interrupt || bit(rflags, 9))
}

fn non_register(get: Get) -> bool {
    let (blocking, activity, pending, rflags) = (get(0x4824), get(0x4826), get(0x6822), get(0x6820));
    let event = get(0x4016);
    let (has_event, kind, vector) = (bit(event, 31), event >> 8 & 7, event & 255);
    // Shutdown is not offered.
    if ![0, 1, 3].contains(&activity) || activity == 1 && get(0x4818) & 0x60 != 0 {
        return false;
    }
    if activity != 0 && blocking & 3 != 0 || activity == 3 && has_event {
        return false;
    }
    if activity == 1 && has_event && !(kind == 0 || kind == 2 || kind == 3 && [1, 18].contains(&vector) || kind == 7) {
        return false;
    }
    // STI, MOV SS, NMI.
    let [sti, mov_ss, nmi] = [bit(blocking, 0), bit(blocking, 1), bit(blocking, 3)];
    if blocking & !0b1011 != 0 || sti && mov_ss || sti && !bit(rflags, 9) {
        return false;
    }
    if has_event && kind == 0 && (sti || mov_ss) || has_event && kind == 2 && (mov_ss || nmi && bit(get(0x4000), 5)) {
        return false;
    }
    if pending & !0x500f != 0 {
        return false;
    }
    let steps = bit(rflags, 8) && !bit(get(0x2802), 1);
    !(sti || mov_ss || activity == 1) || bit(pending, 14) == steps
}
