//! How far an operation is: a bar, JSON lines, or nothing.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use extant_space::{Phase, Progress, ProgressSink};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::exit::Style;

/// Lines a second are enough for a program that draws a bar of its own.
const LINE_INTERVAL: Duration = Duration::from_millis(100);

/// Where progress goes, on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// A bar on a terminal, else nothing
    #[default]
    Auto,
    /// A bar
    Bar,
    /// One JSON object a line, about 10 a second
    Json,
    /// Nothing
    None,
}

impl ProgressMode {
    /// How errors are told beside this progress.
    pub fn error_style(self) -> Style {
        match self {
            Self::Json => Style::Json,
            _ => Style::Line,
        }
    }

    /// The display itself.
    pub fn display(self) -> Display {
        match self {
            Self::Auto if std::io::stderr().is_terminal() => Display::Bar(bar()),
            Self::Bar => Display::Bar(bar()),
            Self::Json => Display::Json(RefCell::new(LastLine::default())),
            Self::Auto | Self::None => Display::None,
        }
    }
}

impl Display {
    /// Nobody is told.
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// A progress display; gone when dropped.
pub enum Display {
    Bar(ProgressBar),
    Json(RefCell<LastLine>),
    None,
}

#[derive(Default)]
pub struct LastLine {
    written: Option<(Instant, Phase)>,
    started: Option<Instant>,
}

#[derive(Serialize)]
struct Line {
    event: &'static str,
    #[serde(flatten)]
    progress: Progress,
    elapsed_seconds: f64,
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg:8} {wide_bar} {percent:>3}%  {bytes} of {total_bytes}  {binary_bytes_per_sec}  {eta}",
    )
    .expect("the template is right")
    .progress_chars("█▉▊▋▌▍▎▏ ");
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(20));
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

impl ProgressSink for Display {
    fn update(&self, progress: Progress) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(progress.total_bytes);
                bar.set_position(progress.done_bytes);
                bar.set_message(progress.phase.name());
            }
            Self::Json(last) => last.borrow_mut().write(progress),
            Self::None => {}
        }
    }
}

impl LastLine {
    fn write(&mut self, progress: Progress) {
        let now = Instant::now();
        let is_due = self.written.is_none_or(|(at, phase)| {
            phase != progress.phase || now.duration_since(at) >= LINE_INTERVAL
        });
        if !is_due {
            return;
        }
        self.written = Some((now, progress.phase));
        let started = *self.started.get_or_insert(now);
        let line = Line {
            event: "progress",
            progress,
            elapsed_seconds: now.duration_since(started).as_secs_f64(),
        };
        if let Ok(text) = serde_json::to_string(&line) {
            eprintln!("{text}");
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
