//! The driver's hooks in a pin directory, where links of perf events can have names (Linux 5.15).
//!
//! ```text
//! prog-on_open_begin                        a program, for modules that are loaded later
//! driver-nvidia_open-on_open_begin-12345    a link; the number tells this load of the module from another
//! ```

use std::{
    fs,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use super::{Attached, FUNCTIONS, Function, Loaded, Probe};
use crate::probe::events::sys;

const PREFIX: &str = "driver-";

/// Name of a program in a pin directory.
pub(super) fn program(name: &str) -> String {
    format!("prog-{name}")
}

/// A pin directory, as far as the driver's hooks are concerned.
#[derive(Debug)]
pub(super) struct Pinned {
    directory: PathBuf,
}

impl Pinned {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Gives names to the links of a hook. Where that is not to be had they end with this process, and the next one attaches
    /// its own.
    pub(super) fn keep(&self, attached: &Attached) {
        for (name, probe) in names(attached).iter().zip(&attached.probes) {
            let Some(link) = &probe.link else { continue };
            if let Err(error) = sys::pin(link.as_fd(), &self.directory.join(name)) {
                tracing::debug!(name, ?error, "this hook ends with the process");
            }
        }
    }

    /// Takes the names of a hook away.
    pub(super) fn remove(&self, attached: &Attached) {
        names(attached).iter().for_each(|name| self.remove_one(name));
    }

    fn remove_one(&self, name: &str) {
        // It may never have had one.
        let _ = fs::remove_file(self.directory.join(name));
    }

    /// The links that an earlier process left of this hook, if all of them are there.
    pub(super) fn reopen(
        &self,
        function: &Function,
        programs: (&'static str, Option<&'static str>),
        module: Loaded,
    ) -> Option<Vec<Probe>> {
        let names = names_of(function, programs, module);
        let open = |name: &String| sys::open_pin(&self.directory.join(name)).ok().map(Probe::kept);
        names.iter().map(open).collect()
    }

    /// Takes the names away of all hooks but these: those of modules that have been unloaded meanwhile.
    pub(super) fn remove_all_but(&self, attached: &[Attached]) {
        let kept: Vec<String> = attached.iter().flat_map(names).collect();
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let found = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let stale = found.filter(|name| name.starts_with(PREFIX) && !kept.contains(name));
        stale.for_each(|name| self.remove_one(&name));
    }
}

fn names(attached: &Attached) -> Vec<String> {
    names_of(&FUNCTIONS[attached.function], attached.programs, attached.module)
}

/// In the order of [`Attached::probes`].
fn names_of(
    function: &Function,
    (begin, end): (&'static str, Option<&'static str>),
    module: Loaded,
) -> Vec<String> {
    let name = |program| format!("{PREFIX}{}-{program}-{}", function.symbol(), module.mark);
    end.into_iter().chain([begin]).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_load_of_a_module_has_other_names_and_none_has_a_dot() {
        for function in &FUNCTIONS {
            let names =
                |mark| names_of(function, function.programs(true), Loaded { name: function.module(), mark });
            assert_ne!(names(1), names(2));
            // BPF file systems allow no dots.
            assert!(names(1).iter().all(|name| !name.contains('.')), "{:?}", names(1));
        }
    }
}
