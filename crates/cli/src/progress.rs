//! Progress of an operation: a bar or JSON lines on stderr, and lines for another program.
//!
//! One [`Display`] per operation, made by [`ProgressArgs::show`], which also reports the outcome.
//! Lines are composed in one place (`progress/lines.rs`) and are the same for every destination;
//! another program gets them through `progress/stream.rs`, without ever blocking the operation.
//!
//! Format: docs/formats/progress.md.

mod lines;
mod stream;

use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal, Write};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use extant_space::{Progress, ProgressSink, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::exit::Style;
use crate::{print, terminal};
use terminal_size::{Width, terminal_size_of};

use lines::Lines;
use stream::Stream;

/// Destination of progress.
#[derive(Args, Clone, Debug)]
pub struct ProgressArgs {
    /// Form of progress on stderr
    #[arg(
        long = "progress",
        id = "progress",
        value_name = "HOW",
        default_value = "auto"
    )]
    mode: ProgressMode,

    #[command(flatten)]
    pub stream: StreamArgs,
}

/// Destination of progress for another program.
#[derive(Args, Clone, Debug)]
pub struct StreamArgs {
    /// Write progress and outcome as JSON lines to an open file descriptor, such as a pipe
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(RawFd).range(0..))]
    progress_fd: Option<RawFd>,

    /// Write progress and outcome as JSON lines to a listening Unix socket
    #[arg(long, value_name = "PATH", conflicts_with = "progress_fd")]
    progress_socket: Option<PathBuf>,
}

/// Display on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ProgressMode {
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

impl ProgressArgs {
    /// Format of errors during this progress.
    pub fn error_style(&self) -> Style {
        match self.mode {
            ProgressMode::Json => Style::Json,
            _ => Style::Line,
        }
    }

    /// The same with a bar, also where stderr is no terminal.
    pub fn with_bar(&self) -> Self {
        Self {
            mode: ProgressMode::Bar,
            stream: self.stream.clone(),
        }
    }

    /// Runs `work`, which reports its progress, and reports its outcome. The display is removed on
    /// return.
    ///
    /// # Errors
    /// Those of `work`; before it, if the destination cannot be reached.
    pub fn show<T>(&self, work: impl FnOnce(&Display) -> Result<T>) -> Result<T> {
        let display = Display::new(self.mode, &self.stream)?;
        let result = work(&display);
        display.end(result.as_ref().err());
        result
    }
}

impl StreamArgs {
    /// A display for the other program, and on stderr for a terminal or silent.
    pub fn display(&self, is_silent: bool) -> Result<Display> {
        let mode = if is_silent {
            ProgressMode::None
        } else {
            ProgressMode::Auto
        };
        Display::new(mode, self)
    }

    fn open(&self) -> Result<Option<Stream>> {
        match (self.progress_fd, &self.progress_socket) {
            (Some(number), _) => Stream::to_descriptor(number).map(Some),
            (_, Some(path)) => Stream::to_socket(path).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// A progress display; removed when dropped.
pub struct Display {
    bar: Option<ProgressBar>,
    /// Width of the terminal that the bar is laid out for.
    columns: Cell<u16>,
    /// Lines are printed on stderr too.
    shows_lines: bool,
    stream: Option<Stream>,
    lines: RefCell<Lines>,
    /// Time that the operation paused for other users of the disk.
    gave_way: Cell<Duration>,
    /// It has done so since the last update.
    is_giving_way: Cell<bool>,
    /// The disk whose users it yields to.
    disk: RefCell<Option<String>>,
}

/// A result, and how long its operation left the disk to others.
#[derive(Serialize)]
struct Paced<'a, T> {
    #[serde(flatten)]
    result: &'a T,
    gave_way_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    background_disk: Option<String>,
}

impl Display {
    fn new(mode: ProgressMode, stream: &StreamArgs) -> Result<Self> {
        let shows_bar = match mode {
            _ if print::is_quiet() => false,
            ProgressMode::Auto => std::io::stderr().is_terminal(),
            ProgressMode::Bar => true,
            ProgressMode::Json | ProgressMode::None => false,
        };
        Ok(Self {
            stream: stream.open()?,
            bar: shows_bar.then(bar),
            columns: Cell::new(columns()),
            shows_lines: mode == ProgressMode::Json,
            lines: RefCell::new(Lines::new(Instant::now())),
            gave_way: Cell::new(Duration::ZERO),
            is_giving_way: Cell::new(false),
            disk: RefCell::new(None),
        })
    }

    /// No progress is shown anywhere.
    pub fn is_silent(&self) -> bool {
        self.bar.is_none() && !self.shows_lines && self.stream.is_none()
    }

    /// `result` of the operation as a JSON document, with `gave_way_seconds` and `background_disk`.
    pub fn json_text(&self, result: &impl Serialize) -> String {
        print::json_text(&Paced {
            result,
            gave_way_seconds: self.gave_way.get().as_secs_f64(),
            background_disk: self.disk.borrow().clone(),
        })
    }

    /// For the line of a result with the elapsed time: how much of it was left to other users of
    /// the disk.
    pub fn pauses(&self) -> String {
        match self.gave_way.get().as_secs_f64() {
            seconds if seconds < 0.1 => String::new(),
            seconds => format!("; {seconds:.1} s of it paused for others who used the disk"),
        }
    }

    /// The disk whose users the operation yielded to, as a row of a result.
    pub fn describe_disk(&self, out: &mut String) {
        if let Some(disk) = &*self.disk.borrow() {
            let text = format!("yields to the other users of {disk}, by its counters");
            print::row(out, "background", text);
        }
    }

    /// Reports the outcome to the other program.
    pub fn end(self, error: Option<&extant_space::Error>) {
        if let Some(stream) = &self.stream {
            let line = self.lines.borrow().end(Instant::now(), error);
            stream.end(line);
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(20));
    bar.set_style(style(columns()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Width of the terminal.
fn columns() -> u16 {
    terminal_size_of(std::io::stderr()).map_or(80, |(Width(columns), _)| columns)
}

/// A line that wraps is drawn again below itself: narrow terminals get less of it.
fn style(columns: u16) -> ProgressStyle {
    let template = match columns {
        0..40 => "{msg:8} {wide_bar} {percent:>3}%",
        40..76 => "{msg:8} {wide_bar} {percent:>3}%  {binary_bytes_per_sec}  {eta}",
        _ => {
            "{msg:8} {wide_bar} {percent:>3}%  {bytes} of {total_bytes}  \
             {binary_bytes_per_sec}  {eta}"
        }
    };
    let characters = if terminal::has_utf8() {
        "█▉▊▋▌▍▎▏ "
    } else {
        "#> "
    };
    let style = ProgressStyle::with_template(template).expect("the template is right");
    style.progress_chars(characters)
}

impl ProgressSink for Display {
    fn update(&self, progress: Progress) {
        if let Some(bar) = &self.bar {
            let columns = columns();
            if self.columns.replace(columns) != columns {
                bar.set_style(style(columns));
            }
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
            bar.set_message(if self.is_giving_way.take() {
                "yielding"
            } else {
                progress.phase.name()
            });
        }
        if !self.shows_lines && self.stream.is_none() {
            return;
        }
        let Some(line) = self.lines.borrow_mut().update(Instant::now(), progress) else {
            return;
        };
        if self.shows_lines {
            let _ = write!(io::stderr(), "{line}");
        }
        if let Some(stream) = &self.stream {
            stream.tell(line);
        }
    }

    fn watches_disk(&self, disk: &str) {
        *self.disk.borrow_mut() = Some(disk.to_owned());
    }

    fn gave_way(&self, duration: Duration) {
        self.gave_way.set(self.gave_way.get() + duration);
        self.is_giving_way.set(true);
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
