//! Runs tests beside each other, and beside the builds that later ones need.

use std::fmt::Display;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::stall::may_be_a_stall;
use super::test::Test;
use stile::out::{self, Unwritable};

/// Tests that wait for most of their time. They run beside the others.
pub const WAITING: [&str; 2] = ["command/timeout", "life/idle-until-timeout"];

/// Maximum number of failed tests for a retry. More failures suggest a common cause.
const MAX_RETRIED: usize = 4;

/// Time from the start of the run after which no retry begins: CI's time is limited.
const LAST_RETRY: Duration = Duration::from_secs(50 * 60);

/// Numbers of tests by outcome.
#[derive(Debug, Default, Serialize)]
pub struct Count {
    pub passed: usize,
    /// Names of the failed tests.
    pub failed: Vec<String>,
    /// Names of passed tests that failed before a retry.
    pub unsteady: Vec<String>,
}

/// Form of the results on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Json,
}

impl Form {
    /// Shows the result of a test that ended.
    fn result(self, name: &str, seconds: f64, result: &Result<(), String>) -> Result<(), Unwritable> {
        match (self, result) {
            (Self::Json, _) => {
                let seconds = (seconds * 10.0).round() / 10.0;
                out::json(&json!({"test": name, "passed": result.is_ok(), "seconds": seconds, "report": result.as_ref().err()}))
            }
            (Self::Text, Ok(())) => out::line(format_args!("test {name} ... ok ({seconds:.1} s)")),
            (Self::Text, Err(report)) => {
                out::line(format_args!("test {name} ... FAILED ({seconds:.1} s)"))?;
                report.lines().try_for_each(|line| out::line(format_args!("    {line}")))
            }
        }
    }

    /// Shows a message about the progress, in text only.
    pub fn progress(self, message: impl Display) -> Result<(), Unwritable> {
        if self == Self::Text { out::line(message) } else { Ok(()) }
    }
}

/// State that the threads of a run share.
struct State {
    form: Form,
    count: Count,
    /// The tests that failed in an emulator, perhaps by a stall of the host.
    retriable: Vec<Test>,
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
        lock(self.state).form.progress(format_args!("running {name}"))?;
        let start = Instant::now();
        let (made, result) = match work() {
            Ok(made) => (Some(made), Ok(())),
            Err(report) => (None, Err(report)),
        };
        lock(self.state).add(name, start, result)?;
        Ok(made)
    }
}

/// Runs the tests that `prepare` adds, `jobs` at a time, and one more of those that wait. Then those that failed in an emulator, perhaps by
/// a stall of the host, run again, alone, up to `retries` times.
///
/// # Errors
/// `prepare` fails, or standard output can't be written: tests that run end, and no further one starts.
pub fn run(jobs: usize, form: Form, retries: u8, prepare: impl FnOnce(&Run) -> Result<()>) -> Result<Count> {
    let start = Instant::now();
    let state = Mutex::new(State { form, count: Count::default(), retriable: Vec::new(), end: Ok(()) });
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
    let State { mut count, retriable, end, .. } = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    end?;
    if retries > 0 && count.failed.len() > MAX_RETRIED {
        form.progress(format_args!("{} tests failed: none runs again", count.failed.len()))?;
        return Ok(count);
    }
    retriable.iter().try_for_each(|test| retry(test, form, retries, start + LAST_RETRY, &mut count))?;
    Ok(count)
}

/// Runs a failed test again until it passes, at most `retries` times. No attempt begins after `last`.
fn retry(test: &Test, form: Form, retries: u8, last: Instant, count: &mut Count) -> Result<(), Unwritable> {
    for _ in 0..retries {
        if Instant::now() > last {
            return form.progress(format_args!("{} does not run again: it is too late", test.name));
        }
        form.progress(format_args!("running {} again, alone", test.name))?;
        let start = Instant::now();
        let result = test.run();
        form.result(&test.name, start.elapsed().as_secs_f64(), &result)?;
        if result.is_ok() {
            count.failed.retain(|name| *name != test.name);
            count.unsteady.push(test.name.clone());
            count.passed += 1;
            break;
        }
    }
    Ok(())
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
        let mut state = lock(state);
        let is_retriable = test.arch.is_some() && result.as_ref().is_err_and(|report| may_be_a_stall(report));
        if let Err(error) = state.add(&test.name, start, result)
            && state.end.is_ok()
        {
            state.end = Err(error.into());
        }
        if is_retriable {
            state.retriable.push(test);
        }
    }
}

impl State {
    /// Counts a test that ended, and shows its result.
    fn add(&mut self, name: &str, start: Instant, result: Result<(), String>) -> Result<(), Unwritable> {
        match result {
            Ok(()) => self.count.passed += 1,
            Err(_) => self.count.failed.push(name.to_owned()),
        }
        self.form.result(name, start.elapsed().as_secs_f64(), &result)
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
    use stile::config::Arch;

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
        let count = run(2, Form::Text, 0, |run| {
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
        let count = run(2, Form::Text, 0, |run| {
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
        let state = State { form: Form::Text, count: Count::default(), retriable: Vec::new(), end: Err(anyhow::anyhow!("no compiler")) };
        work(&Mutex::new(queue), &Mutex::new(state));
    }

    #[test]
    fn failed_tests_of_emulators_run_again() {
        let failing = |name: &str, failures: usize| {
            let rest = AtomicUsize::new(failures);
            let fails = move || rest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |rest| rest.checked_sub(1)).is_ok();
            Test::new(name, Arch::X86_64, move || if fails() { Err("time-out".to_owned()) } else { Ok(()) })
        };
        let counts = |tests: Vec<Test>| {
            let host = Test::of_host("host".to_owned(), || Err("broken".to_owned()));
            let wrong = Test::new("wrong", Arch::X86_64, || Err("FAIL timer".to_owned()));
            let mut count = run(1, Form::Text, 2, |run| {
                run.add(tests);
                run.add([host, wrong]);
                Ok(())
            })
            .unwrap();
            count.failed.sort();
            (count.passed, count.failed.join(" "), count.unsteady.join(" "))
        };
        let some = counts(vec![failing("a", 0), failing("b", 1), failing("c", 2)]);
        assert_eq!(some, (3, "host wrong".to_owned(), "b c".to_owned()));
        let many = counts((0..MAX_RETRIED).map(|number| failing(&number.to_string(), 1)).collect());
        assert_eq!(many, (0, "0 1 2 3 host wrong".to_owned(), String::new()));
    }

    #[test]
    fn a_failed_preparation_is_the_runs_error() {
        let error = run(1, Form::Text, 0, |_| anyhow::bail!("no compiler")).unwrap_err();
        assert_eq!(error.to_string(), "no compiler");
    }
}
