//! Attaching what is not attached yet, the essential first: a driver that comes back is to be followed within a second, and the kernel
//! takes its time for each place at which it is to stop.
//!
//! So threads have the places made, all at once, and nobody waits for them: [`DriverHooks::refresh`] takes what is done. To have
//! programs run there takes no time, and is done in order: what tells that a release was not deferred comes before releases.
//!
//! Functions are named to the kernel. One that it does not find by its name may be there all the same, as a clone of the compiler's, or
//! under a name that several have. That the list of all symbols tells, which takes long to read, and is read once for all.

use std::{
    io,
    os::fd::AsFd,
    path::PathBuf,
    sync::{Arc, OnceLock},
    thread::{self, JoinHandle},
};

use super::{
    Attached, DriverHooks, FUNCTIONS, Loaded, Refused,
    functions::{Function, Part},
    kprobe::{Place, Pmu, Probe, Target},
    symbols::{Found, Symbols},
};
use crate::kernel::Answer;

/// How many of those that are not essential are begun at once. An essential one may come with the next module, and is to find no queue.
const OTHERS_AT_ONCE: usize = 2;

/// What is not attached yet, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Attaching {
    placing: Vec<Placing>,
    placed: Vec<Placed>,
    /// The list of symbols for whoever needs it, and the modules of which it is true.
    symbols: Option<(Vec<Loaded>, SharedSymbols)>,
}

type SharedSymbols = Arc<OnceLock<Symbols>>;

/// A function whose places are being made.
#[derive(Debug)]
struct Placing {
    function: usize,
    module: Loaded,
    made: JoinHandle<Result<(Places, Option<String>), Refusal>>,
}

/// A function whose places are there, but no programs yet.
#[derive(Debug)]
struct Placed {
    function: usize,
    module: Loaded,
    places: Places,
    remark: Option<String>,
}

/// The places of a function: at its return first, so that no call is seen to begin and not to end.
#[derive(Debug)]
struct Places {
    end: Option<Place>,
    begin: Place,
}

/// What became of a hook that is not to be had, and why.
type Refusal = (Answer, String);

impl Attaching {
    pub(super) fn is_over(&self) -> bool {
        self.placing.is_empty() && self.placed.is_empty()
    }

    /// Is something being done about this function of this module?
    fn is_at(&self, function: usize, module: Loaded) -> bool {
        self.placing.iter().any(|placing| (placing.function, placing.module) == (function, module))
            || self.placed.iter().any(|placed| (placed.function, placed.module) == (function, module))
    }
}

impl Places {
    /// To be removed.
    fn unused(self) -> impl Iterator<Item = Probe> {
        self.end.into_iter().chain([self.begin]).map(Probe::unused)
    }
}

impl DriverHooks {
    /// Attaches to what is ready for it, and goes on with the rest.
    pub(super) fn attach_missing(&mut self, pmu: Pmu) {
        self.take_made();
        self.run_programs();
        self.begin(pmu);
    }

    /// Takes what threads have done.
    fn take_made(&mut self) {
        let (done, at_work): (Vec<_>, Vec<_>) = std::mem::take(&mut self.attaching.placing)
            .into_iter()
            .partition(|placing| placing.made.is_finished());
        self.attaching.placing = at_work;
        for Placing { function, module, made } in done {
            let failed = |_| Err((Answer::No, "a thread has failed".to_owned()));
            let is_there = self.home(&FUNCTIONS[function]) == Some(module);
            match made.join().unwrap_or_else(failed) {
                Ok((places, remark)) => {
                    self.attaching.placed.push(Placed { function, module, places, remark });
                }
                Err((works, why)) if is_there => {
                    self.refused.push(Refused { function, module, works, why });
                }
                Err(_) => {}
            }
        }
    }

    /// Has programs run where places are there.
    fn run_programs(&mut self) {
        let mut placed = std::mem::take(&mut self.attaching.placed);
        placed.sort_by_key(|placed| placed.function);
        for one in placed {
            let function = &FUNCTIONS[one.function];
            if self.home(function) != Some(one.module) {
                self.detaching.put(one.places.unused());
                continue;
            }
            // How it is followed depends on what becomes of those.
            let tells_of_deferral =
                |other: &Function| other.tells_of_deferral() && other.module() == function.module();
            if matches!(function.part, Part::Release(_)) && self.is_placing(tells_of_deferral) {
                self.attaching.placed.push(one);
                continue;
            }
            let Placed { function: index, module, places, remark } = one;
            let programs = function.programs(self.sees_deferrals(function.module()));
            match self.attach(places, programs) {
                Ok(probes) => {
                    let attached = Attached { function: index, module, programs, probes, remark };
                    if let Some(pinned) = &self.pinned {
                        pinned.keep(&attached);
                    }
                    self.attached.push(attached);
                }
                Err(error) => {
                    let (works, why) = refusal(&error);
                    self.refused.push(Refused { function: index, module, works, why });
                }
            }
        }
    }

    fn attach(
        &self,
        Places { end, begin }: Places,
        (at_begin, at_end): (&'static str, Option<&'static str>),
    ) -> io::Result<Vec<Probe>> {
        let attach = |place, name| {
            let program = self.programs.iter().find(|(known, _)| *known == name);
            let (_, program) = program.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            Probe::attach(place, program.as_fd())
        };
        let end = end.zip(at_end).map(|(place, name)| attach(place, name)).transpose()?;
        let begin = attach(begin, at_begin)?;
        Ok(end.into_iter().chain([begin]).collect())
    }

    /// Are places of such functions being made? What has been begun where a function may be as long as another module is not there
    /// does not count when that has come.
    fn is_placing(&self, such: impl Fn(&Function) -> bool) -> bool {
        self.attaching.placing.iter().any(|placing| {
            let function = &FUNCTIONS[placing.function];
            such(function) && self.home(function) == Some(placing.module)
        })
    }

    /// Begins what has not been begun: what is essential at once, the others a few at a time.
    fn begin(&mut self, pmu: Pmu) {
        let (first, others): (Vec<_>, Vec<_>) =
            self.missing().into_iter().partition(|(index, _)| FUNCTIONS[*index].comes_first());
        let room = if first.is_empty() && !self.is_placing(Function::comes_first) {
            OTHERS_AT_ONCE.saturating_sub(self.attaching.placing.len())
        } else {
            0
        };
        self.unfinished = others.len() > room;
        let begun: Vec<_> = first.into_iter().chain(others.into_iter().take(room)).collect();
        if !begun.is_empty() {
            let symbols = self.symbols();
            for (function, module) in begun {
                self.begin_one(pmu, function, module, symbols.clone());
            }
        }
        self.unfinished |= !self.attaching.is_over();
        if !self.unfinished {
            self.attaching.symbols = None;
        }
    }

    /// Functions that nothing is known of, and where they may be.
    fn missing(&self) -> Vec<(usize, Loaded)> {
        let is_missing = |(index, function): (usize, &Function)| {
            let module = self.home(function)?;
            let tried = self.attaching.is_at(index, module)
                || self.attached.iter().any(|attached| attached.function == index)
                || self.refused.iter().any(|refused| refused.function == index);
            (!tried).then_some((index, module))
        };
        FUNCTIONS.iter().enumerate().filter_map(is_missing).collect()
    }

    fn begin_one(&mut self, pmu: Pmu, function: usize, module: Loaded, symbols: SharedSymbols) {
        let root = self.root.clone();
        let make = move || places(pmu, &FUNCTIONS[function], module, root, &symbols);
        match thread::Builder::new().name("attach".to_owned()).spawn(make) {
            Ok(made) => self.attaching.placing.push(Placing { function, module, made }),
            Err(error) => {
                let why = format!("no thread to attach it: {error}");
                self.refused.push(Refused { function, module, works: Answer::No, why });
            }
        }
    }

    /// The list of symbols, to be read by whoever needs it first.
    fn symbols(&mut self) -> SharedSymbols {
        let mut modules: Vec<Loaded> =
            FUNCTIONS.iter().filter_map(|function| self.loaded(function.module())).collect();
        modules.dedup();
        match &self.attaching.symbols {
            Some((true_of, symbols)) if *true_of == modules => symbols.clone(),
            _ => {
                let symbols = SharedSymbols::default();
                self.attaching.symbols = Some((modules, symbols.clone()));
                symbols
            }
        }
    }
}

/// Makes the places of a function, which takes the kernel tens of ms. With them comes what is to be said of them.
fn places(
    pmu: Pmu,
    function: &Function,
    module: Loaded,
    root: PathBuf,
    symbols: &OnceLock<Symbols>,
) -> Result<(Places, Option<String>), Refusal> {
    let make = |target: Target| {
        let end = function.returns().then(|| Place::make(pmu, &target, true)).transpose()?;
        Ok(Places { end, begin: Place::make(pmu, &target, false)? })
    };
    let named = |name: &str| Target::Name(format!("{}:{name}", module.name));
    let error: io::Error = match make(named(function.symbol())) {
        Ok(places) => return Ok((places, None)),
        Err(error) => error,
    };
    if is_denial(&error) {
        return Err(refusal(&error));
    }
    let found = symbols.get_or_init(|| Symbols::read(&root)).look_up(module.name, function.symbol());
    let remark = usable(function, &found).map_err(|why| (Answer::No, why))?;
    let target = match found {
        Found::At(address) if address != 0 => Target::Address(address),
        Found::Clone(clone) => named(&clone),
        _ => return Err(refusal(&error)),
    };
    make(target).map(|places| (places, remark)).map_err(|error| refusal(&error))
}

fn is_denial(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

fn refusal(error: &io::Error) -> Refusal {
    if is_denial(error) {
        (Answer::Denied(format!("{error}; it takes root or CAP_PERFMON")), error.to_string())
    } else {
        (Answer::No, error.to_string())
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
