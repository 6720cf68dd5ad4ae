//! Records of jobs, and their heartbeat files.
//!
//! The input is the record, a zero byte, and the heartbeat file without its request. Each is taken
//! for what it is, or is an error or nothing.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use extant_pool::{Definition, JobId, Limits, Pool};
use tempfile::TempDir;

struct Place {
    _directory: TempDir,
    pool: Pool,
    jobs: PathBuf,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pool");
    let name = "p".parse().expect("it is one");
    let definition = Definition::named(name, &path, Limits::default()).expect("it is absolute");
    let pool = Pool::build(definition).expect("a new directory");
    let jobs = path.join(".extant/jobs");
    fs::create_dir_all(&jobs).expect("a directory");
    Place {
        _directory: directory,
        pool,
        jobs,
    }
});

pub(crate) fn target(data: &[u8]) {
    let Place { pool, jobs, .. } = &*PLACE;
    let end = data.iter().position(|&byte| byte == 0);
    let (record, run) = data.split_at(end.unwrap_or(data.len()));
    fs::write(jobs.join("7.json"), record).expect("a file");
    let mut heartbeat = b"go\x20on  \n".to_vec();
    heartbeat.extend(run.iter().skip(1));
    heartbeat.resize(512, b' ');
    fs::write(jobs.join("7.run"), heartbeat).expect("a file");
    let one = pool.job(JobId(7));
    let all = pool.jobs();
    match (one, all) {
        (Ok(one), Ok(all)) => {
            assert_eq!(all.len(), 1);
            let json = serde_json::to_value(&all[0]).expect("plain data");
            assert_eq!(json, serde_json::to_value(&one).expect("plain data"));
        }
        // A blank record is no job.
        (Err(_), Ok(all)) => assert!(all.is_empty()),
        (Err(_), Err(_)) => {}
        (Ok(_), Err(error)) => panic!("the list has an error that the job has not: {error}"),
    }
    let _ = pool.info();
}
