//! Device memory, and on which GPUs it is.

use super::ranges::ranges;

/// `102918`, or `96610 on GPU 3` where it may be on others than the one that is asked about. `figures`: GPU and MiB, by GPU.
pub(super) fn mib_on(figures: &[(u32, u64)], asked: Option<u32>) -> String {
    let on = || ranges(figures.iter().map(|(gpu, _)| u64::from(*gpu)));
    match figures {
        [] => String::new(),
        [(gpu, mib)] if asked == Some(*gpu) => mib.to_string(),
        [(gpu, mib)] => format!("{mib} on GPU {gpu}"),
        [(_, mib), others @ ..] if others.iter().all(|(_, other)| other == mib) => {
            format!("{mib} each on GPU {}", on())
        }
        few if few.len() <= 3 => {
            few.iter().map(|(gpu, mib)| format!("{mib} on GPU {gpu}")).collect::<Vec<_>>().join(", ")
        }
        many => {
            let total = many.iter().fold(0, |total: u64, (_, mib)| total.saturating_add(*mib));
            format!("{total} in all on GPU {}", on())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::mib_on;

    #[test]
    fn where_it_is_is_said_unless_that_was_asked() {
        assert_eq!(mib_on(&[], Some(0)), "");
        assert_eq!(mib_on(&[(0, 5546)], Some(0)), "5546");
        assert_eq!(mib_on(&[(1, 5546)], Some(0)), "5546 on GPU 1");
        assert_eq!(mib_on(&[(1, 5546)], None), "5546 on GPU 1");
        assert_eq!(mib_on(&[(0, 96), (1, 96), (2, 96), (3, 96)], None), "96 each on GPU 0-3");
        assert_eq!(mib_on(&[(0, 5546), (1, 291)], None), "5546 on GPU 0, 291 on GPU 1");
        assert_eq!(mib_on(&[(0, 1), (1, 2), (2, 3), (4, 4)], None), "10 in all on GPU 0-2,4");
    }
}
