//! Power cuts of file systems without a journal: e2fsck can repair the result, without loss of
//! durable data that was not being changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_blockdev::simulation::{CrashOptions, CrashState};
use extant_ext4::{Access, FileType, Filesystem, Options};
use extant_fsck::{CheckOptions, check};
use extant_space::{CancelToken, Control, Silent};
use extant_testkit::{require, requires};

use crate::image::{BARE, Commits, OLD};
use crate::life::{Actor, Life, options};
use crate::oracle::Oracle;
use crate::step::Step;
use crate::view::{Seen, View};
use crate::{cuts, scripts};

/// Number of cuts that are checked; each costs several runs of e2fsck.
const LOOKED_AT: usize = 80;

fn survives(name: &str, script: Vec<Step>) {
    let life = Life::alone(format!("{name} bare"), BARE, script);
    let failed = &life.actors[0].failed;
    assert!(failed.is_empty(), "{failed:?}");
    let cut = CrashOptions {
        states_max: 6,
        ..CrashOptions::seeded(1)
    };
    let mut all = 0;
    cuts::for_each(&life.log, cut, |_| all += 1);
    let step = (all / LOOKED_AT).max(1);
    let mut oracle = Oracle::new(life.log.base());
    let (mut number, mut looked_at) = (0, 0);
    cuts::for_each(&life.log, cut, |crash| {
        number += 1;
        if number % step == 0 {
            looked_at += 1;
            if let Err(wrong) = judge(&life.actors[0], &crash, &mut oracle) {
                life.fail(&crash, &wrong);
            }
        }
    });
    println!("{name}: {looked_at} of {all} cuts");
    assert!(looked_at >= LOOKED_AT / 2, "{looked_at} cuts");
}

fn judge(actor: &Actor, crash: &CrashState, oracle: &mut Oracle) -> Result<(), String> {
    let text = |error: extant_space::Error| error.to_string();
    // It is read without repair, and is not treated as cleanly closed.
    let image = Arc::new(crash.image.snapshot());
    let refused = Filesystem::open(image.clone(), options());
    let was_closed = refused.is_ok();
    drop(refused);
    let repaired = Arc::new(oracle.repair(&crash.image)?);
    let cancel = CancelToken::new();
    let report = check(
        &*repaired,
        &CheckOptions::default(),
        Control::new(&cancel, &Silent),
    );
    let report = report.map_err(text)?;
    if !report.is_clean() {
        return Err(format!("the check: {report}"));
    }
    let read_only = Options {
        access: Access::ReadOnly,
        ..options()
    };
    let filesystem = Filesystem::open(repaired, read_only).map_err(text)?;
    let view = View::of(&filesystem.root().map_err(text)?, &[], Commits::Full).map_err(text)?;
    if view.shows(OLD) {
        return Err("a file shows what its blocks held before".into());
    }
    let ended = actor.ended(crash.position());
    if was_closed && !matches!(actor.steps.get(ended), None | Some(Step::Reopen)) {
        return Err("it is marked clean while it is open".into());
    }
    keeps(actor, &view, ended)
}

/// Checks that durable state, the same in every possible state, is there.
fn keeps(actor: &Actor, view: &View, ended: usize) -> Result<(), String> {
    let last = (ended + 1).min(actor.steps.len());
    let floor = actor.floors[ended];
    // e2fsck may write a directory again.
    let data = |seen: &Seen| match seen.meta.attributes.file_type {
        FileType::Directory => (0, BTreeMap::new()),
        _ => (seen.meta.attributes.size_bytes, seen.sectors.clone()),
    };
    for (path, id) in &actor.states[floor].names {
        let known = &actor.states[floor].inodes[id];
        let is_same = |state: &View| {
            state.names.get(path) == Some(id)
                && state.inodes.get(id).map(|seen| data(seen)) == Some(data(known))
        };
        if !actor.states[floor..=last].iter().all(is_same) {
            continue;
        }
        match view.inodes.get(id) {
            Some(found) if data(found) == data(known) => {}
            Some(_) => return Err(format!("{path:?} has other data, {ended} steps had ended")),
            None => return Err(format!("{path:?} is gone, {ended} steps had ended")),
        }
    }
    Ok(())
}

#[test]
fn names_without_a_journal_are_repaired_after_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("names", scripts::names());
    survives("big directory", scripts::big_directory());
    survives("orphans", scripts::orphans());
}

#[test]
fn data_without_a_journal_is_repaired_after_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("data", scripts::data());
    survives("pieces", scripts::pieces());
    survives("attributes", scripts::attributes());
}
