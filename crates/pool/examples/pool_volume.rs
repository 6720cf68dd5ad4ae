//! Defines a pool, creates a volume in it by a job, and follows the job as another process would.
//!
//!     cargo run -p extant-pool --example pool_volume -- DIRECTORY
//!
//! The directory must exist. `extant vol list DIRECTORY/vms` and `extant job list DIRECTORY/vms`
//! show the same.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::thread;

use extant_pool::{
    CreateVolume, Definition, Definitions, JobOptions, JobState, Limits, OnStop, Operation, Pool,
    PoolName, VolumeName,
};
use extant_space::{ByteSize, CancelToken, Control, Preallocation, Result, Silent};

fn main() {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: pool_volume DIRECTORY");
        std::process::exit(2);
    };
    if let Err(error) = run(&directory) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run(directory: &Path) -> Result<()> {
    // `Definitions::of_user` are those of the command `extant`.
    let definitions = Definitions::in_directory(&directory.join("definitions"));
    let name: PoolName = "vms".parse()?;
    let definition = Definition::named(name.clone(), &directory.join("vms"), Limits::default())?;
    let pool = Pool::build(definition.clone())?;
    definitions.add(&definition)?;

    let volume: VolumeName = "disk".parse()?;
    let create = CreateVolume::new(volume.clone(), 64 << 20, Preallocation::Full);
    let job = pool.submit(Operation::Create(create), JobOptions::default())?;
    let id = job.id();
    let cancel = CancelToken::new();
    thread::scope(|scope| {
        let working = scope.spawn(|| job.run(OnStop::Cancel, Control::new(&cancel, &Silent)));
        // A pool of its own, as in another process.
        let watcher = Pool::open(definitions.get(&name)?)?;
        let ended = watcher.wait(id, &cancel, &mut |status| {
            if let Some(progress) = status.progress {
                println!(
                    "job {id}: {} of {}",
                    ByteSize(progress.done_bytes),
                    ByteSize(progress.total_bytes)
                );
            }
        })?;
        working.join().expect("the thread does not panic")?;
        assert_eq!(ended.state, JobState::Done);
        Ok::<_, extant_space::Error>(())
    })?;
    let volume = pool.volume(&volume)?;
    println!(
        "{}: {} of {} written",
        volume.path.display(),
        ByteSize(volume.written_bytes),
        ByteSize(volume.capacity_bytes)
    );
    Ok(())
}
