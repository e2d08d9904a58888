//! CPU share of a guest.

/// The percentage of the time that this guest ran, by a counter that advances while it does not. `chunk`
/// always takes the same time, much shorter than a slice: the shortest one is its time without preemption, so
/// `chunks` times that is the guest's running time.
pub fn percent(now: impl Fn() -> u64, chunk: impl Fn(), chunks: u64) -> u64 {
    let (start, mut least) = (now(), u64::MAX);
    for _ in 0..chunks {
        let before = now();
        chunk();
        least = least.min(now() - before);
    }
    least * chunks * 100 / (now() - start).max(1)
}
