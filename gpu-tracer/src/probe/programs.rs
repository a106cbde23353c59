//! Which of the iterator programs this kernel takes, for each thing that is looked for.

use std::os::fd::{AsFd, OwnedFd};

use aya::{Btf as AyaBtf, Ebpf, Endianness, programs::Iter};
use gpu_tracer_common::layout::{ABSENT, KernelLayout};

use super::{ProbeError, sys};
use crate::kernel::btf::Btf;

/// What the kernel's iterators are in its types: functions.
const TARGETS: [&str; 4] = ["bpf_iter_task", "bpf_iter_task_file", "bpf_iter_task_vma", "bpf_iter_unix"];

/// The targets of [`link`].
pub(super) fn targets(btf: &Btf) -> Result<AyaBtf, ProbeError> {
    let decoded = AyaBtf::parse(&btf.with_only(&TARGETS), Endianness::default());
    decoded.map_err(|error| ProbeError::Load(error.into()))
}

/// How mappings are found.
#[derive(Debug)]
pub(super) enum Mappings {
    /// By the trees they are kept in (6.1+): without a lock, and quickly.
    Trees(OwnedFd),
    /// One by one, under the lock of their address space (5.12+).
    OneByOne(OwnedFd),
    /// By the lists they are kept in (before 6.1): without a lock.
    Lists(OwnedFd),
    /// Not at all, and why.
    Unseen(String),
}

impl Mappings {
    pub(super) fn load(ebpf: &mut Ebpf, kernel: &AyaBtf, layout: &KernelLayout) -> Self {
        if layout.mm_tree_root != ABSENT {
            match link(ebpf, "iter_mm_trees", "task", kernel) {
                Ok(link) => return Self::Trees(link),
                Err(error) => tracing::debug!(?error, "trees of mappings cannot be walked"),
            }
        }
        let one_by_one = link(ebpf, "iter_mappings", "task_vma", kernel)
            .or_else(|_| link(ebpf, "iter_mappings_only", "task_vma", kernel));
        let listed = [layout.mm_list, layout.mm_highest_end, layout.vma_next];
        if one_by_one.is_err() && !listed.contains(&ABSENT) {
            match link(ebpf, "iter_mm_lists", "task", kernel) {
                Ok(link) => return Self::Lists(link),
                Err(error) => tracing::debug!(?error, "lists of mappings cannot be walked"),
            }
        }
        one_by_one.map_or_else(|error| Self::Unseen(error.to_string()), Self::OneByOne)
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
    pub(super) fn load(ebpf: &mut Ebpf, kernel: &AyaBtf) -> Self {
        let refusal = match link(ebpf, "iter_sockets", "unix", kernel) {
            Ok(link) => return Self::Iterator(link),
            Err(error) => error.to_string(),
        };
        tracing::debug!(refusal, "unix sockets cannot be iterated over; falling back to their table");
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
