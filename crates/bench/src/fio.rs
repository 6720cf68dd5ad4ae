//! fio: builds its command line and reads its JSON.
//!
//! Metrics are fio's own count, which leaves out its start: where fio is the ceiling,
//! that makes the ceiling higher.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use extant_testkit::command;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

/// A job.
#[derive(Clone, Debug)]
pub struct Fio {
    options: Vec<String>,
}

impl Fio {
    /// A job that writes, direct, and lays out no file: files are there before.
    pub fn write(name: &str) -> Self {
        let job = Self {
            options: Vec::new(),
        };
        job.set("name", name)
            .set("rw", "write")
            .set("direct", 1)
            .set("fallocate", "none")
    }

    /// The bandwidth of a disk on an existing file: large writes, several in flight, synced at the
    /// end.
    pub fn ceiling(file: &Path, size_bytes: u64) -> Self {
        Self::write("ceiling")
            .set("ioengine", "io_uring")
            .set("iodepth", 8)
            .set("bs", "2M")
            .set("end_fsync", 1)
            .set("size", size_bytes)
            .file(file)
    }

    /// Direct writes of 4 KiB, one at a time, each followed by fdatasync, to an existing file.
    pub fn sync4k(file: &Path, size_bytes: u64, seconds: u32) -> Self {
        Self::write("sync4k")
            .set("ioengine", "psync")
            .set("iodepth", 1)
            .set("bs", "4k")
            .set("fdatasync", 1)
            .set("size", size_bytes)
            .set("runtime", seconds)
            .file(file)
    }

    /// A job of an NBD client.
    pub fn nbd(name: &str, uri: &str) -> Self {
        let job = Self {
            options: Vec::new(),
        };
        job.set("name", name).set("ioengine", "nbd").set("uri", uri)
    }

    /// Sets an option.
    pub fn set(mut self, option: &str, value: impl std::fmt::Display) -> Self {
        self.options.push(format!("--{option}={value}"));
        self
    }

    /// The file written to.
    pub fn file(self, path: &Path) -> Self {
        self.set("filename", path.display())
    }

    /// The command.
    pub fn command(&self) -> Command {
        let mut command = command::tool("fio");
        command.args(&self.options);
        command.args(["--group_reporting", "--lat_percentiles=1"]);
        command.arg("--output-format=json");
        command
    }

    /// Runs it to its end.
    pub fn run(&self) -> Result<Transfers> {
        let text = command::text(&mut self.command())?;
        parse(&text)
    }

    /// Starts it, without its results; ended by dropping it.
    pub fn start(&self) -> Result<RunningFio> {
        let mut command = self.command();
        let child = command.stdout(Stdio::null()).spawn();
        Ok(RunningFio(child.with_context(|| command::line(&command))?))
    }
}

/// A job that runs.
#[derive(Debug)]
pub struct RunningFio(Child);

impl RunningFio {
    /// Its process, the parent of its jobs.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for RunningFio {
    fn drop(&mut self) {
        // It ends its jobs itself.
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        let _ = self.0.wait();
    }
}

/// Results of a job's writes, or of its reads if it does not write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfers {
    /// Bytes moved.
    pub bytes: u64,
    /// MiB a second.
    pub mib_per_second: f64,
    /// Requests in all.
    pub requests: u64,
    /// Requests a second.
    pub iops: f64,
    /// MiB a second of fio's half seconds, least and most; 0 for a job shorter than that.
    pub mib_per_second_range: (f64, f64),
    /// Time of one.
    pub latency: LatencyUs,
}

/// Times of a job's requests, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencyUs {
    /// The shortest.
    pub min: f64,
    /// Their mean.
    pub mean: f64,
    /// 99 % are no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

#[derive(Deserialize)]
struct Answer {
    jobs: Vec<JobAnswer>,
}

#[derive(Deserialize)]
struct JobAnswer {
    jobname: String,
    error: i32,
    #[serde(default)]
    read: TransferAnswer,
    write: TransferAnswer,
}

#[derive(Default, Deserialize)]
struct TransferAnswer {
    io_bytes: u64,
    total_ios: u64,
    bw_bytes: f64,
    iops: f64,
    #[serde(default)]
    bw_min: f64,
    #[serde(default)]
    bw_max: f64,
    lat_ns: Latency,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Latency {
    min: f64,
    mean: f64,
    max: f64,
    percentile: Percentiles,
}

#[derive(Default, Deserialize)]
struct Percentiles {
    #[serde(rename = "99.000000", default)]
    p99: f64,
}

impl From<&Latency> for LatencyUs {
    fn from(answer: &Latency) -> Self {
        let us = |nanoseconds| nanoseconds / 1000.0;
        Self {
            min: us(answer.min),
            mean: us(answer.mean),
            p99: us(answer.percentile.p99),
            max: us(answer.max),
        }
    }
}

/// Parses the output of `--output-format=json` with `--group_reporting`: one entry.
pub fn parse(text: &str) -> Result<Transfers> {
    // Warnings come first, as plain lines.
    let start = text.find("{\n").or_else(|| text.find('{'));
    let json = &text[start.context("fio printed no JSON")?..];
    let answer: Answer = serde_json::from_str(json).context("fio's JSON")?;
    let [job] = &answer.jobs[..] else {
        bail!(
            "fio reports {} jobs instead of one group",
            answer.jobs.len()
        );
    };
    ensure!(
        job.error == 0,
        "fio job {}: error {}",
        job.jobname,
        job.error
    );
    let moved = match job.write.io_bytes {
        0 => &job.read,
        _ => &job.write,
    };
    ensure!(
        moved.io_bytes > 0,
        "fio job {}: nothing written or read",
        job.jobname
    );
    Ok(Transfers {
        bytes: moved.io_bytes,
        requests: moved.total_ios,
        mib_per_second: moved.bw_bytes / f64::from(1 << 20),
        iops: moved.iops,
        mib_per_second_range: (moved.bw_min / 1024.0, moved.bw_max / 1024.0),
        latency: LatencyUs::from(&moved.lat_ns),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"{
  "fio version" : "fio-3.33",
  "jobs" : [
    { "jobname" : "x", "error" : 0,
      "write" : { "io_bytes" : 1073741824, "total_ios" : 512, "bw_bytes" : 1675104256, "iops" : 798.75,
                  "runtime" : 641, "bw_min" : 1024, "bw_max" : 2048,
                  "lat_ns" : { "min" : 1000, "max" : 9000000, "mean" : 8395500.0,
                               "percentile" : { "1.000000" : 2000, "99.000000" : 8500000 } } },
      "sync" : { "total_ios" : 0, "lat_ns" : { "min" : 0, "max" : 0, "mean" : 1500.0 } } }
  ],
  "disk_util" : []
}
"#;

    #[test]
    fn answer_is_read_after_warnings() {
        let text = format!("note: both iodepth >= 1 and synchronous {{psync}}\n{ANSWER}");
        let writes = parse(&text).unwrap();
        assert_eq!((writes.bytes, writes.requests), (1 << 30, 512));
        assert_eq!(writes.mib_per_second, 1675104256.0 / 1048576.0);
        assert_eq!(writes.iops, 798.75);
        assert_eq!(writes.mib_per_second_range, (1.0, 2.0));
        let latency = LatencyUs {
            min: 1.0,
            mean: 8395.5,
            p99: 8500.0,
            max: 9000.0,
        };
        assert_eq!(writes.latency, latency);
    }

    #[test]
    fn failed_and_empty_jobs_are_errors() {
        let failed = ANSWER.replace("\"error\" : 0", "\"error\" : 28");
        assert!(parse(&failed).unwrap_err().to_string().contains("error 28"));
        let empty = ANSWER.replace("1073741824", "0");
        assert!(
            parse(&empty)
                .unwrap_err()
                .to_string()
                .contains("nothing written")
        );
        assert!(parse("fio: no such engine").is_err());
    }

    #[test]
    fn reads_count_where_nothing_is_written() {
        let text = r#"{"jobs": [{"jobname": "x", "error": 0,
            "read": {"io_bytes": 8192, "total_ios": 2, "bw_bytes": 1.0, "iops": 1.0, "lat_ns": {"mean": 1.0}},
            "write": {"io_bytes": 0, "total_ios": 0, "bw_bytes": 0.0, "iops": 0.0, "lat_ns": {"mean": 0.0}}}]}"#;
        let reads = parse(text).unwrap();
        assert_eq!((reads.bytes, reads.requests), (8192, 2));
    }

    #[test]
    fn options_are_in_the_order_given() {
        let job = Fio::write("a").set("bs", "2M").file(Path::new("/x"));
        let line = command::line(&job.command());
        let wanted = "--name=a --rw=write --direct=1 --fallocate=none --bs=2M \
            --filename=/x --group_reporting --lat_percentiles=1 --output-format=json";
        assert!(line.ends_with(wanted), "{line}");
    }
}
