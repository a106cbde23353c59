//! Which of the iterator programs this kernel takes, for each thing that is looked for.

use std::os::fd::{AsFd, OwnedFd};

use aya::{Btf as AyaBtf, Ebpf, Endianness, programs::Iter};
use gpu_tracer_common::layout::{ABSENT, KernelLayout};

use super::{ProbeError, sys};
use crate::kernel::{KernelVersion, btf::Btf};

/// What the kernel's iterators are in its types: functions.
const TARGETS: [&str; 2] = ["bpf_iter_task", "bpf_iter_unix"];

/// The targets of [`link`].
pub(super) fn targets(btf: &Btf) -> Result<AyaBtf, ProbeError> {
    let decoded = AyaBtf::parse(&btf.with_only(&TARGETS), Endianness::default());
    decoded.map_err(|error| ProbeError::Load(error.into()))
}

/// Can programs loop (`bpf_loop`, Linux 5.17, and earlier kernels of distributions that say so in their types)? Where they cannot, to
/// have those that do refused would take as long as to load all others: they are followed up to the call.
pub(super) fn can_loop(btf: &Btf) -> bool {
    KernelVersion::running().at_least(5, 17) || btf.has_function("bpf_loop")
}

/// How mappings are found: without a lock and without a reference.
///
/// Never by `iter/task_vma`. Before Linux 6.2 (7ff94f276f8e) it goes on with a task whose address space is gone by then,
/// which is the end of the kernel, or gives another address space's lock back than it took, which is the end of all who
/// share the first. From then on it holds the address space, so that it may be the one who takes it down and has the driver
/// release what was mapped.
#[derive(Debug)]
pub(super) enum Mappings {
    /// By the trees they are kept in (6.1+).
    Trees(OwnedFd),
    /// By the lists they are kept in (before 6.1).
    Lists(OwnedFd),
    /// Not at all, and why.
    Unseen(String),
}

impl Mappings {
    pub(super) fn load(ebpf: &mut Ebpf, kernel: &AyaBtf, layout: &KernelLayout) -> Self {
        if layout.mm_tree_root != ABSENT {
            link(ebpf, "iter_mm_trees", "task", kernel).map_or_else(Self::unseen, Self::Trees)
        } else if [layout.mm_list, layout.mm_highest_end, layout.vma_next].contains(&ABSENT) {
            Self::Unseen("this kernel keeps them neither in trees nor in lists".to_owned())
        } else {
            link(ebpf, "iter_mm_lists", "task", kernel).map_or_else(Self::unseen, Self::Lists)
        }
    }

    fn unseen(error: ProbeError) -> Self {
        Self::Unseen(error.to_string())
    }
}

/// How descriptors in flight are found.
#[derive(Debug)]
pub(super) enum Sockets {
    /// By `iter/unix`, in one network namespace after the other (5.17+), and where nobody can go by the tables that it lists (6.0+).
    Iterator(OwnedFd),
    /// By the kernel's table of all of them (before 6.0), whose chains are at these addresses when that has been learnt.
    Table(OwnedFd, Vec<u64>),
    /// Not at all, and why.
    Unseen(String),
}

impl Sockets {
    pub(super) fn load(ebpf: &mut Ebpf, kernel: &AyaBtf, can_loop: bool) -> Self {
        if can_loop {
            match link(ebpf, "iter_sockets", "unix", kernel) {
                Ok(link) => return Self::Iterator(link),
                Err(error) => tracing::debug!(?error, "unix sockets cannot be iterated over"),
            }
        }
        link(ebpf, "iter_socket_table", "task", kernel)
            .map_or_else(|error| Self::Unseen(error.to_string()), |link| Self::Table(link, Vec::new()))
    }
}

/// Loads a program over these elements; its link.
pub(super) fn link(
    ebpf: &mut Ebpf,
    program: &'static str,
    target: &str,
    kernel: &AyaBtf,
) -> Result<OwnedFd, ProbeError> {
    let refused = |source| ProbeError::Program { program, source };
    let iterator: &mut Iter =
        ebpf.program_mut(program).ok_or(ProbeError::Incompatible(program))?.try_into().map_err(refused)?;
    iterator.load(target, kernel).map_err(refused)?;
    Ok(sys::iterator_link(iterator.fd().map_err(refused)?.as_fd(), None)?)
}
