//! Moments of the wall clock, as answers give them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub type Milliseconds = i64;

/// Now.
#[must_use]
pub fn now() -> Milliseconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    Milliseconds::try_from(since).unwrap_or(Milliseconds::MAX)
}

/// A moment like `2026-11-29T22:29:09.771Z`; `None` for anything else.
#[must_use]
pub fn parse(text: &str) -> Option<Milliseconds> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-')?;
    let (time, thousandths) = time.split_once('.')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let thousandths: i64 = thousandths.parse().ok()?;
    // Years begin in March, so that the day that is there every fourth year only comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + thousandths)
}

fn numbers(text: &str, between: char) -> Option<[i64; 3]> {
    let numbers: Vec<i64> = text.split(between).map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_counted_from_1970() {
        assert_eq!(parse("1970-01-01T00:00:00.000Z"), Some(0));
        assert_eq!(parse("2000-02-29T12:00:00.500Z"), Some(951_825_600_500));
        assert_eq!(parse("2026-11-29T22:29:09.771Z"), Some(1_795_991_349_771));
        assert_eq!(parse("yesterday"), None);
    }
}
