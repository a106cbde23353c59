//! Which of the objects that a walk met are one and the same.

use std::cmp::Ordering;

use super::kcmp::{self, Kind, Subject};

/// Gives equal objects the same number, new ones the next.
#[derive(Debug)]
pub(super) struct Sameness {
    kind: Kind,
    /// Ask the kernel; otherwise nothing is equal to anything.
    kernel: bool,
    /// In the kernel's order.
    sorted: Vec<(Subject, u64)>,
    /// Those that could not be sorted in, because one side had gone or was closed to us.
    loose: Vec<(Subject, u64)>,
}

impl Sameness {
    /// For objects of one kind.
    pub(super) fn new(kind: Kind, kernel: bool) -> Self {
        Self { kind, kernel, sorted: Vec::new(), loose: Vec::new() }
    }

    /// The number of the object that `subject` names, and whether it was met before; `next` makes a new number.
    pub(super) fn number(&mut self, subject: Subject, next: &mut u64) -> u64 {
        let mut fresh = || {
            *next += 1;
            *next
        };
        if !self.kernel {
            return fresh();
        }
        // An object compared with itself shows whether it may be compared at all.
        if kcmp::compare(self.kind, subject, subject) != Ok(Ordering::Equal) {
            return fresh();
        }
        let mut failed = false;
        let found = self.sorted.binary_search_by(|(other, _)| {
            kcmp::compare(self.kind, *other, subject).unwrap_or_else(|_| {
                failed = true;
                Ordering::Less
            })
        });
        match found {
            Ok(place) => return self.sorted[place].1,
            Err(place) if !failed && self.loose.is_empty() => {
                let number = fresh();
                self.sorted.insert(place, (subject, number));
                return number;
            }
            Err(_) => {}
        }
        let mut all = self.sorted.iter().chain(&self.loose);
        let same = all.find(|(other, _)| kcmp::compare(self.kind, *other, subject) == Ok(Ordering::Equal));
        match same {
            Some((_, number)) => *number,
            None => {
                let number = fresh();
                self.loose.push((subject, number));
                number
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsRawFd, OwnedFd};

    fn subject(file: &impl AsRawFd) -> Subject {
        let fd = u32::try_from(file.as_raw_fd()).expect("a descriptor");
        Subject { tid: std::process::id(), fd }
    }

    #[test]
    fn a_duplicate_is_the_same_file_and_a_second_open_is_not() {
        let one = File::open("/dev/zero").expect("open");
        let copy = one.try_clone().expect("dup");
        let two = File::open("/dev/zero").expect("open");
        let files = [&one, &two, &copy, &two, &one];
        let (mut with, mut without) = (Sameness::new(Kind::File, true), Sameness::new(Kind::File, false));
        let mut next = 0;
        let numbers: Vec<u64> = files.iter().map(|file| with.number(subject(*file), &mut next)).collect();
        assert_eq!(numbers, [1, 2, 1, 2, 1]);
        let mut next = 0;
        let numbers: Vec<u64> = files.iter().map(|file| without.number(subject(*file), &mut next)).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_file_that_was_closed_meanwhile_does_not_disturb_the_others() {
        // High numbers: other tests of this process must not get them when they are closed here.
        let high = |file: &File| rustix::io::fcntl_dupfd_cloexec(file, 700).expect("dup");
        let copies: Vec<File> = (0..20).map(|_| File::open("/dev/zero").expect("open")).collect();
        let files: Vec<OwnedFd> = copies.iter().map(high).collect();
        let subjects: Vec<Subject> = files.iter().map(subject).collect();
        let mut same = Sameness::new(Kind::File, true);
        let mut next = 0;
        let before: Vec<u64> = subjects.iter().map(|subject| same.number(*subject, &mut next)).collect();
        let (_open, closed): (Vec<_>, Vec<_>) =
            files.into_iter().enumerate().partition(|(place, _)| place % 2 == 1);
        drop(closed);
        let after: Vec<u64> = copies.iter().map(|file| same.number(subject(file), &mut next)).collect();
        for place in (1..20).step_by(2) {
            assert_eq!(after[place], before[place], "file {place} is still open");
        }
        let again: Vec<u64> = copies.iter().map(|file| same.number(subject(file), &mut next)).collect();
        assert_eq!(again, after, "every copy keeps its number");
    }
}
