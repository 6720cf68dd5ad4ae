//! Mount options of the block allocator, which a remount can change.
//!
//! `mb_optimize_scan=` is ext4's; `reservation` and `noreservation` are those of ext2, whose
//! reservation windows are what the allocator has.

use extant_ext4::{AllocatorPolicy, GroupScan, Reservation};
use extant_fuse::options::{Known, list};
use extant_space::{Error, ErrorKind, Result};
use extant_sys::mounted::{Allocator, allocator_bits};

/// How blocks are searched for; `None` for what a list of options does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorOptions {
    /// `mb_optimize_scan=0`, `mb_optimize_scan=1`.
    pub scan: Option<GroupScan>,
    /// `reservation`, `noreservation`.
    pub reservation: Option<Reservation>,
}

impl AllocatorOptions {
    /// The options of the allocator in a list for `-o remount`, and the others but `remount`.
    ///
    /// # Errors
    /// `InvalidArgument` with an option that has a wrong value.
    pub fn for_remount(text: &str) -> Result<(Self, Vec<String>)> {
        let mut options = Self::default();
        let mut others = Vec::new();
        for option in list::split(text) {
            let (name, value) = list::name_and_value(&option);
            if options.set(name, value)? == Known::No && !matches!(name, "remount" | "") {
                others.push(option);
            }
        }
        Ok((options, others))
    }

    /// Whether the list says nothing about the allocator.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The policy, with the engine's default for what is not set.
    pub fn policy(&self) -> AllocatorPolicy {
        let default = AllocatorPolicy::default();
        AllocatorPolicy {
            scan: self.scan.unwrap_or(default.scan),
            reservation: self.reservation.unwrap_or(default.reservation),
        }
    }

    /// The call that makes the change on a mount.
    pub fn to_call(&self) -> Allocator {
        let mut call = Self::call_of(self.policy());
        if self.scan.is_some() {
            call.set |= allocator_bits::OPTIMIZE_SCAN;
        }
        if self.reservation.is_some() {
            call.set |= allocator_bits::RESERVATION;
        }
        call
    }

    /// A call that only reads, with a policy in its fields.
    pub(crate) fn call_of(policy: AllocatorPolicy) -> Allocator {
        Allocator {
            set: 0,
            mb_optimize_scan: u32::from(policy.scan == GroupScan::Optimised),
            reservation: u32::from(policy.reservation == Reservation::Windows),
            reserved: 0,
        }
    }

    /// The changes that a call names; `None` for other values than 0 and 1, and unknown bits.
    pub(crate) fn from_call(call: &Allocator) -> Option<Self> {
        let known = allocator_bits::OPTIMIZE_SCAN | allocator_bits::RESERVATION;
        if call.set & !known != 0 || call.reserved != 0 {
            return None;
        }
        let mut options = Self::default();
        if call.set & allocator_bits::OPTIMIZE_SCAN != 0 {
            options.scan = Some(match call.mb_optimize_scan {
                0 => GroupScan::Linear,
                1 => GroupScan::Optimised,
                _ => return None,
            });
        }
        if call.set & allocator_bits::RESERVATION != 0 {
            options.reservation = Some(match call.reservation {
                0 => Reservation::None,
                1 => Reservation::Windows,
                _ => return None,
            });
        }
        Some(options)
    }

    pub(super) fn set(&mut self, name: &str, value: Option<&str>) -> Result<Known> {
        match (name, value) {
            ("mb_optimize_scan", Some("0")) => self.scan = Some(GroupScan::Linear),
            ("mb_optimize_scan", Some("1")) => self.scan = Some(GroupScan::Optimised),
            ("mb_optimize_scan", Some(value)) => {
                return Err(list::wrong_value(name, value, "0 or 1"));
            }
            ("mb_optimize_scan", None) => {
                let detail = format!("option `{name}` takes 0 or 1");
                return Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
            }
            ("reservation", None) => self.reservation = Some(Reservation::Windows),
            ("noreservation", None) => self.reservation = Some(Reservation::None),
            _ => return Ok(Known::No),
        }
        Ok(Known::Yes)
    }

    pub(super) fn words(&self) -> [Option<&'static str>; 2] {
        [
            self.scan.map(|scan| match scan {
                GroupScan::Linear => "mb_optimize_scan=0",
                GroupScan::Optimised => "mb_optimize_scan=1",
            }),
            self.reservation.map(|reservation| match reservation {
                Reservation::Windows => "reservation",
                Reservation::None => "noreservation",
            }),
        ]
    }
}
