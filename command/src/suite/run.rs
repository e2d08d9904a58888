//! Runs tests beside each other, and beside the builds that later ones need.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::Result;

use super::test::Test;
use stile::out::{self, Unwritable};

/// Tests that wait for most of their time. They run beside the others.
pub const WAITING: [&str; 2] = ["command/timeout", "life/idle-until-timeout"];

/// Numbers of tests by outcome.
#[derive(Debug, Default)]
pub struct Count {
    pub passed: usize,
    /// The names of those that failed.
    pub failed: Vec<String>,
}

impl Count {
    /// Counts a test that ended, and shows its result.
    fn add(&mut self, name: &str, start: Instant, result: Result<(), String>) -> Result<(), Unwritable> {
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                self.passed += 1;
                out::line(format_args!("test {name} ... ok ({seconds:.1} s)"))
            }
            Err(report) => {
                self.failed.push(name.to_owned());
                out::line(format_args!("test {name} ... FAILED ({seconds:.1} s)"))?;
                report.lines().try_for_each(|line| out::line(format_args!("    {line}")))
            }
        }
    }
}

/// State that the threads of a run share.
struct State {
    count: Count,
    /// An error ends the run: no further test starts.
    end: Result<()>,
}

/// A run, for the thread that prepares its tests.
pub struct Run<'a> {
    state: &'a Mutex<State>,
    busy: Sender<Test>,
    waiting: Sender<Test>,
}

impl Run<'_> {
    /// Hands tests over to the workers.
    pub fn add(&self, tests: impl IntoIterator<Item = Test>) {
        for test in tests {
            let queue = if WAITING.contains(&test.name.as_str()) { &self.waiting } else { &self.busy };
            // The workers have left if the run has ended.
            let _ = queue.send(test);
        }
    }

    /// Does `work`, which is the test `name`, in this thread, and returns what it made, if it passed.
    ///
    /// # Errors
    /// Standard output can't be written.
    pub fn now<T>(&self, name: &str, work: impl FnOnce() -> Result<T, String>) -> Result<Option<T>, Unwritable> {
        out::line(format_args!("running {name}"))?;
        let start = Instant::now();
        let (made, result) = match work() {
            Ok(made) => (Some(made), Ok(())),
            Err(report) => (None, Err(report)),
        };
        lock(self.state).count.add(name, start, result)?;
        Ok(made)
    }
}

/// Runs the tests that `prepare` adds, `jobs` at a time, and one more of those that wait.
///
/// # Errors
/// `prepare` fails, or standard output can't be written: tests that run end, and no further one starts.
pub fn run(jobs: usize, prepare: impl FnOnce(&Run) -> Result<()>) -> Result<Count> {
    let state = Mutex::new(State { count: Count::default(), end: Ok(()) });
    let (busy, busy_tests) = mpsc::channel();
    let (waiting, waiting_tests) = mpsc::channel();
    let [busy_tests, waiting_tests] = [Mutex::new(busy_tests), Mutex::new(waiting_tests)];
    thread::scope(|scope| {
        for queue in std::iter::once(&waiting_tests).chain(std::iter::repeat_n(&busy_tests, jobs)) {
            scope.spawn(|| work(queue, &state));
        }
        let prepared = prepare(&Run { state: &state, busy, waiting });
        let mut state = lock(&state);
        if state.end.is_ok() {
            state.end = prepared;
        }
    });
    let State { count, end } = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    end.map(|()| count)
}

/// Runs tests of a queue until nobody adds more.
fn work(queue: &Mutex<Receiver<Test>>, state: &Mutex<State>) {
    // In a closure: no worker must keep the lock while its test runs.
    let next = || lock(queue).recv();
    while let Ok(test) = next() {
        if lock(state).end.is_err() {
            return;
        }
        let start = Instant::now();
        let result = test.run();
        let State { count, end } = &mut *lock(state);
        if let Err(error) = count.add(&test.name, start, result)
            && end.is_ok()
        {
            *end = Err(error.into());
        }
    }
}

/// Locks, also after another thread panicked with the lock: that panic ends the run.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn tests_run_that_are_added_late() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counting = |name: &str, result: Result<(), String>| {
            let runs = runs.clone();
            Test::of_host(name.to_owned(), move || {
                runs.fetch_add(1, Ordering::Relaxed);
                result.clone()
            })
        };
        let count = run(2, |run| {
            run.add([counting("a", Ok(())), counting(WAITING[0], Ok(()))]);
            assert_eq!(run.now("b", || Ok::<_, String>(3))?, Some(3));
            assert_eq!(run.now("c", || Err::<(), _>("broken".to_owned()))?, None);
            run.add([counting("d", Err("broken".to_owned())), counting("e", Ok(()))]);
            Ok(())
        })
        .unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 4);
        assert_eq!(count.passed, 4);
        assert_eq!(count.failed, ["c", "d"]);
    }

    #[test]
    fn tests_run_beside_each_other() {
        let both = Arc::new(Barrier::new(2));
        let waiting = ["a", "b"].map(|name| {
            let both = both.clone();
            Test::of_host(name.to_owned(), move || {
                both.wait();
                Ok(())
            })
        });
        let count = run(2, |run| {
            run.add(waiting);
            Ok(())
        });
        assert_eq!(count.unwrap().passed, 2);
    }

    #[test]
    fn no_test_starts_after_the_end() {
        let (sender, queue) = mpsc::channel();
        sender.send(Test::of_host("late".to_owned(), || panic!("it started"))).unwrap();
        drop(sender);
        let state = State { count: Count::default(), end: Err(anyhow::anyhow!("no compiler")) };
        work(&Mutex::new(queue), &Mutex::new(state));
    }

    #[test]
    fn a_failed_preparation_is_the_runs_error() {
        let error = run(1, |_| anyhow::bail!("no compiler")).unwrap_err();
        assert_eq!(error.to_string(), "no compiler");
    }
}
