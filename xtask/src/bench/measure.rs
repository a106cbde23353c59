//! Timings and what is said of them: medians, because one hiccup must not decide, and ratios of medians, because
//! absolute figures depend on the machine.

use std::time::Duration;

/// Timings of one thing, at least one.
#[derive(Debug, Clone)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    /// Takes the timings; `None` when there is none.
    pub(crate) fn new(mut timings: Vec<Duration>) -> Option<Self> {
        timings.sort();
        (!timings.is_empty()).then_some(Self(timings))
    }

    /// The middle one; between the two middle ones where their number is even.
    pub(crate) fn median(&self) -> Duration {
        let middle = self.0.len() / 2;
        if self.0.len() % 2 == 1 { self.0[middle] } else { (self.0[middle - 1] + self.0[middle]) / 2 }
    }

    /// The shortest.
    pub(crate) fn min(&self) -> Duration {
        self.0[0]
    }

    /// The longest.
    pub(crate) fn max(&self) -> Duration {
        self.0[self.0.len() - 1]
    }

    /// How many times longer this takes than `other`, by their medians.
    pub(crate) fn ratio_to(&self, other: &Self) -> f64 {
        self.median().as_secs_f64() / other.median().as_secs_f64()
    }
}

/// Milliseconds with two decimals.
pub(crate) fn ms(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1e3)
}

/// Is what was promised kept?
pub(crate) const fn verdict(kept: bool) -> &'static str {
    if kept { "kept" } else { "NOT KEPT" }
}

/// What else this machine has to do, for those who read the figures: processes that run or want to, over the last minute.
pub(crate) fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("load average {} on {cores} cores", load.split(' ').next().unwrap_or("unknown"))
}

/// Lays out rows under a heading: the first column to the left, the others to the right.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = heading.iter().map(|cell| (*cell).to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(rows).collect();
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..heading.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(milliseconds: &[u64]) -> Samples {
        Samples::new(milliseconds.iter().copied().map(Duration::from_millis).collect()).unwrap()
    }

    #[test]
    fn the_median_is_the_middle_of_any_order() {
        assert_eq!(samples(&[9, 1, 5]).median(), Duration::from_millis(5));
        assert_eq!(samples(&[9, 1, 5, 6]).median(), Duration::from_micros(5500));
        assert_eq!(samples(&[7]).median(), Duration::from_millis(7));
    }

    #[test]
    fn one_hiccup_changes_the_maximum_only() {
        let with = samples(&[10, 11, 12, 13, 9000]);
        assert_eq!(
            (with.median(), with.min(), with.max()),
            (Duration::from_millis(12), Duration::from_millis(10), Duration::from_millis(9000))
        );
    }

    #[test]
    fn a_ratio_says_how_many_times_longer() {
        let ratio = samples(&[1400, 1500, 1600]).ratio_to(&samples(&[20, 30, 40]));
        assert!((ratio - 50.0).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn no_timings_are_no_samples() {
        assert!(Samples::new(Vec::new()).is_none());
    }

    #[test]
    fn columns_are_aligned() {
        let rows =
            [vec!["fuser -v".to_owned(), "1470.10".to_owned()], vec!["ours".to_owned(), "30.00".to_owned()]];
        assert_eq!(table(&["", "ms"], &rows), "               ms\nfuser -v  1470.10\nours        30.00\n");
    }
}
