//! Times as people write them.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ZonedDateTime};

/// It is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no time: write 2026-11-29T03:12:00Z, \"2026-11-29 03:12\" (local time), 03:12 (the last time that the clock \
     showed it), 1h30m (ago), now, or @SECONDS since 1970"
)]
pub struct TimeError(String);

/// The moment that a text means for somebody for whom it is `now`.
///
/// # Errors
/// It means none.
pub fn parse_time(text: &str, now: &ZonedDateTime) -> Result<Timestamp, TimeError> {
    let text = text.trim();
    let wrong = || TimeError(text.to_owned());
    if text == "now" {
        return Ok(now.timestamp());
    }
    if let Some(seconds) = text.strip_prefix('@') {
        let seconds: f64 = seconds.parse().map_err(|_| wrong())?;
        let ns = (seconds * 1e9).is_finite().then_some((seconds * 1e9) as i128).ok_or_else(wrong)?;
        return Timestamp::from_nanosecond(ns).map_err(|_| wrong());
    }
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Ok(moment);
    }
    if let Ok(moment) = text.parse::<DateTime>().or_else(|_| text.replacen(' ', "T", 1).parse::<DateTime>()) {
        return in_zone(moment, now.time_zone()).ok_or_else(wrong);
    }
    if text.contains(':')
        && let Ok(time) = text.parse::<Time>()
    {
        let today = in_zone(now.date().to_datetime(time), now.time_zone()).ok_or_else(wrong)?;
        if today <= now.timestamp() {
            return Ok(today);
        }
        let yesterday = now.date().yesterday().map_err(|_| wrong())?;
        return in_zone(yesterday.to_datetime(time), now.time_zone()).ok_or_else(wrong);
    }
    let ago = text.strip_suffix("ago").map_or(text, str::trim);
    let span = span(ago).ok_or_else(wrong)?;
    now.timestamp().checked_sub(span).map_err(|_| wrong())
}

fn in_zone(moment: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    Some(zone.to_zoned_datetime(moment).ok()?.timestamp())
}

/// `1h30m`, `2d`, `90s`: numbers with units, nothing else. A day has 24 hours.
fn span(text: &str) -> Option<Span> {
    let (mut rest, mut seconds) = (text, 0i64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|ch: char| !ch.is_ascii_digit()).filter(|digits| *digits > 0)?;
        let number: i64 = rest[..digits].parse().ok()?;
        let tail = &rest[digits..];
        let letters = tail.find(|ch: char| !ch.is_ascii_alphabetic()).unwrap_or(tail.len());
        let unit = match &tail[..letters] {
            "s" | "sec" => 1,
            "m" | "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            "w" => 7 * 86_400,
            _ => return None,
        };
        seconds = seconds.checked_add(number.checked_mul(unit)?)?;
        rest = tail[letters..].trim_start();
    }
    Span::new().try_seconds(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> ZonedDateTime {
        "2026-11-29T15:02:11+01:00[Europe/Berlin]".parse().unwrap()
    }

    #[test]
    fn times_are_understood_as_people_write_them() {
        for (text, expected) in [
            ("now", "2026-11-29T14:02:11Z"),
            ("2026-11-29T03:12:00Z", "2026-11-29T03:12:00Z"),
            ("2026-11-29T03:12:00.5+01:00", "2026-11-29T02:12:00.5Z"),
            ("2026-11-29 03:12", "2026-11-29T02:12:00Z"),
            ("2026-11-29T03:12:07", "2026-11-29T02:12:07Z"),
            ("2026-07-01 12:00", "2026-07-01T10:00:00Z"),
            ("03:12", "2026-11-29T02:12:00Z"),
            ("15:02:11", "2026-11-29T14:02:11Z"),
            ("15:03", "2026-11-28T14:03:00Z"),
            ("1h", "2026-11-29T13:02:11Z"),
            ("1h30m", "2026-11-29T12:32:11Z"),
            ("90s ago", "2026-11-29T14:00:41Z"),
            ("2d", "2026-11-27T14:02:11Z"),
            ("@0", "1970-01-01T00:00:00Z"),
        ] {
            let expected: Timestamp = expected.parse().unwrap();
            assert_eq!(parse_time(text, &now()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_examples() {
        for text in [
            "",
            "yesterday",
            "1x",
            "h",
            "25:00",
            "2026-13-01 00:00",
            "-1h",
            "1",
            "@x",
            "9999999999999999999d",
        ] {
            let refused = parse_time(text, &now()).map_err(|error| error.to_string());
            assert!(refused.as_ref().is_err_and(|text| text.contains("1h30m")), "{text}: {refused:?}");
        }
    }
}
