//! Events of one client, from its connection to its end.

use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_export::{Access, Address, Export, Exports, Server, ServerOptions};
use extant_testkit::command::{run, tool};
use extant_testkit::events::{self, Event};
use extant_testkit::{require, requires};

#[test]
fn client_is_reported_from_its_connection_to_its_end() {
    require!(requires::tool("nbdinfo"));
    events::record();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let device = Arc::new(MemoryDevice::new(1 << 20));
    let export = Export::new("disk", "", device, Access::ReadWrite).unwrap();
    let server = Server::new(
        Exports::new(vec![export]).unwrap(),
        ServerOptions::default(),
    );
    server.listen(&Address::Unix(socket.clone())).unwrap();
    let uri = format!("nbd+unix:///disk?socket={}", socket.display());
    run(tool("nbdinfo").arg("--map").arg(uri)).unwrap();
    server.shutdown(std::time::Duration::from_secs(20)).unwrap();

    let events = events::take("extant_export");
    let names: Vec<_> = events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names.first(), Some(&"open"), "{events:?}");
    assert_eq!(names.last(), Some(&"close"), "{events:?}");
    let of = |name: &str| -> Vec<&Event> {
        let found: Vec<_> = events.iter().filter(|event| event.name == name).collect();
        assert!(!found.is_empty(), "no {name} in {events:?}");
        found
    };
    let agreed = of("negotiate")[0];
    assert_eq!(agreed.text("export"), "disk");
    assert_eq!(agreed.text("contexts"), "[Allocation]");
    assert_eq!(agreed.text("is_encrypted"), "false");
    // A map needs at least one block status.
    let requests = of("requests");
    assert!(
        requests
            .iter()
            .map(|event| event.number("count"))
            .sum::<u64>()
            >= 1
    );
    assert!(requests.iter().all(|event| event.is_timed()));
    assert_eq!(of("close")[0].text("error"), "");
}
