//! Hooks at the driver's own functions: its open, its release, and what it leaves to kernel threads of its own.
//!
//! They are kprobes, so they come and go with the driver's modules: [`DriverHooks::refresh`] compares what is attached with
//! what is loaded. A module is known by the inode of its directory in sysfs, which another load of it does not have again.

mod attaching;
mod detaching;
mod functions;
mod kprobe;
mod pinned;
mod symbols;

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    time::Instant,
};

use aya::{
    Ebpf,
    programs::{KProbe, ProgramError},
};

use attaching::{Attaching, usable};
use detaching::Detaching;
use functions::{FUNCTIONS, Function, INSTEAD, PROGRAMS, Part};
use kprobe::{Pmu, Probe};
use pinned::Pinned;
use symbols::Symbols;

use super::{hooks::HookReport, sys};
use crate::kernel::{Answer, Features};

/// What is looked at first, and where functions are that some builds keep elsewhere.
const MAIN_MODULE: &str = "nvidia";

/// How far the driver's own functions can be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverState {
    /// Nobody asked for it.
    NotAsked,
    /// They cannot: this is why, and what to do.
    Impossible(String),
    /// There is no driver, so nothing to follow; hooks are attached when it is loaded.
    NotLoaded,
    /// Some of the essential hooks are missing.
    InPart(String),
    /// All of the essential ones work.
    Complete,
}

/// A module as it is loaded now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loaded {
    name: &'static str,
    /// Inode of its directory in sysfs.
    mark: u64,
}

#[derive(Debug)]
struct Attached {
    /// Index into [`FUNCTIONS`].
    function: usize,
    module: Loaded,
    /// Programs at its entry and its return.
    programs: (&'static str, Option<&'static str>),
    /// At its return first: no call is then seen to begin and not to end.
    probes: Vec<Probe>,
    remark: Option<String>,
}

/// A function that cannot be hooked in the module that is loaded.
#[derive(Debug)]
struct Refused {
    function: usize,
    module: Loaded,
    works: Answer,
    why: String,
}

/// The hooks at the driver's functions.
#[derive(Debug)]
pub(super) struct DriverHooks {
    root: PathBuf,
    /// `None`: they cannot be attached, and `impossible` says why.
    pmu: Option<Pmu>,
    programs: Vec<(&'static str, OwnedFd)>,
    impossible: Option<String>,
    asked: bool,
    attached: Vec<Attached>,
    refused: Vec<Refused>,
    attaching: Attaching,
    detaching: Detaching,
    unfinished: bool,
    pinned: Option<Pinned>,
    /// By probes that are not there any more.
    missed: u64,
    reports: Vec<HookReport>,
}

impl DriverHooks {
    /// None.
    pub(super) fn not_asked() -> Self {
        Self::new(None, Vec::new(), None, false)
    }

    fn new(
        pmu: Option<Pmu>,
        programs: Vec<(&'static str, OwnedFd)>,
        impossible: Option<String>,
        asked: bool,
    ) -> Self {
        let (attached, refused) = (Vec::new(), Vec::new());
        let root = PathBuf::from("/");
        let mut hooks = Self {
            root,
            pmu,
            programs,
            impossible,
            asked,
            attached,
            refused,
            attaching: Attaching::default(),
            detaching: Detaching::default(),
            unfinished: false,
            pinned: None,
            missed: 0,
            reports: Vec::new(),
        };
        hooks.report();
        hooks
    }

    /// Loads the programs. What the kernel does not have or refuses is remembered and said.
    pub(super) fn load(ebpf: &mut Ebpf, features: &Features) -> Self {
        match possible("/".as_ref(), features) {
            Err(why) => Self::new(None, Vec::new(), Some(why), true),
            Ok(pmu) => match PROGRAMS.iter().map(|name| load_one(ebpf, name)).collect() {
                Ok(programs) => Self::new(Some(pmu), programs, None, true),
                Err(why) => Self::new(None, Vec::new(), Some(why), true),
            },
        }
    }

    /// Takes over what an earlier process left in `directory`.
    pub(super) fn resume(directory: &Path, features: &Features) -> Self {
        let programs = |pmu| {
            let open = |name: &&'static str| {
                let path = directory.join(pinned::program(name));
                sys::open_pin(&path).map(|program| (*name, program))
            };
            let programs: io::Result<Vec<_>> = PROGRAMS.iter().map(open).collect();
            programs.map(|programs| (pmu, programs)).map_err(|error| {
                format!("the programs of the hooks that were left cannot be used: {error}; `gpu-tracer run --unpin` takes them away")
            })
        };
        match possible("/".as_ref(), features).and_then(programs) {
            Err(why) => Self::new(None, Vec::new(), Some(why), true),
            Ok((pmu, programs)) => {
                let mut hooks = Self::new(Some(pmu), programs, None, true);
                hooks.take_kept(directory);
                hooks
            }
        }
    }

    /// Names of the programs in a pin directory, and the programs.
    pub(super) fn programs(&self) -> impl Iterator<Item = (String, BorrowedFd<'_>)> {
        self.programs.iter().map(|(name, program)| (pinned::program(name), program.as_fd()))
    }

    /// From now on hooks get names in this directory, where the kernel can do that.
    pub(super) fn keep_in(&mut self, directory: &Path) {
        let pinned = Pinned::new(directory);
        for attached in &self.attached {
            pinned.keep(attached);
        }
        self.pinned = Some(pinned);
    }

    /// Takes the hooks that an earlier process left and that are of the modules that are loaded now.
    fn take_kept(&mut self, directory: &Path) {
        let pinned = Pinned::new(directory);
        for (index, function) in FUNCTIONS.iter().enumerate() {
            let deferrals = self.sees_deferrals(function.module());
            let programs = function.programs(deferrals);
            let kept = self.home(function).and_then(|module| {
                let probes = pinned.reopen(function, programs, module)?;
                Some(Attached { function: index, module, programs, probes, remark: None })
            });
            self.attached.extend(kept);
        }
        pinned.remove_all_but(&self.attached);
        self.pinned = Some(pinned);
        self.report();
    }

    /// Was every hook that is there now there all the time?
    pub(super) fn is_complete(&self) -> bool {
        self.state() == DriverState::Complete
    }

    /// Attaches hooks to what has been loaded, and forgets those of what has been unloaded. Says whether the main module is
    /// not the one that it was, so that no call that was in progress can be so still.
    pub(super) fn refresh(&mut self) -> bool {
        let gone = |hooks: &Self, module: Loaded| hooks.loaded(module.name) != Some(module);
        let (stale, living): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.attached).into_iter().partition(|attached| gone(self, attached.module));
        self.attached = living;
        for attached in &stale {
            self.missed += attached.probes.iter().map(Probe::missed).sum::<u64>();
            if let Some(pinned) = &self.pinned {
                pinned.remove(attached);
            }
        }
        let main_is_gone = stale.iter().any(|attached| attached.module.name == MAIN_MODULE);
        if !stale.is_empty() {
            self.detaching.not_now(Instant::now());
            self.detaching.put(stale.into_iter().flat_map(|attached| attached.probes));
        }
        // A module may have come that is the place to look now.
        let mut refused = std::mem::take(&mut self.refused);
        refused.retain(|refused| self.home(&FUNCTIONS[refused.function]) == Some(refused.module));
        self.refused = refused;
        if let Some(pmu) = self.pmu {
            self.attach_missing(pmu);
        }
        if self.unfinished {
            self.detaching.not_now(Instant::now());
        }
        self.report();
        main_is_gone
    }

    /// Is there something left for the next [`DriverHooks::refresh`], which should come soon?
    pub(super) fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// The loaded module that has a function, if any may.
    fn home(&self, function: &Function) -> Option<Loaded> {
        let own = self.loaded(function.module());
        own.or_else(|| self.loaded(MAIN_MODULE).filter(|_| !function.essential))
    }

    /// Not one that is being unloaded: there is nothing to be hooked in it, nor anybody inside.
    fn loaded(&self, name: &'static str) -> Option<Loaded> {
        let directory = self.root.join("sys/module").join(name);
        let mark = fs::metadata(&directory).ok()?.ino();
        // What is built into the kernel has no such file.
        let is_going = fs::read(directory.join("initstate")).is_ok_and(|state| state.starts_with(b"going"));
        (!is_going).then_some(Loaded { name, mark })
    }

    /// Is everything attached that tells a deferred release of this module from one that is done?
    fn sees_deferrals(&self, module: &str) -> bool {
        let works = |part: Part| {
            self.attached.iter().any(|attached| {
                let function = &FUNCTIONS[attached.function];
                function.part == part && function.module() == module
            })
        };
        works(Part::InPlace) && works(Part::Deferred)
    }

    /// What has been missed by kprobes, as far as the kernel tells.
    pub(super) fn missed(&self) -> u64 {
        let probes = self.attached.iter().flat_map(|attached| &attached.probes);
        let recursions =
            self.programs.iter().filter_map(|(_, program)| sys::times_missed(program.as_fd()).ok());
        self.missed + probes.map(Probe::missed).sum::<u64>() + recursions.sum::<u64>()
    }

    /// What became of each.
    pub(super) fn reports(&self) -> &[HookReport] {
        &self.reports
    }

    fn report(&mut self) {
        let functions = if self.asked { &FUNCTIONS[..] } else { &[] };
        self.reports =
            functions.iter().enumerate().map(|(index, function)| self.report_of(index, function)).collect();
    }

    fn report_of(&self, index: usize, function: &Function) -> HookReport {
        let (works, detail) = if let Some(why) = &self.impossible {
            (Answer::No, Some(why.clone()))
        } else if let Some(attached) = self.attached.iter().find(|attached| attached.function == index) {
            (Answer::Yes, self.remark(attached))
        } else if let Some(refused) = self.refused.iter().find(|refused| refused.function == index) {
            (refused.works.clone(), Some(refused.why.clone()))
        } else if self.home(function).is_some() {
            (Answer::No, Some("it is not hooked yet".to_owned()))
        } else {
            let module = function.module();
            (Answer::No, Some(format!("the module {module} is not loaded; it is hooked when it is")))
        };
        HookReport { hook: function.name, blind: works != Answer::Yes, works, detail }
    }

    fn remark(&self, attached: &Attached) -> Option<String> {
        let function = &FUNCTIONS[attached.function];
        let could = function.programs(true);
        let blind = (attached.programs != could).then(|| {
            "a release that the driver leaves to a kernel thread counts as done: what tells of that cannot be hooked"
                .to_owned()
        });
        blind.or_else(|| attached.remark.clone())
    }

    /// How far the driver can be followed.
    pub(super) fn state(&self) -> DriverState {
        if !self.asked {
            return DriverState::NotAsked;
        }
        if let Some(why) = &self.impossible {
            return DriverState::Impossible(why.clone());
        }
        if self.loaded(MAIN_MODULE).is_none() {
            return DriverState::NotLoaded;
        }
        let reports = FUNCTIONS.iter().zip(&self.reports);
        let mut missing = reports
            .filter(|(function, report)| {
                function.essential && !report.works.is_yes() && self.loaded(function.module()).is_some()
            })
            .map(|(_, report)| format!("{}: {}", report.hook, report.detail.as_deref().unwrap_or("refused")));
        missing.next().map_or(DriverState::Complete, DriverState::InPart)
    }
}

/// What would become of the hooks, without attaching any.
#[must_use]
pub fn survey(root: &Path, features: &Features) -> (DriverState, Vec<HookReport>) {
    let mut hooks = match possible(root, features) {
        Err(why) => DriverHooks::new(None, Vec::new(), Some(why), true),
        Ok(_) => DriverHooks::new(None, Vec::new(), None, true),
    };
    hooks.root = root.to_owned();
    let symbols = Symbols::read(root);
    for (index, function) in FUNCTIONS.iter().enumerate() {
        if let Some(module) = hooks.home(function) {
            match usable(function, &symbols.look_up(module.name, function.symbol())) {
                Ok(remark) => {
                    let programs = function.programs(hooks.sees_deferrals(function.module()));
                    let probes = Vec::new();
                    hooks.attached.push(Attached { function: index, module, programs, probes, remark });
                }
                Err(why) => hooks.refused.push(Refused { function: index, module, works: Answer::No, why }),
            }
        }
    }
    hooks.report();
    (hooks.state(), hooks.reports)
}

/// Can functions of the driver be hooked at all? If not, why not and what to do.
fn possible(root: &Path, features: &Features) -> Result<Pmu, String> {
    if let Answer::Denied(why) = &features.kprobes {
        return Err(why.clone());
    }
    Pmu::read(root).ok_or_else(|| {
        "this kernel has no kprobes (CONFIG_KPROBE_EVENTS); distribution kernels have them".to_owned()
    })
}

/// Loads a program, or what does the same on kernels that refuse it.
fn load_one(ebpf: &mut Ebpf, name: &'static str) -> Result<(&'static str, OwnedFd), String> {
    let other = INSTEAD.iter().find(|(refused, _)| *refused == name);
    let loaded = load_as_it_is(ebpf, name);
    let descriptor = match (loaded, other) {
        // The first refusal is about the program that ought to work.
        (Err(refusal), Some((_, other))) => load_as_it_is(ebpf, other).map_err(|_| refusal),
        (loaded, _) => loaded,
    };
    descriptor.map(|descriptor| (name, descriptor))
}

fn load_as_it_is(ebpf: &mut Ebpf, name: &str) -> Result<OwnedFd, String> {
    let refused =
        |error: ProgramError| format!("cannot load BPF program `{name}`: {}", crate::probe::chain(&error));
    let program = ebpf.program_mut(name).ok_or_else(|| {
        format!("the BPF object has no program `{name}`; rebuild it with `cargo xtask build-ebpf`")
    })?;
    let program: &mut KProbe = program.try_into().map_err(refused)?;
    program.load().map_err(refused)?;
    program.fd().map_err(refused)?.as_fd().try_clone_to_owned().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_being_unloaded_is_not_loaded() {
        let root = tempfile::tempdir().unwrap();
        let mut hooks = DriverHooks::not_asked();
        hooks.root = root.path().to_owned();
        assert_eq!(hooks.loaded("nvidia"), None);
        let module = root.path().join("sys/module/nvidia");
        fs::create_dir_all(&module).unwrap();
        assert!(hooks.loaded("nvidia").is_some(), "built in");
        for (state, is_loaded) in [("coming\n", true), ("live\n", true), ("going\n", false)] {
            fs::write(module.join("initstate"), state).unwrap();
            assert_eq!(hooks.loaded("nvidia").is_some(), is_loaded, "{state}");
        }
    }
}
