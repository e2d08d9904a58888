//! How much of a CPU a guest gets.

/// The percentage of the time that this guest ran, by a counter that goes on while it does not. `chunk` always takes the same time, much shorter
/// than a slice: the shortest of all says how long it takes without others, so `chunks` of them say how long the guest ran.
pub fn percent(now: impl Fn() -> u64, chunk: impl Fn(), chunks: u64) -> u64 {
    let (start, mut least) = (now(), u64::MAX);
    for _ in 0..chunks {
        let before = now();
        chunk();
        least = least.min(now() - before);
    }
    least * chunks * 100 / (now() - start).max(1)
}
