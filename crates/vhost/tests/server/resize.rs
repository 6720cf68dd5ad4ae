//! A device that grows while it is served.

use extant_blockdev::HostCache;
use extant_testkit::vhost_client::{Client, Op, Options, Ram, status};

use crate::{Ground, MIB, SECTOR, expect_event, pattern};

#[test]
fn client_learns_of_a_larger_file_and_can_use_it() {
    let ground = Ground::new();
    let device = ground.raw(MIB, HostCache::Direct);
    let (server, events) = ground.serve(device);
    let ram = Ram::new(1);
    let mut client = Client::connect(&ground.socket(), &ram, Options::default());
    assert_eq!(client.capacity_sectors(), 2048);
    let data = pattern(1, SECTOR);
    let past_the_end = Op::write(4000, &data);
    assert_eq!(client.queues[0].run(&past_the_end).status, status::IOERR);
    let file = std::fs::File::options()
        .write(true)
        .open(ground.path("raw"))
        .unwrap();
    file.set_len(2 * MIB).unwrap();
    server.follow_size();
    client.wait_for_config_change();
    expect_event(&events, "Resized");
    assert_eq!(client.capacity_sectors(), 4096);
    assert_eq!(client.queues[0].run(&past_the_end).status, status::OK);
    // The server also checks by itself.
    file.set_len(3 * MIB).unwrap();
    client.wait_for_config_change();
    assert_eq!(client.capacity_sectors(), 3 * 2048);
}
