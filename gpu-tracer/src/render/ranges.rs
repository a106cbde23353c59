//! Numbers and numbered names in short: `0-3,5`, `nvidia0-7`.

use std::collections::HashMap;

/// Sorted and without repetition, runs of three and more as `first-last`: `0-3,5,6,9`.
#[must_use]
pub(super) fn ranges(numbers: impl IntoIterator<Item = u64>) -> String {
    let mut numbers: Vec<u64> = numbers.into_iter().collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut parts = Vec::new();
    for run in numbers.chunk_by(|before, after| after - before == 1) {
        match run {
            [first, _, .., last] => parts.push(format!("{first}-{last}")),
            few => parts.extend(few.iter().map(u64::to_string)),
        }
    }
    parts.join(",")
}

/// Names that differ only in the number at their end, together: `nvidia0-7`. The others as they are, in the order given.
#[must_use]
pub(super) fn name_ranges(names: &[String]) -> Vec<String> {
    // A name without a number at its end is a stem of its own, which no numbered name shares.
    let mut places: HashMap<(&str, bool), usize> = HashMap::new();
    let mut stems: Vec<(&str, Vec<u64>)> = Vec::new();
    for name in names {
        let (stem, number) = split_number(name);
        let place = *places.entry((stem, number.is_some())).or_insert_with(|| {
            stems.push((stem, Vec::new()));
            stems.len() - 1
        });
        stems[place].1.extend(number);
    }
    stems.into_iter().map(|(stem, numbers)| format!("{stem}{}", ranges(numbers))).collect()
}

/// A name and the number it ends with, if that is written as a number would be (no leading zero, not absurdly long).
fn split_number(name: &str) -> (&str, Option<u64>) {
    let stem = name.trim_end_matches(|ch: char| ch.is_ascii_digit());
    let digits = &name[stem.len()..];
    let canonical = digits == "0" || (!digits.starts_with('0') && (1..=9).contains(&digits.len()));
    match digits.parse() {
        Ok(number) if canonical => (stem, Some(number)),
        _ => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_shortened_and_repetitions_dropped() {
        assert_eq!(ranges([3, 1, 2, 0, 2]), "0-3");
        assert_eq!(ranges([0, 1, 5]), "0,1,5");
        assert_eq!(ranges([u64::MAX, 0, 7, 8, 9]), format!("0,7-9,{}", u64::MAX));
        assert_eq!(ranges([]), "");
    }

    #[test]
    fn only_the_number_at_the_end_is_joined() {
        let names = ["nvidia0", "nvidiactl", "nvidia2", "nvidia1", "caps/cap1", "nvidiactl", "x007"]
            .map(String::from);
        assert_eq!(name_ranges(&names), ["nvidia0-2", "nvidiactl", "caps/cap1", "x007"]);
    }
}
