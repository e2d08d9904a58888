//! Progress of work that takes time, on standard error: a bar on a terminal, a line at the start elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::out;

/// A task that takes time. Its line disappears from a terminal when it is done.
pub struct Task {
    bar: ProgressBar,
}

impl Task {
    /// Starts showing `what`, such as `fetching busybox-static`. The bar appears with the first call of [`Task::percent`].
    pub fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        if !std::io::stderr().is_terminal() {
            out::note(format_args!("stile: {what}"));
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_message(what);
        bar.set_style(style("{spinner} {wide_msg}"));
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { bar }
    }

    /// Reports the progress, 0 to 100.
    pub fn percent(&self, percent: f64) {
        if self.bar.length().is_none() {
            self.bar.set_length(100);
            self.bar.set_style(style("{spinner} {wide_msg} [{bar:30}] {percent:>3} %"));
        }
        self.bar.set_position(percent.clamp(0.0, 100.0) as u64);
    }

    /// Changes the text.
    pub fn message(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
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
