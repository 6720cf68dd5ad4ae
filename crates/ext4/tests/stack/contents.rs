//! Data synced at the top survives events at the bottom.

use std::sync::Arc;

use extant_blockdev::simulation::{CrashDevice, Survivors};
use extant_ext4::Assign;
use extant_space::{ByteRange, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::{require, requires};

use crate::program;
use crate::tower::Tower;

const SIZE: u64 = 8 << 20;
const SIZES: [u64; 3] = [128, 64, 32];
/// Passes synced before the power fails, with half a pass more that was not.
const SYNCED: u64 = 5;

#[test]
fn contents_are_there_after_all_levels_were_closed_and_opened_again() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let ground = Arc::new(Tower::build(&SIZES));
    for assign in [Assign::Off, Assign::Require] {
        let ground = Arc::new(ground.snapshot());
        let tower = Tower::open(ground.clone(), SIZES.len(), assign);
        let file = &tower.top().file;
        file.fallocate(FallocateMode::Allocate, ByteRange::new(0, SIZE))
            .unwrap();
        program::run(file, SIZE).unwrap();
        tower.close();
        let tower = Tower::open(ground, SIZES.len(), assign);
        program::assert_holds(&tower.top().file, SIZE, program::PASSES);
        tower.close_clean();
    }
}

#[test]
fn passes_that_were_synced_survive_a_power_cut_through_all_levels() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let base = Tower::build(&SIZES);
    for assign in [Assign::Off, Assign::Try] {
        for survivors in [
            Survivors::None,
            Survivors::All,
            Survivors::Seeded(1),
            Survivors::Seeded(2),
        ] {
            let what = format!("{assign:?}, {survivors:?}");
            let ground = Arc::new(CrashDevice::new(base.snapshot()));
            let tower = Tower::open(ground.clone(), SIZES.len(), assign);
            let file = &tower.top().file;
            file.fallocate(FallocateMode::Allocate, ByteRange::new(0, SIZE))
                .unwrap();
            for pass in 0..SYNCED {
                program::pass(file, SIZE, pass).unwrap();
                file.sync(SyncMode::All).unwrap();
            }
            program::pass(file, SIZE / 2, SYNCED).unwrap();
            ground.power_cut();
            assert!(file.sync(SyncMode::All).is_err(), "{what}");
            drop(tower);
            ground.restart(survivors);
            let tower = Tower::open(ground, SIZES.len(), assign);
            program::assert_holds(&tower.top().file, SIZE, SYNCED);
            tower.close_clean();
        }
    }
}
