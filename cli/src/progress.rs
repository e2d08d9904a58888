//! Progress of work that takes time, on standard error: a bar on a terminal; elsewhere a line at the start, and one now and then.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::out;

/// A task that takes time. Its line disappears from a terminal when it is done.
#[derive(Debug)]
pub struct Task {
    bar: ProgressBar,
    /// Progress in lines of text, without a terminal.
    plain: Option<Mutex<Plain>>,
}

impl Task {
    /// Starts showing `what`, such as `fetching busybox-static`. The bar appears with the first call of [`Task::percent`].
    pub fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        if !std::io::stderr().is_terminal() {
            out::note(format_args!("stile: {what}"));
            return Self { bar: ProgressBar::hidden(), plain: Some(Mutex::new(Plain::new(what, Instant::now()))) };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_message(what);
        // The time shows that a step without a bar goes on.
        bar.set_style(style("{spinner} {wide_msg} {elapsed}"));
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { bar, plain: None }
    }

    /// Reports the progress, 0 to 100.
    pub fn percent(&self, percent: f64) {
        if let Some(plain) = &self.plain {
            let line = plain.lock().unwrap_or_else(PoisonError::into_inner).percent(percent, Instant::now());
            line.into_iter().for_each(out::note);
            return;
        }
        if self.bar.length().is_none() {
            self.bar.set_length(100);
            self.bar.set_style(style("{spinner} {wide_msg} [{bar:30}] {percent:>3} %"));
        }
        self.bar.set_position(percent.clamp(0.0, 100.0) as u64);
    }

    /// Changes the text to one that tells how far the work is; without a terminal it is a line if the last one is old.
    pub fn status(&self, what: impl Into<String>) {
        match &self.plain {
            Some(plain) => {
                let line = plain.lock().unwrap_or_else(PoisonError::into_inner).status(what.into(), Instant::now());
                line.into_iter().for_each(out::note);
            }
            None => self.bar.set_message(what.into()),
        }
    }

    /// Changes the text.
    pub fn message(&self, what: impl Into<String>) {
        match &self.plain {
            Some(plain) => plain.lock().unwrap_or_else(PoisonError::into_inner).what = what.into(),
            None => self.bar.set_message(what.into()),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

/// Progress as lines of a log: few, and none for short tasks.
#[derive(Debug)]
struct Plain {
    what: String,
    /// The last line, and the percentage that it had.
    said: Instant,
    percent: f64,
}

/// Least time between two lines, and least progress in percent.
const INTERVAL: Duration = Duration::from_secs(15);
const STEP: f64 = 5.0;

impl Plain {
    const fn new(what: String, now: Instant) -> Self {
        Self { what, said: now, percent: 0.0 }
    }

    /// Changes the text. Returns the line to print, if any.
    fn status(&mut self, what: String, now: Instant) -> Option<String> {
        self.what = what;
        if now.saturating_duration_since(self.said) < INTERVAL {
            return None;
        }
        self.said = now;
        Some(format!("stile: {}", self.what))
    }

    /// The line to print, if any.
    fn percent(&mut self, percent: f64, now: Instant) -> Option<String> {
        if now.saturating_duration_since(self.said) < INTERVAL || percent < self.percent + STEP {
            return None;
        }
        (self.said, self.percent) = (now, percent);
        Some(format!("stile: {}: {percent:.0} %", self.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_few_lines_about_progress() {
        let start = Instant::now();
        let mut plain = Plain::new("unpacking".into(), start);
        assert_eq!(plain.percent(50.0, start), None, "it may be done soon");
        assert_eq!(plain.percent(50.0, start + INTERVAL), Some("stile: unpacking: 50 %".into()));
        assert_eq!(plain.percent(90.0, start + INTERVAL), None, "it was said a moment ago");
        assert_eq!(plain.percent(51.0, start + 2 * INTERVAL), None, "little has changed");
        plain.what = "configuring".into();
        assert_eq!(plain.percent(60.4, start + 3 * INTERVAL), Some("stile: configuring: 60 %".into()));
    }

    #[test]
    fn work_of_unknown_size_has_a_line_now_and_then() {
        let start = Instant::now();
        let mut plain = Plain::new("moving".into(), start);
        let mut lines = (1..=35).filter_map(|second| plain.status(format!("moving: {second} pages"), start + Duration::from_secs(second)));
        assert_eq!(lines.next(), Some("stile: moving: 15 pages".into()));
        assert_eq!(lines.next(), Some("stile: moving: 30 pages".into()));
        assert_eq!(lines.next(), None);
    }
}
