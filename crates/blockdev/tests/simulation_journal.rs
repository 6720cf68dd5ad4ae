//! A toy application with a journal: the right one survives every power cut, the wrong ones are
//! found.
//!
//! Layout in blocks: 0 record (number of the last transaction, whether the journal is needed, its
//! slots), 1 to 3 journal (new contents of the slots), 8 and on the slots. A transaction is written
//! to the journal, committed by its record, acknowledged and written to its slots; the journal is
//! marked empty before it is reused. Recovery copies a needed journal to its slots.

use extant_blockdev::simulation::{CrashDevice, CrashOptions, WriteLog};
use extant_blockdev::{Device, MemoryDevice, Persistence};

const BLOCK: u64 = 512;
const SLOTS: u64 = 16;
const SLOT_FIRST: u64 = 8;
const SLOTS_OF_ONE: u64 = 3;
const TRANSACTIONS: u64 = 12;
const UNNEEDED: u8 = 0;
const NEEDED: u8 = 1;

/// Behaviour of the application, right or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Right,
    /// The transaction is acknowledged before its commit record is durable.
    CommitNotFlushed,
    /// The commit record is written after the journal and taken to arrive after it.
    OrderWithoutFlush,
    /// The journal is declared unneeded before the slots are durable.
    SlotsNotFlushed,
    /// The journal is used again before it is durably unneeded.
    ReleaseNotFlushed,
}

fn slots_of(transaction: u64) -> [u64; SLOTS_OF_ONE as usize] {
    [transaction, transaction * 5 + 1, transaction * 7 + 2].map(|slot| slot % SLOTS)
}

fn contents(transaction: u64) -> [u8; BLOCK as usize] {
    [transaction as u8; BLOCK as usize]
}

fn write(device: &dyn Device, block: u64, data: &[u8], persistence: Persistence) {
    device.write_at(data, block * BLOCK, persistence).unwrap();
}

fn record(transaction: u64, journal: u8) -> [u8; BLOCK as usize] {
    let mut record = [0; BLOCK as usize];
    record[..2].copy_from_slice(&[transaction as u8, journal]);
    for (byte, slot) in record[2..].iter_mut().zip(slots_of(transaction)) {
        *byte = slot as u8;
    }
    record
}

fn commit(device: &dyn Device, version: Version, transaction: u64) {
    let slots = slots_of(transaction);
    for (place, _) in (1..).zip(slots) {
        write(device, place, &contents(transaction), Persistence::Cached);
    }
    if version != Version::OrderWithoutFlush {
        device.flush().unwrap();
    }
    write(device, 0, &record(transaction, NEEDED), Persistence::Cached);
    if version != Version::CommitNotFlushed {
        device.flush().unwrap();
    }
}

fn apply(device: &dyn Device, version: Version, transaction: u64) {
    for slot in slots_of(transaction) {
        write(
            device,
            SLOT_FIRST + slot,
            &contents(transaction),
            Persistence::Cached,
        );
    }
    if version != Version::SlotsNotFlushed {
        device.flush().unwrap();
    }
    let persistence = match version {
        Version::ReleaseNotFlushed => Persistence::Cached,
        _ => Persistence::Fua,
    };
    write(device, 0, &record(transaction, UNNEEDED), persistence);
}

fn run(version: Version) -> WriteLog {
    let device = CrashDevice::new(MemoryDevice::new((SLOT_FIRST + SLOTS) * BLOCK));
    for transaction in 1..=TRANSACTIONS {
        commit(&device, version, transaction);
        device.mark(transaction.to_string());
        apply(&device, version, transaction);
    }
    device.into_log()
}

/// Returns the transaction that the slots are brought to.
fn recover(device: &dyn Device) -> u64 {
    let mut record = [0; BLOCK as usize];
    device.read_at(&mut record, 0).unwrap();
    if record[1] == NEEDED {
        for (place, slot) in (1..).zip(&record[2..][..SLOTS_OF_ONE as usize]) {
            let mut data = [0; BLOCK as usize];
            device.read_at(&mut data, place * BLOCK).unwrap();
            write(
                device,
                SLOT_FIRST + u64::from(*slot),
                &data,
                Persistence::Cached,
            );
        }
        device.flush().unwrap();
    }
    u64::from(record[0])
}

/// Returns the error of the slots after `transaction`.
fn check(device: &dyn Device, transaction: u64) -> Result<(), String> {
    let mut expected = [0; SLOTS as usize];
    for number in 1..=transaction {
        for slot in slots_of(number) {
            expected[slot as usize] = number;
        }
    }
    for (slot, expected) in expected.into_iter().enumerate() {
        let mut data = [0; BLOCK as usize];
        device
            .read_at(&mut data, (SLOT_FIRST + slot as u64) * BLOCK)
            .unwrap();
        if data != contents(expected) {
            return Err(format!("slot {slot} holds {} and not {expected}", data[0]));
        }
    }
    Ok(())
}

/// The first power cut that the application does not survive.
fn first_loss(version: Version, options: CrashOptions) -> Option<String> {
    for crash in run(version).crashes(options) {
        let promised = crash.mark().map_or(0, |mark| mark.parse().unwrap());
        let recovered = recover(&crash.image);
        let result = if recovered < promised {
            Err(format!(
                "transaction {promised} was acknowledged, {recovered} is there"
            ))
        } else {
            check(&crash.image, recovered)
        };
        if let Err(loss) = result {
            return Some(format!("{crash}: {loss}"));
        }
    }
    None
}

fn options(states_max: u64) -> CrashOptions {
    CrashOptions {
        states_max,
        ..CrashOptions::seeded(1)
    }
}

#[test]
fn right_version_survives_every_power_cut() {
    assert_eq!(first_loss(Version::Right, options(1 << 12)), None);
    assert_eq!(first_loss(Version::Right, options(8)), None);
}

#[test]
fn right_version_survives_a_second_power_cut_during_recovery() {
    let mut states = 0;
    for crash in run(Version::Right).crashes(options(16)) {
        let device = CrashDevice::new(crash.image.snapshot());
        let recovered = recover(&device);
        for second in device.into_log().crashes(options(16)) {
            assert_eq!(recover(&second.image), recovered, "{crash}, then {second}");
            check(&second.image, recovered)
                .unwrap_or_else(|loss| panic!("{crash}, then {second}: {loss}"));
            states += 1;
        }
    }
    assert!(states > 1000, "{states} states");
}

#[test]
fn every_planted_mistake_is_found_by_all_combinations_and_by_samples() {
    for version in [
        Version::CommitNotFlushed,
        Version::OrderWithoutFlush,
        Version::SlotsNotFlushed,
        Version::ReleaseNotFlushed,
    ] {
        for states_max in [1 << 12, 8, 3] {
            let loss = first_loss(version, options(states_max));
            let loss =
                loss.unwrap_or_else(|| panic!("{version:?} is not found with {states_max} states"));
            assert!(loss.starts_with("power cut at position "), "{loss}");
        }
    }
}
