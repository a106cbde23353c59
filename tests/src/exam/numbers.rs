//! Which open file a daemon calls by which number. Its numbers stay: a file must keep its own, and no other may get it.

use std::collections::{BTreeMap, BTreeSet};

use super::compare::{Shown, compare_files};
use super::expected::{Expected, ExpectedFile};
use super::model::Id;
use super::moment;

/// What differs between this host's clocks, at most, in milliseconds.
const CLOCKS_DIFFER: i64 = 100;

/// The numbers that are known.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    known: BTreeMap<Id, Known>,
    /// Numbers of files that are released, by the question at which they were first found to be.
    retired: BTreeMap<u64, u64>,
    /// Numbers that were shown at the question before, and at this one.
    shown: (BTreeSet<u64>, BTreeSet<u64>),
    question: u64,
    /// How many opens the daemon has only counted, and the question at which there were more of them than before.
    untold: (u64, u64),
    /// How often an opener was named exactly, named as likely, and not named.
    pub openers: (u64, u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct Known {
    number: u64,
    /// It is known by the number of a file that was at its address before: its opener is that one's.
    taken_over: bool,
}

impl Numbers {
    /// What is asked from now on is another question.
    pub fn next_question(&mut self) {
        self.question += 1;
        self.shown.0 = std::mem::take(&mut self.shown.1);
    }

    /// The daemon has only counted so many opens up to now, since a process had more of them than are told one by one.
    pub fn note_untold(&mut self, count: u64) {
        if count > self.untold.0 {
            self.untold = (count, self.question);
        }
    }

    /// May an open since the question before last have been one that was only counted?
    fn may_be_untold(&self) -> bool {
        self.untold.0 > 0 && self.untold.1 + 1 >= self.question
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        (self.known, self.retired, self.shown) = Default::default();
    }

    /// Files that were told apart before must be the same still; the others are told apart as far as they differ.
    pub(super) fn compare(
        &mut self,
        expected: &Expected,
        shown: &BTreeMap<u64, Shown<'_>>,
        found: &mut Vec<String>,
    ) {
        self.retire(expected, shown);
        self.shown.1.extend(shown.keys());
        let mut left: BTreeMap<Id, &ExpectedFile> =
            expected.files.iter().map(|(id, file)| (*id, file)).collect();
        let mut unclaimed: BTreeMap<u64, &Shown<'_>> =
            shown.iter().map(|(number, file)| (*number, file)).collect();
        for (id, Known { number, .. }) in &self.known {
            let (Some(should), is) = (left.remove(id), unclaimed.remove(number)) else { continue };
            match is {
                None => found.push(format!("file #{number} is gone; it should be held: {should:?}")),
                Some(is) if is.traits() != should.traits() => {
                    found.push(format!(
                        "file #{number} is {:?}, should be {:?}",
                        is.traits(),
                        should.traits()
                    ));
                }
                Some(_) => {}
            }
        }
        compare_files(left.values().copied(), unclaimed.values().copied(), found);
        self.check_taken_over(&left, &unclaimed, found);
        for (id, should) in &left {
            let mut alike = unclaimed.values().filter(|shown| shown.traits() == should.traits());
            let unique = left.values().filter(|other| other.traits() == should.traits()).count() == 1;
            if let (Some(is), None, true) = (alike.next(), alike.next(), unique) {
                let number = is.file.id;
                let older = self.shown.0.contains(&number) && should.fresh;
                let taken_over = self.retired.remove(&number).is_some() || older;
                self.known.insert(*id, Known { number, taken_over });
            }
        }
        self.check_openers(expected, shown, found);
    }

    /// Retires the numbers of released files, and those that files may have lost: nothing of a file stayed, and in a slot
    /// where it is now its device was opened. It looks as if another had got its address.
    fn retire(&mut self, expected: &Expected, shown: &BTreeMap<u64, Shown<'_>>) {
        let (question, retired) = (self.question, &mut self.retired);
        self.known.retain(|id, known| {
            let keeps = expected
                .files
                .get(id)
                .is_some_and(|file| file.stays || !file.reopened || shown.contains_key(&known.number));
            if !keeps {
                retired.insert(known.number, question);
            }
            keeps
        });
    }

    /// A number of a file that is released may only go on for a file at the same address that can have come to its slots
    /// without being opened there, or whose open was not told: and then nothing is certain of its opening.
    fn check_taken_over(
        &self,
        left: &BTreeMap<Id, &ExpectedFile>,
        unclaimed: &BTreeMap<u64, &Shown<'_>>,
        found: &mut Vec<String>,
    ) {
        for (number, is) in unclaimed {
            let mut alike = left.values().filter(|file| file.traits() == is.traits());
            let since = match self.retired.get(number) {
                Some(since) => *since,
                // Which file this was could not be told; if it is an old one, it may well be that still.
                None if self.shown.0.contains(number) && alike.clone().all(|file| file.fresh) => {
                    self.question
                }
                None => continue,
            };
            let may = since == self.question
                && !is.file.opened_exact
                && alike.any(|file| file.fresh && (!file.unmoved || self.may_be_untold()));
            if !may {
                found.push(format!(
                    "file #{number} was released; now {:?} goes by its number{}",
                    is.traits(),
                    if is.file.opened_exact { ", with an exact time" } else { "" }
                ));
            }
        }
    }

    /// What is exact must be right; what is likely must be likely.
    fn check_openers(
        &mut self,
        expected: &Expected,
        shown: &BTreeMap<u64, Shown<'_>>,
        found: &mut Vec<String>,
    ) {
        for (id, Known { number, taken_over }) in &self.known {
            let (Some(should), Some(is)) = (expected.files.get(id), shown.get(number)) else { continue };
            let Some(opener) = &is.file.opener else {
                self.openers.2 += 1;
                continue;
            };
            let (from, to) = (should.opened.0 - CLOCKS_DIFFER, should.opened.1 + CLOCKS_DIFFER);
            let opened_at = is.file.opened_at.as_deref().and_then(moment::parse);
            let in_time = opened_at.is_some_and(|at| (from..=to).contains(&at));
            if is.file.opened_exact {
                self.openers.0 += 1;
                if opener.pid != should.opener || !in_time {
                    found.push(format!(
                        "file #{number} was opened by {} at {opened_at:?}, exactly; should be {} at {:?}",
                        opener.pid, should.opener, should.opened
                    ));
                }
            } else {
                self.openers.1 += 1;
                if opener.pid != should.opener && !should.likely.contains(&opener.pid) && !taken_over {
                    found.push(format!(
                        "file #{number} was opened by {}, as is likely; should be {} or one of {:?}",
                        opener.pid, should.opener, should.likely
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{HeldFile, Opener};

    /// A file of process 10, opened by it in the first second of 1970.
    fn should() -> ExpectedFile {
        ExpectedFile {
            device: "nvidia0".to_owned(),
            references: 1,
            pids: BTreeSet::from([10]),
            opener: 10,
            opened: (500, 500),
            fresh: true,
            unmoved: true,
            ..ExpectedFile::default()
        }
    }

    fn is(id: u64, opener: u32, opened_exact: bool) -> HeldFile {
        let opener = Opener { pid: opener, comm: String::new(), cmdline: String::new(), alive: true };
        HeldFile {
            id,
            device: "nvidia0".to_owned(),
            state: "open".to_owned(),
            references: Some(1),
            unexplained: 0,
            since: None,
            opened_at: Some("1970-01-01T00:00:00.500Z".to_owned()),
            opened_exact,
            opener: Some(opener),
        }
    }

    /// What is wrong when this is shown of these files: (model's number, what it should be).
    fn wrong(numbers: &mut Numbers, files: &[(Id, ExpectedFile)], shown: &HeldFile) -> Vec<String> {
        numbers.next_question();
        let expected = Expected { files: files.iter().cloned().collect(), ..Expected::default() };
        let shown = Shown { file: shown, pids: BTreeSet::from([10]) };
        let mut found = Vec::new();
        numbers.compare(&expected, &BTreeMap::from([(shown.file.id, shown)]), &mut found);
        found
    }

    #[test]
    fn a_file_keeps_its_number_unless_it_looks_as_if_it_had_been_replaced() {
        let mut numbers = Numbers::default();
        let file = |stays, reopened| [(1, ExpectedFile { stays, reopened, fresh: false, ..should() })];
        assert_eq!(wrong(&mut numbers, &file(true, false), &is(7, 10, true)), [""; 0]);
        assert_ne!(wrong(&mut numbers.clone(), &file(true, true), &is(8, 10, false)), [""; 0]);
        assert_ne!(wrong(&mut numbers.clone(), &file(false, false), &is(8, 10, false)), [""; 0]);
        assert_eq!(wrong(&mut numbers, &file(false, true), &is(8, 10, false)), [""; 0]);
    }

    #[test]
    fn the_number_of_a_released_file_goes_on_only_for_one_that_was_moved_to_where_it_is() {
        let mut numbers = Numbers::default();
        assert_eq!(wrong(&mut numbers, &[(1, should())], &is(7, 10, true)), [""; 0]);
        let moved = || ExpectedFile { unmoved: false, ..should() };
        assert_ne!(wrong(&mut numbers.clone(), &[(2, should())], &is(7, 10, false)), [""; 0]);
        assert_ne!(wrong(&mut numbers.clone(), &[(2, moved())], &is(7, 10, true)), [""; 0], "not exactly");
        let mut later = numbers.clone();
        wrong(&mut later, &[(3, should())], &is(8, 10, true));
        assert_ne!(wrong(&mut later, &[(2, moved())], &is(7, 10, false)), [""; 0], "not for ever");
        assert_eq!(wrong(&mut numbers, &[(2, moved())], &is(7, 10, false)), [""; 0]);
    }

    #[test]
    fn it_goes_on_for_one_that_was_opened_there_only_where_opens_were_counted_and_not_told() {
        let mut numbers = Numbers::default();
        assert_eq!(wrong(&mut numbers, &[(1, should())], &is(7, 10, true)), [""; 0]);
        numbers.note_untold(5);
        assert_eq!(wrong(&mut numbers.clone(), &[(2, should())], &is(7, 10, false)), [""; 0]);
        assert_ne!(wrong(&mut numbers.clone(), &[(2, should())], &is(7, 10, true)), [""; 0], "not exactly");
        // Those that are known for long are not of these opens.
        let mut later = numbers.clone();
        later.note_untold(5);
        wrong(&mut later, &[(1, ExpectedFile { fresh: false, stays: true, ..should() })], &is(7, 10, true));
        later.note_untold(5);
        wrong(&mut later, &[(1, ExpectedFile { fresh: false, stays: true, ..should() })], &is(7, 10, true));
        later.note_untold(5);
        assert_ne!(wrong(&mut later, &[(2, should())], &is(7, 10, false)), [""; 0]);
    }

    #[test]
    fn an_exact_opening_must_be_right_and_a_likely_one_likely() {
        let ask = |should: ExpectedFile, is: HeldFile| wrong(&mut Numbers::default(), &[(1, should)], &is);
        assert_ne!(ask(should(), is(7, 20, true)), [""; 0]);
        assert_ne!(ask(ExpectedFile { opened: (5_000, 5_000), ..should() }, is(7, 10, true)), [""; 0]);
        assert_ne!(ask(should(), is(7, 20, false)), [""; 0]);
        let likely = BTreeSet::from([20]);
        assert_eq!(ask(ExpectedFile { likely, ..should() }, is(7, 20, false)), [""; 0]);
    }
}
