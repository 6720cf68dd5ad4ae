//! The images of a pool with their space.
//!
//! All figures of one survey are of one moment: what a running job has taken, and what is free, fit
//! together. It is used again for a short time, because it opens every image.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use extant_rbd::{Image, Pool, PoolStatistics, RbdAccess};
use extant_space::{ErrorKind, Result};
use parking_lot::Mutex;

use super::patience::Steps;
use crate::storage::hidden::HiddenName;

/// The metadata of an unfinished thick image: bytes that it will have.
pub(super) const RESERVED: &str = "extant.reserved";
/// A survey is used again for so long.
const SURVEY_AGE_MAX: Duration = Duration::from_millis(250);
/// The monitors' figures are renewed every few seconds.
const STATISTICS_AGE_MAX: Duration = Duration::from_secs(1);
/// Images that are opened at a time.
const THREADS: usize = 8;

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SurveyedImage {
    pub(super) name: String,
    pub(super) size_bytes: u64,
    /// In objects, each counted as a whole.
    pub(super) allocated_bytes: u64,
    /// Bytes that the job of another machine, or of another definition, will still take.
    pub(super) reserved_elsewhere_bytes: u64,
}

/// All images of the pool.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) images: Vec<SurveyedImage>,
    /// Names of images that cannot be opened or measured.
    pub(super) unreadable: Vec<String>,
    /// Names of images whose removal has begun.
    pub(super) in_removal: Vec<String>,
    at: Instant,
}

impl Survey {
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.images.iter().map(|image| image.allocated_bytes).sum()
    }

    pub(super) fn reserved_elsewhere_bytes(&self) -> u64 {
        let images = self.images.iter();
        images.map(|image| image.reserved_elsewhere_bytes).sum()
    }
}

/// The newest figures.
#[derive(Debug, Default)]
pub(super) struct Figures {
    survey: Mutex<Option<Arc<Survey>>>,
    statistics: Mutex<Option<(PoolStatistics, Instant)>>,
}

impl Figures {
    /// A survey that is fresh enough, or the one that `make` makes.
    pub(super) fn survey(&self, make: impl FnOnce() -> Result<Survey>) -> Result<Arc<Survey>> {
        let mut known = self.survey.lock();
        match &*known {
            Some(survey) if survey.at.elapsed() < SURVEY_AGE_MAX => Ok(Arc::clone(survey)),
            _ => {
                let survey = Arc::new(make()?);
                *known = Some(Arc::clone(&survey));
                Ok(survey)
            }
        }
    }

    pub(super) fn statistics(
        &self,
        ask: impl FnOnce() -> Result<PoolStatistics>,
    ) -> Result<PoolStatistics> {
        let mut known = self.statistics.lock();
        match &*known {
            Some((statistics, at)) if at.elapsed() < STATISTICS_AGE_MAX => Ok(statistics.clone()),
            _ => {
                let statistics = ask()?;
                *known = Some((statistics.clone(), Instant::now()));
                Ok(statistics)
            }
        }
    }

    /// The images have changed.
    pub(super) fn forget(&self) {
        *self.survey.lock() = None;
    }
}

/// Opens every image. `own` is the identifier of this pool's definition.
pub(super) fn survey(pool: &Pool, own: &str, steps: &Steps) -> Result<Survey> {
    let at = Instant::now();
    let names = pool.images()?;
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<SurveyedImage>> = Mutex::default();
    let (unreadable, gone) = (Mutex::<Vec<String>>::default(), AtomicBool::new(false));
    let work = || -> Result<()> {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            steps.tick();
            match look(pool, name, own) {
                Ok(image) => found.lock().push(image),
                Err(error) => match error.kind() {
                    ErrorKind::NotFound => gone.store(true, Ordering::Relaxed),
                    ErrorKind::Io => return Err(error),
                    _ => unreadable.lock().push(name.clone()),
                },
            }
        }
        Ok(())
    };
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let count = THREADS.min(names.len());
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter();
        ended
            .map(|worker| worker.join().expect("no panic"))
            .collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    let images = found.into_inner();
    let mut unreadable = unreadable.into_inner();
    if gone.into_inner() {
        // Removed or renamed meanwhile, or by a process that was killed halfway.
        let is_known = |name: &String| images.iter().any(|image| image.name == *name);
        let still_listed = pool.images()?.into_iter();
        let still_listed = still_listed.filter(|name| names.contains(name) && !is_known(name));
        unreadable.extend(still_listed);
        unreadable.sort();
        unreadable.dedup();
    }
    Ok(Survey {
        images,
        unreadable,
        in_removal: pool.images_in_removal()?,
        at,
    })
}

fn look(pool: &Pool, name: &str, own: &str) -> Result<SurveyedImage> {
    let image = Image::open(pool, name, None, RbdAccess::Shared)?;
    let allocated_bytes = image.allocated_bytes()?;
    let is_elsewhere = HiddenName::parse(name).is_some_and(|hidden| hidden.identifier != own);
    let mut reserved_elsewhere_bytes = 0;
    // A client that has ended reserves nothing.
    if is_elsewhere && !image.watchers()?.is_empty() {
        let reserved = image.metadata(RESERVED)?.and_then(|text| text.parse().ok());
        reserved_elsewhere_bytes = reserved.unwrap_or(0u64).saturating_sub(allocated_bytes);
    }
    Ok(SurveyedImage {
        name: name.to_owned(),
        size_bytes: image.size()?,
        allocated_bytes,
        reserved_elsewhere_bytes,
    })
}
