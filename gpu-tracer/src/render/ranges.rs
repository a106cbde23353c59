//! Numbers and numbered names in short: `0-3,5`, `nvidia0-7`.

use std::collections::HashMap;

/// Sorted and without repetition, runs of three and more as `first-last`: `0-3,5,6,9`.
#[must_use]
pub(super) fn ranges(numbers: impl IntoIterator<Item = u64>) -> String {
    padded_ranges(numbers, 0)
}

/// [`ranges`] of numbers written with at least so many digits: `00-12`.
fn padded_ranges(numbers: impl IntoIterator<Item = u64>, digits: usize) -> String {
    let mut numbers: Vec<u64> = numbers.into_iter().collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut parts = Vec::new();
    for run in numbers.chunk_by(|before, after| after - before == 1) {
        match run {
            [first, _, .., last] => parts.push(format!("{first:0digits$}-{last:0digits$}")),
            few => parts.extend(few.iter().map(|number| format!("{number:0digits$}"))),
        }
    }
    parts.join(",")
}

/// Names that differ only in the number at their end, together: `nvidia0-7`, `rank-00-12`. The others as they are, in the order
/// in which the first of each came.
#[must_use]
pub(super) fn name_ranges(names: &[String]) -> Vec<String> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut stems: Vec<(&str, Vec<&str>)> = Vec::new();
    for name in names {
        let stem = name.trim_end_matches(|ch: char| ch.is_ascii_digit());
        let place = *places.entry(stem).or_insert_with(|| {
            stems.push((stem, Vec::new()));
            stems.len() - 1
        });
        stems[place].1.push(&name[stem.len()..]);
    }
    stems.into_iter().flat_map(|(stem, numbers)| one_stem(stem, &numbers)).collect()
}

/// The names of one stem. Only numbers that are all written alike are joined, so that each can be told from the short form.
fn one_stem(stem: &str, numbers: &[&str]) -> Vec<String> {
    let parsed: Vec<u64> = numbers.iter().filter_map(|digits| digits.parse().ok()).collect();
    let padded = numbers.iter().any(|digits| digits.len() > 1 && digits.starts_with('0'));
    let digits = if padded { numbers.iter().map(|digits| digits.len()).max().unwrap_or(0) } else { 0 };
    let alike = !padded || numbers.iter().all(|number| number.len() == digits);
    if alike && parsed.len() == numbers.len() {
        return vec![format!("{stem}{}", padded_ranges(parsed, digits))];
    }
    let mut names: Vec<String> = numbers.iter().map(|number| format!("{stem}{number}")).collect();
    names.dedup();
    names
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
        let joined =
            |names: &[&str]| name_ranges(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            joined(&["nvidia0", "nvidiactl", "nvidia2", "nvidia1", "caps/cap1", "nvidiactl"]),
            ["nvidia0-2", "nvidiactl", "caps/cap1"]
        );
        assert_eq!(joined(&["rank-08", "rank-09", "rank-10", "rank-12"]), ["rank-08-10,12"]);
        assert_eq!(joined(&["a1", "a01"]), ["a1", "a01"], "written differently");
        assert_eq!(joined(&["x", "x1"]), ["x", "x1"]);
        assert_eq!(joined(&["y99999999999999999999999", "y1"]), ["y99999999999999999999999", "y1"]);
        assert_eq!(joined(&["7", "8"]), ["7,8"]);
        assert_eq!(joined(&[]), [""; 0]);
    }
}
