//! Events of a job that makes a written volume: its states, the plan, and the calls on the file.

use extant_pool::{CreateVolume, Definition, JobOptions, JobState, OnStop, Operation, Pool};
use extant_space::{CancelToken, Control, Preallocation, Silent};
use extant_testkit::events;
use extant_testkit::require;
use extant_testkit::scratch::{Filesystem, Scratch};

const BYTES: u64 = 8 << 20;

#[test]
fn job_reports_its_states_its_plan_and_the_calls_on_its_file() {
    require!(Filesystem::Ext4.requirement());
    let scratch = Scratch::new(Filesystem::Ext4, 64 << 20);
    let pool = Pool::open(Definition::of_directory(scratch.path())).unwrap();
    events::record();
    let volume = "a".parse().unwrap();
    let create = Operation::Create(CreateVolume::new(volume, BYTES, Preallocation::Full));
    let job = pool.submit(create, JobOptions::default()).unwrap();
    let cancel = CancelToken::new();
    job.run(OnStop::Cancel, Control::new(&cancel, &Silent))
        .unwrap();

    let events = events::take("extant");
    let of = |target: &str, name: &str| -> Vec<_> {
        let matching =
            |event: &&events::Event| event.target.starts_with(target) && event.name == name;
        events.iter().filter(matching).collect()
    };
    let jobs = of("extant_pool", "job");
    let states: Vec<_> = jobs.iter().map(|event| event.text("state")).collect();
    let expected = [JobState::Waiting, JobState::Running, JobState::Done];
    assert_eq!(states, expected.map(JobState::name));
    for event in jobs {
        assert_eq!((event.number("job"), event.text("volume")), (1, "a"));
        assert_eq!(event.text("operation"), "create");
    }
    let plan = of("extant_provision", "plan");
    assert_eq!(plan.len(), 1, "{events:?}");
    let calls = of("extant_hostfs", "fallocate");
    let allocated = calls
        .iter()
        .filter(|event| event.text("mode") == "allocate, keep size");
    let allocated: u64 = allocated.map(|event| event.number("length_bytes")).sum();
    assert_eq!(allocated, BYTES, "{calls:?}");
    assert!(calls.iter().all(|event| event.is_timed()));
    let written: u64 = of("extant_provision", "overwrite")
        .iter()
        .map(|event| event.number("written_bytes"))
        .sum();
    match plan[0].text("strategy") {
        "overwrite" => assert_eq!(written, BYTES),
        strategy => assert_eq!((strategy, written), ("write-zeroes", 0)),
    }
    assert!(!of("extant_hostfs", "sync").is_empty());
}
