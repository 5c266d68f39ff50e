//! Progress of a pull: a bar on a terminal once it takes longer than a second, otherwise a line at the end.

use std::time::{Duration, Instant};

use image::PullProgress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// A shorter pull shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);
const FORM: &str = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}";

/// A pull in progress.
pub(crate) struct Progress {
    begun: Instant,
    bar: ProgressBar,
    layers: usize,
    unpacked: usize,
}

impl Default for Progress {
    fn default() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(FORM) {
            bar.set_style(style);
        }
        Self { begun: Instant::now(), bar, layers: 0, unpacked: 0 }
    }
}

impl Progress {
    /// Shows a step.
    pub(crate) fn show(&mut self, step: PullProgress) {
        match step {
            PullProgress::Begun { layers, octets } => {
                self.layers = layers;
                self.bar.set_length(octets);
            }
            PullProgress::Waiting => {
                let tell = || output::tell("another pull fetches the same layer; waiting for it");
                self.bar.suspend(tell);
            }
            PullProgress::Received(octets) => self.bar.inc(octets),
            PullProgress::Unpacked => self.unpacked += 1,
        }
        if self.bar.is_hidden() && self.begun.elapsed() > PATIENCE {
            // It draws nothing if stderr is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(format!("layer {} of {}", (self.unpacked + 1).min(self.layers), self.layers));
    }

    /// Ends the bar.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Reports a pull that succeeded and took long.
    pub(crate) fn report(&self) {
        let took = self.begun.elapsed();
        if took > PATIENCE && self.layers > 0 {
            let layers = if self.unpacked == 1 { "layer" } else { "layers" };
            output::tell(&format!("{} {layers} in {:.1} s", self.unpacked, took.as_secs_f64()));
        }
    }
}
