//! All power cuts of one life.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use extant_blockdev::simulation::{CrashDevice, CrashOptions, CrashState};
use extant_ext4::Filesystem;

use crate::cuts;
use crate::image::Commits;
use crate::judge::{Look, Recovered, same_contents};
use crate::life::{Life, options};
use crate::oracle::{Oracle, Theirs};

/// Intervals in cuts: also opened read-only, passed to e2fsck, passed to e2fsck without our
/// recovery, cut again during recovery. They have no common factors with the number of states of a
/// position.
const READ_ONLY: usize = 3;
const EXAMINED: usize = 19;
const RECOVERED_BY_OTHERS: usize = 211;
const CUT_AGAIN: usize = 307;

/// How thoroughly a life is cut.
#[derive(Clone, Copy, Debug)]
pub struct Thoroughness {
    pub seed: u64,
    pub states_max: u64,
}

impl Life {
    /// Cuts everywhere; returns how many cuts there were.
    ///
    /// # Panics
    /// With the seed that repeats it, if data is lost.
    pub fn survive(&self, by: Thoroughness) -> usize {
        let cut = |seed| CrashOptions {
            states_max: by.states_max,
            ..CrashOptions::seeded(seed)
        };
        let mut oracle = Oracle::new(self.log.base());
        let mut cuts = 0;
        cuts::for_each(&self.log, cut(by.seed), |crash| {
            cuts += 1;
            let look = match cuts % READ_ONLY {
                0 => Look::ReadOnlyToo,
                _ => Look::Recovered,
            };
            let recovered = match self.judge(&crash, look) {
                Ok(recovered) => recovered,
                Err(wrong) => {
                    let theirs = oracle.recover(&crash.image, self.commits());
                    let theirs = theirs.map_or_else(|words| words, |_| "is content".into());
                    self.fail(&crash, &format!("{wrong}\ne2fsck: {theirs}"));
                }
            };
            if cuts % EXAMINED == 0
                && let Err(words) = oracle.examine(&recovered.image)
            {
                self.fail(&crash, &words);
            }
            if cuts % RECOVERED_BY_OTHERS == 0 {
                let theirs = oracle.recover(&crash.image, self.commits());
                self.compare(&crash, &recovered, theirs);
            }
            if cuts % CUT_AGAIN == 0 {
                cuts += self.survive_again(&crash, &recovered);
            }
        });
        println!("{}: {cuts} cuts, {} through e2fsck", self.name, oracle.runs);
        cuts
    }

    fn commits(&self) -> Commits {
        self.actors[0].commits
    }

    /// e2fsck's recovery gives the same state.
    pub fn compare(&self, crash: &CrashState, ours: &Recovered, theirs: Result<Theirs, String>) {
        let theirs = match theirs {
            Ok(Theirs::Stumbled) => return,
            Ok(Theirs::Recovered(image)) => self.recover(&image),
            Err(words) => Err(words),
        };
        let theirs = theirs.unwrap_or_else(|words| self.fail(crash, &words));
        for (ours, theirs) in ours.views.iter().zip(&theirs.views) {
            if let Err(wrong) = same_contents(ours, theirs) {
                self.fail(crash, &format!("recovered by e2fsck: {wrong}"));
            }
        }
    }

    /// The power fails again during recovery, which gives the same final state.
    fn survive_again(&self, crash: &CrashState, first: &Recovered) -> usize {
        let disk = Arc::new(CrashDevice::new(crash.image.snapshot()));
        let filesystem = Filesystem::open(disk.clone(), options()).unwrap();
        filesystem.close().unwrap();
        let log = Arc::into_inner(disk).expect("closed").into_log();
        let options = CrashOptions {
            states_max: 4,
            ..CrashOptions::seeded(crash.position() as u64)
        };
        let mut cuts = 0;
        cuts::for_each(&log, options, |second| {
            cuts += 1;
            let again = self.recover(&second.image);
            let again = again
                .unwrap_or_else(|wrong| self.fail(&second, &format!("{crash}, then: {wrong}")));
            for (first, again) in first.views.iter().zip(&again.views) {
                if first.names != again.names || first.inodes != again.inodes {
                    self.fail(&second, &format!("{crash}, then another result"));
                }
            }
        });
        cuts
    }

    /// Keeps the image and panics.
    pub fn fail(&self, crash: &CrashState, wrong: &str) -> ! {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let name = self.name.replace([' ', '/'], "-");
        let path = directory.join(format!(
            "power-{name}-{}-{}.img",
            crash.position(),
            crash.index()
        ));
        let kept = fs::write(&path, crash.image.to_vec());
        panic!(
            "{}: {crash}: {wrong}\nimage: {} ({kept:?})",
            self.name,
            path.display()
        );
    }
}
