//! Times as people and programs read them.

use extant_ext4::Timestamp;
use jiff::Timestamp as Moment;
use jiff::tz::TimeZone;

/// `2026-11-21 09:33`, in the time zone of the machine.
pub(super) fn short(time: Timestamp) -> String {
    local(time, "%Y-%m-%d %H:%M")
}

/// `2026-11-21 09:33:12.123456789 +0000`, in the time zone of the machine.
pub(super) fn full(time: Timestamp) -> String {
    local(time, "%Y-%m-%d %H:%M:%S.%9f %z")
}

/// `2026-11-21T09:33:12.123456789Z`.
pub(super) fn rfc3339(time: Timestamp) -> String {
    moment(time).to_string()
}

fn local(time: Timestamp, format: &str) -> String {
    let zoned = moment(time).to_zoned(TimeZone::system());
    zoned.strftime(format).to_string()
}

fn moment(time: Timestamp) -> Moment {
    // Those of ext4, 1901 to 2446, are all possible.
    Moment::new(time.seconds, time.nanoseconds as i32).expect("a time that ext4 can store")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_at_the_ends_of_the_format_are_shown() {
        assert_eq!(rfc3339(Timestamp::MIN), "1901-12-13T20:45:52Z");
        let last = Timestamp {
            nanoseconds: 999_999_999,
            ..Timestamp::MAX
        };
        assert_eq!(rfc3339(last), "2446-05-10T22:38:55.999999999Z");
        assert_eq!(short(Timestamp::default()).len(), "1970-01-01 00:00".len());
    }
}
