//! Moments of the wall clock, as the JSON contract writes them.

use std::fmt;
use std::num::NonZero;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment, to the millisecond. In JSON and in text RFC 3339, UTC: `2026-11-29T15:02:11.123Z`.
///
/// An answer may have ten thousand of them, so they are kept as a number and written without any help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime {
    /// One more than the ms since the year 0: never zero, so that an optional moment takes no more room.
    since_year_0: NonZero<u64>,
}

/// Length of the text.
const LENGTH: usize = "2026-11-29T15:02:11.123Z".len();
const MS_PER_DAY: i64 = 86_400_000;
const NS_PER_MS: i64 = 1_000_000;

/// Unix time of the first moment whose year has four digits and no sign, 0000-01-01, ms.
const FIRST_MS: i64 = -62_167_219_200_000;
/// And of the last; the end of time for [`Timestamp`] as well.
const LAST_MS: i64 = 253_402_207_200_999;

impl WallTime {
    /// From Unix time, ns; what is out of range becomes the nearest that is not.
    #[must_use]
    pub fn from_unix_ns(ns: i128) -> Self {
        let ms = match i64::try_from(ns) {
            // Most of a division of 128 bits would be wasted.
            Ok(ns) => ns.div_euclid(NS_PER_MS),
            Err(_) => {
                let furthest = if ns < 0 { FIRST_MS } else { LAST_MS };
                i64::try_from(ns.div_euclid(NS_PER_MS.into())).unwrap_or(furthest)
            }
        };
        let since_year_0 = (ms.clamp(FIRST_MS, LAST_MS) - FIRST_MS).unsigned_abs();
        Self { since_year_0: NonZero::<u64>::MIN.saturating_add(since_year_0) }
    }

    fn unix_ms(self) -> i64 {
        (self.since_year_0.get() - 1).cast_signed() + FIRST_MS
    }

    /// The same for calculations.
    #[must_use]
    pub fn timestamp(self) -> Timestamp {
        Timestamp::from_millisecond(self.unix_ms()).unwrap_or(Timestamp::MAX)
    }

    /// Its text, ASCII.
    #[must_use]
    pub fn text(self) -> [u8; LENGTH] {
        let (ms, days) = (self.unix_ms().rem_euclid(MS_PER_DAY), self.unix_ms().div_euclid(MS_PER_DAY));
        let mut left = ms;
        let (year, month, day) = civil(days);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |from: usize, digits: usize, mut number: i64| {
            for at in (from..from + digits).rev() {
                // A digit.
                text[at] = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        for (from, digits, unit) in [(20, 3, 1000), (17, 2, 60), (14, 2, 60), (11, 2, 24)] {
            put(from, digits, left % unit);
            left /= unit;
        }
        put(0, 4, year);
        put(5, 2, month);
        put(8, 2, day);
        text
    }
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Years are counted from March: then the leap day is the last of them, and months have 153 days in five.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_BEFORE_1970: i64 = 719_468;
    const DAYS_OF_400_YEARS: i64 = 146_097;
    let days = days + DAYS_BEFORE_1970;
    let (era, of_era) = (days.div_euclid(DAYS_OF_400_YEARS), days.rem_euclid(DAYS_OF_400_YEARS));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (400 * era + year_of_era + i64::from(month <= 2), month, day)
}

impl From<Timestamp> for WallTime {
    fn from(moment: Timestamp) -> Self {
        Self::from_unix_ns(moment.as_nanosecond())
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl FromStr for WallTime {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Timestamp>().map(Self::from)
    }
}

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_out_of_range_is_as_near_as_can_be() {
        let text = |ns: i128| WallTime::from_unix_ns(ns).to_string();
        assert_eq!(text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(text(i128::MIN), "0000-01-01T00:00:00.000Z");
        assert_eq!(text(i128::MAX), "9999-12-30T22:00:00.999Z");
        assert_eq!(text(1_709_210_096_789_999_999), "2024-02-29T12:34:56.789Z");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn any_moment_is_written_as_the_library_for_times_does_it(ms in FIRST_MS..=LAST_MS, ns in 0..NS_PER_MS) {
            let moment = Timestamp::from_nanosecond(i128::from(ms) * i128::from(NS_PER_MS) + i128::from(ns))
                .unwrap_or(Timestamp::MAX);
            let wall = WallTime::from(moment);
            prop_assert_eq!(wall.to_string(), format!("{moment:.3}"));
            prop_assert_eq!(wall.to_string().parse::<WallTime>().unwrap(), wall);
            prop_assert_eq!(serde_json::to_string(&wall).unwrap(), format!("\"{wall}\""));
        }
    }
}
