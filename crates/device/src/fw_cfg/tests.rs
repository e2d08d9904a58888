use super::*;

fn device() -> FwCfg {
    FwCfg::new(Machine { ram: 0x1_2345_0000, cpus: 3 })
}

fn item(device: &mut FwCfg, key: u16, bytes: usize) -> u64 {
    device.select(key);
    (0..bytes).fold(0, |value, n| value | u64::from(device.read()) << (8 * n))
}

#[test]
fn items_are_read_byte_by_byte() {
    let mut device = device();
    assert_eq!(item(&mut device, 0, 4), u32::from_le_bytes(*b"QEMU").into());
    assert_eq!(item(&mut device, 1, 4), 1);
    assert_eq!(item(&mut device, 3, 8), 0x1_2345_0000);
    assert_eq!((item(&mut device, 5, 2), item(&mut device, 15, 2)), (3, 3));
    // Selecting an item restarts it, even the selected one.
    assert_eq!(item(&mut device, 5, 1), 3);
    assert_eq!(item(&mut device, 5, 1), 3);
}

#[test]
fn behind_an_item_and_where_there_is_none_is_zero() {
    let mut device = device();
    device.select(0);
    assert!((0..1000).map(|_| device.read()).skip(4).all(|byte| byte == 0));
    assert_eq!(item(&mut device, 0x19, 4), 0);
    assert_eq!(item(&mut device, 0xffff, 8), 0);
}
