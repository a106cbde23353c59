//! Attaching what is not attached yet, the essential first: a driver that comes back is to be followed within a second, and the kernel
//! takes its time for each probe.
//!
//! Functions are named to the kernel. One that it does not find by its name may be there all the same, as a clone of the compiler's, or
//! under a name that several have. That the list of all symbols tells, which takes long to read, so that a thread does it; whatever
//! depends on such a function waits.

use std::{
    io,
    os::fd::AsFd,
    thread::{self, JoinHandle},
};

use super::{
    Attached, DriverHooks, FUNCTIONS, Loaded, Refused,
    functions::{Function, Part},
    kprobe::{Pmu, Probe, Target},
    symbols::{Found, Symbols},
};
use crate::kernel::Answer;

/// A function that the kernel does not find by its name.
#[derive(Debug)]
pub(super) struct Unplaced {
    pub(super) function: usize,
    pub(super) module: Loaded,
    error: io::Error,
}

/// The list of symbols, being read.
#[derive(Debug)]
pub(super) struct LookUp {
    /// Of these modules it is true.
    modules: Vec<Loaded>,
    symbols: JoinHandle<Symbols>,
}

/// What is attached together. The order matters: what tells that a release was not deferred must be there before releases are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Deferral,
    Essential,
    Other,
}

impl Stage {
    fn of(function: &Function) -> Self {
        match function.part {
            Part::InPlace | Part::Deferred => Self::Deferral,
            _ if function.essential => Self::Essential,
            _ => Self::Other,
        }
    }
}

/// Where a function was hooked.
type Placed = io::Result<Vec<Probe>>;

impl DriverHooks {
    /// Attaches to what can be had. The essential ones come first, and the others the next time if there were any of those.
    pub(super) fn attach_missing(&mut self, pmu: Pmu) {
        self.unfinished = false;
        for stage in [Stage::Deferral, Stage::Essential, Stage::Other] {
            let missing: Vec<(usize, Loaded)> = self.missing(stage).collect();
            let any = !missing.is_empty();
            for ((function, module), placed) in self.place_by_name(pmu, missing) {
                self.take_placed(function, module, placed);
            }
            if stage == Stage::Essential && any {
                self.unfinished = true;
                break;
            }
        }
        self.look_up(pmu);
    }

    /// Functions of a stage that are to be tried, and where they are.
    fn missing(&self, stage: Stage) -> impl Iterator<Item = (usize, Loaded)> {
        let functions =
            FUNCTIONS.iter().enumerate().filter(move |(_, function)| Stage::of(function) == stage);
        functions.filter_map(|(index, function)| {
            let module = self.home(function)?;
            let tried = self.attached.iter().any(|attached| attached.function == index)
                || self.refused.iter().any(|refused| (refused.function, refused.module) == (index, module))
                || self.unplaced.iter().any(|unplaced| unplaced.function == index);
            // How it is followed depends on what becomes of those.
            let must_wait = matches!(function.part, Part::Release(_))
                && self.unplaced.iter().any(|unplaced| {
                    let other = &FUNCTIONS[unplaced.function];
                    Stage::of(other) == Stage::Deferral && other.module() == function.module()
                });
            (!tried && !must_wait).then_some((index, module))
        })
    }

    /// All at once: most of the time is spent in waiting.
    fn place_by_name(&self, pmu: Pmu, missing: Vec<(usize, Loaded)>) -> Vec<((usize, Loaded), Placed)> {
        let place = |(index, module): (usize, Loaded)| {
            let function = &FUNCTIONS[index];
            let name = Target::Name(format!("{}:{}", module.name, function.symbol()));
            self.place(pmu, function, &name)
        };
        thread::scope(|scope| {
            let placing: Vec<_> = missing
                .iter()
                .map(|one| {
                    thread::Builder::new().name("attach".to_owned()).spawn_scoped(scope, move || place(*one))
                })
                .collect();
            let placed = placing.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has failed"))),
                Err(error) => Err(error),
            });
            missing.iter().copied().zip(placed).collect()
        })
    }

    fn place(&self, pmu: Pmu, function: &Function, target: &Target) -> Placed {
        let (begin, end) = function.programs(self.sees_deferrals(function.module()));
        let probe = |name: &str, at_return| {
            let program = self.programs.iter().find(|(known, _)| *known == name);
            let (_, program) = program.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            Probe::attach(pmu, program.as_fd(), target, at_return)
        };
        let at_return = end.map(|end| probe(end, true)).transpose()?;
        let at_entry = probe(begin, false)?;
        Ok(at_return.into_iter().chain([at_entry]).collect())
    }

    fn take_placed(&mut self, function: usize, module: Loaded, placed: Placed) {
        match placed {
            Ok(probes) => self.take_attached(function, module, probes, None),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                let works = Answer::Denied(format!("{error}; it takes root or CAP_PERFMON"));
                self.refused.push(Refused { function, module, works, why: error.to_string() });
            }
            Err(error) => self.unplaced.push(Unplaced { function, module, error }),
        }
    }

    fn take_attached(&mut self, function: usize, module: Loaded, probes: Vec<Probe>, remark: Option<String>) {
        let of = &FUNCTIONS[function];
        let programs = of.programs(self.sees_deferrals(of.module()));
        let attached = Attached { function, module, programs, probes, remark };
        if let Some(pinned) = &self.pinned {
            pinned.keep(&attached);
        }
        self.attached.push(attached);
    }

    /// Sees what has become of those that were not found by their names.
    fn look_up(&mut self, pmu: Pmu) {
        if self.unplaced.is_empty() {
            return;
        }
        self.unfinished = true;
        let Some(LookUp { modules, symbols }) =
            self.looked_up.take_if(|look_up| look_up.symbols.is_finished())
        else {
            if self.looked_up.is_none() {
                self.looked_up = self.begin_to_look_up();
            }
            return;
        };
        let symbols = symbols.join().unwrap_or_default();
        let unplaced = std::mem::take(&mut self.unplaced);
        let (known, later): (Vec<_>, Vec<_>) =
            unplaced.into_iter().partition(|unplaced| modules.contains(&unplaced.module));
        self.unplaced = later;
        for Unplaced { function, module, error } in known {
            match self.place_by_symbol(pmu, function, module, &symbols, &error) {
                Ok((probes, remark)) => self.take_attached(function, module, probes, remark),
                Err(why) => self.refused.push(Refused { function, module, works: Answer::No, why }),
            }
        }
    }

    fn begin_to_look_up(&self) -> Option<LookUp> {
        let mut modules: Vec<Loaded> = self.unplaced.iter().map(|unplaced| unplaced.module).collect();
        modules.dedup();
        let root = self.root.clone();
        let reader = thread::Builder::new().name("symbols".to_owned());
        let symbols = reader.spawn(move || Symbols::read(&root)).ok()?;
        Some(LookUp { modules, symbols })
    }

    fn place_by_symbol(
        &self,
        pmu: Pmu,
        function: usize,
        module: Loaded,
        symbols: &Symbols,
        error: &io::Error,
    ) -> Result<(Vec<Probe>, Option<String>), String> {
        let function = &FUNCTIONS[function];
        let found = symbols.look_up(module.name, function.symbol());
        let remark = usable(function, &found)?;
        let target = match found {
            Found::At(address) if address != 0 => Target::Address(address),
            Found::Clone(clone) => Target::Name(format!("{}:{clone}", module.name)),
            _ => return Err(error.to_string()),
        };
        let probes = self.place(pmu, function, &target).map_err(|error| error.to_string())?;
        Ok((probes, remark))
    }
}

/// Can a function that was found like this be hooked? What is to be said if so, and why not otherwise.
pub(super) fn usable(function: &Function, found: &Found) -> Result<Option<String>, String> {
    match found {
        Found::At(_) => Ok(None),
        Found::Clone(clone) if !function.needs_arguments() => {
            Ok(Some(format!("the compiler has made it {clone}")))
        }
        Found::Clone(clone) => {
            Err(format!("the compiler has made it {clone}, whose arguments are not known"))
        }
        Found::Several => Err("several functions have this name".to_owned()),
        Found::Nowhere => {
            Err("this driver does not have it, or the compiler has put it into its callers".to_owned())
        }
    }
}
