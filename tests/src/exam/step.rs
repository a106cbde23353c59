//! What the exam does, one step at a time.

use super::random::Random;

/// A kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Open a device, close-on-exec or not.
    Open,
    /// `dup(2)` of a device or socket.
    Dup,
    /// `dup2(2)` onto another known descriptor or onto a high number.
    Dup2,
    /// Close any known descriptor.
    Close,
    /// Map one page or three.
    Map,
    /// Unmap a mapping.
    Unmap,
    /// Unmap the middle of three pages: one mapping becomes two.
    Split,
    /// `mremap(2)` to another length, free to move.
    Remap,
    /// A connected pair of unix sockets.
    SocketPair,
    /// Send one to three devices through a socket (`SCM_RIGHTS`).
    Send,
    /// Receive a message with its devices.
    Receive,
    /// Receive a message and let the kernel drop its devices.
    Drop,
    /// `pidfd_getfd(2)` of another process's device.
    Take,
    /// `fork(2)`.
    Fork,
    /// A process that shares the fd table (`CLONE_FILES`).
    ShareTable,
    /// A process that shares the memory (`CLONE_VM`), and the fd table or not.
    ShareMemory,
    /// A thread.
    Thread,
    /// `unshare(CLONE_FILES)`.
    Unshare,
    /// Replace the program.
    Exec,
    /// Take another name.
    Rename,
    /// `chroot(2)` to where the devices are.
    ChangeRoot,
    /// A network namespace of its own, or that of another task (`setns(2)`).
    Namespace,
    /// End one thread, or the leader alone.
    EndThread,
    /// End a process by `exit_group`.
    Exit,
    /// End a process by SIGKILL.
    Kill,
}

/// How often each kind comes, out of the sum of all.
const WEIGHTS: &[(Kind, u64)] = &[
    (Kind::Open, 16),
    (Kind::Dup, 8),
    (Kind::Dup2, 6),
    (Kind::Close, 20),
    (Kind::Map, 10),
    (Kind::Unmap, 7),
    (Kind::Split, 2),
    (Kind::Remap, 2),
    (Kind::SocketPair, 3),
    (Kind::Send, 8),
    (Kind::Receive, 4),
    (Kind::Drop, 2),
    (Kind::Take, 2),
    (Kind::Fork, 3),
    (Kind::ShareTable, 1),
    (Kind::ShareMemory, 1),
    (Kind::Thread, 3),
    (Kind::Unshare, 1),
    (Kind::Exec, 1),
    (Kind::Rename, 1),
    (Kind::ChangeRoot, 1),
    (Kind::Namespace, 1),
    (Kind::EndThread, 2),
    (Kind::Exit, 1),
    (Kind::Kill, 2),
];

/// One step: what, and numbers that choose by whom and on what.
///
/// The numbers are taken modulo the choices that there are when the step is carried out; where there are none, nothing
/// happens. So every part of a sequence is a sequence that can be carried out, which is what makes it possible to search
/// for the shortest one that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What.
    pub kind: Kind,
    /// By whom, on what, and how.
    pub choice: [u64; 3],
}

impl Step {
    /// The next step of a random sequence.
    pub fn random(random: &mut Random) -> Self {
        let sum: u64 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut left = random.number() % sum;
        let mut kind = Kind::Open;
        for (candidate, weight) in WEIGHTS {
            if left < *weight {
                kind = *candidate;
                break;
            }
            left -= weight;
        }
        Self { kind, choice: [random.number(), random.number(), random.number()] }
    }
}

/// Picks one of a list.
#[must_use]
pub fn pick<T: Copy>(list: &[T], choice: u64) -> Option<T> {
    list.get(usize::try_from(choice % list.len().max(1) as u64).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_steps_and_in_the_long_run_every_kind() {
        let steps = |seed| {
            let mut random = Random::new(seed);
            (0..5_000).map(|_| Step::random(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
        for (kind, _) in WEIGHTS {
            assert!(steps(7).iter().any(|step| step.kind == *kind), "{kind:?} never comes");
        }
    }

    #[test]
    fn nothing_is_picked_from_nothing() {
        assert_eq!(pick::<u8>(&[], 3), None);
        assert_eq!(pick(&[1, 2, 3], 4), Some(2));
    }
}
