//! Changes of space in a batch: the first method that was not refused, and the fallback.

use std::io;

use extant_space::{ByteRange, Error, ErrorKind, event};
use extant_sys::call::Call;

use super::{Batch, Flight, Job};
use crate::host::offload::OffloadMethod;
use crate::{Persistence, Speed, Zeroing};

/// Purpose of a change of space; it selects the fallback if no method is supported.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Discard,
    Assign,
    Zero(Zeroing),
}

impl Purpose {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Discard => "discard",
            Self::Assign => "assign",
            Self::Zero(_) => "write zeroes",
        }
    }

    /// `method` allocates the range that is then zeroed by writing data.
    fn needs_data_after(self, method: OffloadMethod) -> bool {
        matches!(self, Self::Zero(_)) && method == OffloadMethod::Allocate
    }
}

impl<'s> Batch<'s> {
    pub(super) fn change_space(
        &mut self,
        owner: usize,
        range: ByteRange,
        methods: &'static [OffloadMethod],
        purpose: Purpose,
    ) -> Option<(Flight<'s>, Call<'s>)> {
        let Some(at) = self.first_method(methods, purpose) else {
            self.do_without(owner, range, purpose);
            return None;
        };
        let flight = Flight::Space {
            owner,
            range,
            method: methods[at],
            rest: &methods[at + 1..],
            purpose,
        };
        Some((flight, methods[at].call(range)))
    }

    /// The index of the first method that was not refused.
    pub(super) fn first_method(
        &self,
        methods: &[OffloadMethod],
        purpose: Purpose,
    ) -> Option<usize> {
        let may_be_slow =
            !matches!(purpose, Purpose::Zero(zeroing) if zeroing.speed == Speed::OnlyIfFast);
        methods.iter().position(|&method| {
            let is_fast = self.device.is_fast(method) && !purpose.needs_data_after(method);
            !self.device.refusals.contain(method) && (may_be_slow || is_fast)
        })
    }

    /// No way is left.
    fn do_without(&mut self, owner: usize, range: ByteRange, purpose: Purpose) {
        event!(
            DEBUG,
            purpose.name(),
            path = %self.device.path.display(),
            method = "none",
            start_bytes = range.start(),
            length_bytes = range.len()
        );
        let unsupported = |detail| {
            Error::new(ErrorKind::Unsupported)
                .detail(detail)
                .in_range(range)
        };
        match purpose {
            Purpose::Discard => {}
            Purpose::Assign => self.fail(owner, unsupported("space cannot be assigned here")),
            Purpose::Zero(zeroing) => match zeroing.speed {
                Speed::OnlyIfFast => {
                    self.fail(owner, unsupported("zeros are only taken as data here"));
                }
                Speed::Any => {
                    let job = Job::Zeroes {
                        range,
                        persistence: zeroing.persistence,
                    };
                    self.waiting.push_front((owner, job));
                }
            },
        }
    }

    /// A change of space has ended.
    pub(super) fn changed_space(
        &mut self,
        (owner, range, method): (usize, ByteRange, OffloadMethod),
        rest: &'static [OffloadMethod],
        purpose: Purpose,
        result: io::Result<usize>,
    ) {
        if let Purpose::Assign = purpose {
            self.is_assigning = false;
        }
        match result {
            Ok(_) if purpose.needs_data_after(method) => self.do_without(owner, range, purpose),
            Ok(_) => match purpose {
                Purpose::Zero(zeroing) if zeroing.persistence == Persistence::Fua => {
                    self.unsynced.push(owner);
                }
                _ => {}
            },
            Err(source) if is_refusal(&source) => {
                self.device.refusals.add(method);
                let job = Job::Space {
                    range,
                    methods: rest,
                    purpose,
                };
                self.waiting.push_front((owner, job));
            }
            Err(source) => self.fail(owner, Error::from(source).in_range(range)),
        }
    }
}

/// The kernel does not offer it.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY)
    )
}
