//! Shared memory: exclusives, atomics, order.

use core::sync::atomic::{AtomicU64, Ordering::*};

use payload::harness::Test;
use payload::lock::SpinLock;
use payload::prelude::*;
use payload::tests;

pub const TESTS: &[Test] = tests![all_come_up, spin_lock, exclusives, large_system_atomics, message_passing];

const EACH: u64 = 20_000;

fn all_come_up() -> Outcome {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    smp::on_all(|| {
        SEEN.fetch_or(1 << smp::this(), AcqRel);
        Ok(())
    })?;
    check_eq!(SEEN.load(Acquire), (1 << machine::cpus()) - 1, "CPUs that ran");
    Ok(())
}

fn spin_lock() -> Outcome {
    // Two words kept equal by the lock only.
    static PAIR: SpinLock<(u64, u64)> = SpinLock::new((0, 0));
    smp::on_all(|| {
        for _ in 0..EACH / 10 {
            let mut pair = PAIR.lock();
            check!(pair.0 == pair.1, "two CPUs held the lock: {} and {}", pair.0, pair.1);
            pair.0 += 1;
            pair.1 = pair.0;
        }
        Ok(())
    })?;
    check_eq!(PAIR.lock().0, EACH / 10 * machine::cpus() as u64, "count");
    Ok(())
}

fn exclusives() -> Outcome {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    smp::on_all(|| {
        for _ in 0..EACH {
            COUNT.fetch_add(1, Relaxed);
        }
        Ok(())
    })?;
    check_eq!(COUNT.load(Acquire), EACH * machine::cpus() as u64, "count");
    Ok(())
}

fn large_system_atomics() -> Outcome {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if mrs!("ID_AA64ISAR0_EL1") >> 20 & 0xF < 2 {
        skip!("no FEAT_LSE");
    }
    smp::on_all(|| {
        for _ in 0..EACH {
            // SAFETY: adds to a static that is only accessed atomically.
            unsafe {
                core::arch::asm!(".arch_extension lse", "stadd {}, [{}]", in(reg) 1_u64, in(reg) COUNT.as_ptr(), options(nostack));
            }
        }
        Ok(())
    })?;
    check_eq!(COUNT.load(Acquire), EACH * machine::cpus() as u64, "count");
    Ok(())
}

/// CPU 0 writes data and then a flag; a CPU that observes the flag observes the data.
fn message_passing() -> Outcome {
    static FLAG: AtomicU64 = AtomicU64::new(0);
    static DATA: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
    const ROUNDS: u64 = 2_000;
    smp::need(2)?;
    smp::on_all(|| {
        if smp::this() == 0 {
            for round in 1..=ROUNDS {
                for word in &DATA {
                    word.store(round, Relaxed);
                }
                FLAG.store(round, Release);
            }
            return Ok(());
        }
        let mut seen = 0;
        let arrived = wait::until(|| {
            seen = FLAG.load(Acquire);
            DATA.iter().any(|word| word.load(Relaxed) < seen) || seen == ROUNDS
        });
        check!(arrived, "the flag stays at {seen}");
        check!(seen == ROUNDS, "data older than flag {seen}");
        Ok(())
    })
}
