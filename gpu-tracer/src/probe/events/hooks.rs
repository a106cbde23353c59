//! The hooks, and attaching them.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, OwnedFd},
};

use aya::{
    Ebpf,
    programs::{CgroupDevice, ProgramError, RawTracePoint},
};
use gpu_tracer_common::events::DESCRIPTORS_WITHOUT_LOOP;

use super::{cgroup, sys};
use crate::kernel::{Answer, Features};

// As one of the limits below says.
const _: () = assert!(DESCRIPTORS_WITHOUT_LOOP == 16_384);

/// Where a program is attached.
enum Place {
    /// The root of the cgroup v2 hierarchy.
    Cgroup,
    /// A tracepoint.
    Tracepoint(&'static CStr),
}

/// One hook.
pub(super) struct Hook {
    /// Name for people.
    pub(super) name: &'static str,
    /// Programs for it, best first, with what is to be said if it is taken.
    programs: &'static [(&'static str, Option<Limit>)],
    place: Place,
    /// Only where every system call of the host is to be followed.
    of_calls: bool,
}

/// What a program does not see.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// Whenever there is something that it does not see, that is counted as lost.
    Counted(&'static str),
    /// Nobody knows when.
    Silent(&'static str),
}

impl Hook {
    /// Is it wanted? `calls`: whether every system call of the host is to be followed.
    pub(super) fn is_asked_for(&self, calls: bool) -> bool {
        calls || !self.of_calls
    }

    /// Its programs, as names of their links in a pin directory. BPF file systems allow no dots.
    pub(super) fn pin_names(&self) -> impl Iterator<Item = String> {
        self.programs.iter().map(|(program, _)| format!("link-{program}"))
    }

    /// What is to be said although it works, and whether it sees less than it counts.
    fn remark(&self, program: usize, features: &Features) -> (Option<String>, bool) {
        match self.place {
            Place::Cgroup => {
                let remark = cgroup::remark(features);
                let blind = remark.is_some();
                (remark, blind)
            }
            Place::Tracepoint(_) => match self.programs[program].1 {
                None => (None, false),
                Some(Limit::Counted(remark)) => (Some(remark.to_owned()), false),
                Some(Limit::Silent(remark)) => (Some(remark.to_owned()), true),
            },
        }
    }
}

const fn tracepoint(
    name: &'static str,
    place: &'static CStr,
    programs: &'static [(&'static str, Option<Limit>)],
) -> Hook {
    Hook { name, programs, place: Place::Tracepoint(place), of_calls: false }
}

/// `sys_exit` is there first: what is noted when a call is entered is then told when it returns.
const fn of_calls(
    name: &'static str,
    place: &'static CStr,
    programs: &'static [(&'static str, Option<Limit>)],
) -> Hook {
    Hook { name, programs, place: Place::Tracepoint(place), of_calls: true }
}

/// All hooks. The order is that of attaching: first what adds to the set of tracked processes.
pub(super) static HOOKS: [Hook; 12] = [
    Hook {
        name: "cgroup/dev",
        programs: &[
            ("on_touch", None),
            ("on_touch_unrolled", None),
            (
                "on_touch_only",
                Some(Limit::Silent(
                    "opens are seen, but not as which file: who opened what is inferred from descriptors",
                )),
            ),
        ],
        place: Place::Cgroup,
        of_calls: false,
    },
    tracepoint("sched_process_fork", c"sched_process_fork", &[("on_fork", None)]),
    tracepoint("sched_process_exec", c"sched_process_exec", &[("on_exec", None)]),
    tracepoint(
        "sched_process_exit",
        c"sched_process_exit",
        &[
            ("on_exit", None),
            (
                "on_exit_in_steps",
                Some(Limit::Counted(
                    "of exiting tasks the first 16,384 descriptors are seen: more needs Linux 5.17",
                )),
            ),
            (
                "on_exit_only",
                Some(Limit::Silent("exiting tasks are seen, but not what they hold: that needs Linux 5.17")),
            ),
        ],
    ),
    tracepoint("sched_process_free", c"sched_process_free", &[("on_free", None)]),
    tracepoint("task_rename", c"task_rename", &[("on_rename", None)]),
    tracepoint("signal_generate", c"signal_generate", &[("on_signal", None)]),
    tracepoint("oom:mark_victim", c"mark_victim", &[("on_victim", None)]),
    tracepoint("module:module_load", c"module_load", &[("on_module_load", None)]),
    tracepoint("module:module_free", c"module_free", &[("on_module_free", None)]),
    of_calls("sys_exit", c"sys_exit", &[("on_return", None)]),
    of_calls("sys_enter", c"sys_enter", &[("on_call", None)]),
];

/// What became of one hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookReport {
    /// Which: `cgroup/dev`, `sched_process_exit`, ...
    pub hook: &'static str,
    /// Does it work?
    pub works: Answer,
    /// What else is to be said: why this kernel does not have it, or what it cannot see.
    pub detail: Option<String>,
    /// Does it miss things that are not counted as lost?
    pub blind: bool,
}

/// A hook that works.
#[derive(Debug)]
pub(super) struct Attached {
    /// Index into [`HOOKS`].
    pub(super) hook: usize,
    /// Index into its programs.
    pub(super) program: usize,
    pub(super) link: OwnedFd,
    /// The program behind it, where it could be found.
    pub(super) loaded: Option<OwnedFd>,
}

impl Attached {
    pub(super) fn new(hook: usize, program: usize, link: OwnedFd) -> Self {
        let loaded = sys::program_of(link.as_fd()).ok();
        Self { hook, program, link, loaded }
    }

    pub(super) fn report(&self, features: &Features) -> HookReport {
        let hook = &HOOKS[self.hook];
        let (detail, blind) = hook.remark(self.program, features);
        HookReport { hook: hook.name, works: Answer::Yes, detail, blind }
    }
}

/// Loads and attaches those that are wanted; those that the kernel refuses are only reported.
pub(super) fn attach(ebpf: &mut Ebpf, features: &Features, calls: bool) -> (Vec<Attached>, Vec<HookReport>) {
    let mut attached = Vec::new();
    let mut reports = Vec::new();
    for (index, hook) in HOOKS.iter().enumerate().filter(|(_, hook)| hook.is_asked_for(calls)) {
        match attach_one(ebpf, hook, features) {
            Ok((program, link)) => {
                let one = Attached::new(index, program, link);
                reports.push(one.report(features));
                attached.push(one);
            }
            Err(refusal) => {
                let (works, detail) = refusal.explain();
                reports.push(HookReport { hook: hook.name, works, detail, blind: true });
            }
        }
    }
    (attached, reports)
}

/// Why a hook could not be attached.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the BPF object has no program `{0}`; rebuild it with `cargo xtask build-ebpf`")]
    NoProgram(&'static str),
    #[error("cannot load BPF program `{0}`: {chain}", chain = crate::probe::chain(.1))]
    Load(&'static str, #[source] ProgramError),
    #[error("cannot open the root of the cgroup v2 hierarchy: {0}")]
    Cgroup(#[source] io::Error),
    #[error("cannot attach BPF program `{0}`: {1}")]
    Attach(&'static str, #[source] io::Error),
}

impl Refusal {
    fn explain(&self) -> (Answer, Option<String>) {
        match crate::probe::errno(self) {
            Some(libc::ENOENT) if matches!(self, Self::Attach(..)) => {
                (Answer::No, Some("this kernel has no such tracepoint".to_owned()))
            }
            Some(libc::EPERM) => (Answer::Denied(self.to_string()), None),
            _ => (Answer::No, Some(self.to_string())),
        }
    }
}

/// The first of its programs that can be attached.
fn attach_one(ebpf: &mut Ebpf, hook: &Hook, features: &Features) -> Result<(usize, OwnedFd), Refusal> {
    let mut refusal = None;
    for (index, (program, _)) in hook.programs.iter().enumerate() {
        let attached = match &hook.place {
            Place::Cgroup => attach_to_cgroup(ebpf, program, features),
            Place::Tracepoint(name) => attach_to_tracepoint(ebpf, program, name),
        };
        match attached {
            Ok(link) => return Ok((index, link)),
            Err(error) => {
                tracing::debug!(program, ?error, "refused");
                // The first refusal is about the program that ought to work.
                refusal = refusal.or(Some(error));
            }
        }
    }
    Err(refusal.unwrap_or(Refusal::NoProgram(hook.name)))
}

fn attach_to_tracepoint(ebpf: &mut Ebpf, name: &'static str, tracepoint: &CStr) -> Result<OwnedFd, Refusal> {
    let load = |source| Refusal::Load(name, source);
    let program: &mut RawTracePoint =
        ebpf.program_mut(name).ok_or(Refusal::NoProgram(name))?.try_into().map_err(load)?;
    program.load().map_err(load)?;
    sys::tracepoint_link(program.fd().map_err(load)?.as_fd(), tracepoint)
        .map_err(|source| Refusal::Attach(name, source))
}

fn attach_to_cgroup(ebpf: &mut Ebpf, name: &'static str, features: &Features) -> Result<OwnedFd, Refusal> {
    let load = |source| Refusal::Load(name, source);
    let root = cgroup::open(features).map_err(Refusal::Cgroup)?;
    let program: &mut CgroupDevice =
        ebpf.program_mut(name).ok_or(Refusal::NoProgram(name))?.try_into().map_err(load)?;
    program.load().map_err(load)?;
    sys::cgroup_link(program.fd().map_err(load)?.as_fd(), root.as_fd())
        .map_err(|source| Refusal::Attach(name, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_a_part_of_a_table_is_counted_and_none_at_all_is_not() {
        let exit = HOOKS.iter().find(|hook| hook.name == "sched_process_exit").unwrap();
        let blind = exit.programs.iter().map(|(_, limit)| matches!(limit, Some(Limit::Silent(_))));
        assert_eq!(blind.collect::<Vec<_>>(), [false, false, true]);
    }
}
