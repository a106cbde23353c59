//! Which functions of the driver are hooked, and what part each plays.
//!
//! They are entry points: their addresses stand in the driver's tables of operations or are handed over as callbacks, so that
//! the compiler must keep them, under their names and with their arguments, in every release from 470 to 595. The two that
//! say that a release is not deferred are called from another file of the driver, which comes to the same.

/// What a function means when it is entered and when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Does the work of a release, at once.
    InPlace,
    /// Does the work of a release that was deferred, in a kernel thread of the driver.
    Deferred,
    /// An open.
    Open,
    /// An mmap.
    Map,
    /// A release.
    Release(Defers),
}

/// How a release that is deferred names its file to the kernel thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defers {
    /// It is never deferred, or that cannot be followed.
    Never,
    /// By the file's `private_data`.
    ByPointer,
    /// By the same without the type in its low bits (nvidia-uvm).
    ByTaggedPointer,
}

/// One function.
#[derive(Debug)]
pub(super) struct Function {
    /// `MODULE:FUNCTION`.
    pub(super) name: &'static str,
    pub(super) part: Part,
    /// Without it the driver's files cannot be followed. The others are of small devices, or of some releases only.
    pub(super) essential: bool,
}

impl Function {
    pub(super) fn module(&self) -> &'static str {
        self.name.split_once(':').map_or(self.name, |(module, _)| module)
    }

    pub(super) fn symbol(&self) -> &'static str {
        self.name.split_once(':').map_or(self.name, |(_, symbol)| symbol)
    }

    /// Does its program look at arguments? The compiler takes some away where it clones a function.
    pub(super) fn needs_arguments(&self) -> bool {
        self.part != Part::InPlace
    }

    /// Without it, a release that was deferred looks like one that is done.
    pub(super) fn tells_of_deferral(&self) -> bool {
        matches!(self.part, Part::InPlace | Part::Deferred)
    }

    /// Is the driver not followed, or not rightly, without it?
    pub(super) fn comes_first(&self) -> bool {
        self.essential || self.tells_of_deferral()
    }

    /// Is its return of interest?
    pub(super) fn returns(&self) -> bool {
        self.programs(false).1.is_some()
    }

    /// The programs at its entry and its return. `deferrals`: whether deferred releases can be followed.
    pub(super) fn programs(&self, deferrals: bool) -> (&'static str, Option<&'static str>) {
        let part = match self.part {
            Part::Release(_) if !deferrals => Part::Release(Defers::Never),
            part => part,
        };
        match part {
            Part::InPlace => ("on_release_in_place", None),
            Part::Deferred => ("on_deferred_begin", Some("on_deferred_end")),
            Part::Open => ("on_open_begin", Some("on_open_end")),
            Part::Map => ("on_map_begin", Some("on_map_end")),
            Part::Release(Defers::Never) => ("on_release_begin_plain", Some("on_release_end")),
            Part::Release(Defers::ByPointer) => ("on_release_begin", Some("on_release_end")),
            Part::Release(Defers::ByTaggedPointer) => ("on_release_begin_uvm", Some("on_release_end")),
        }
    }
}

/// All programs of [`FUNCTIONS`].
pub(super) const PROGRAMS: [&str; 11] = [
    "on_release_in_place",
    "on_deferred_begin",
    "on_deferred_end",
    "on_open_begin",
    "on_open_end",
    "on_map_begin",
    "on_map_end",
    "on_release_begin",
    "on_release_begin_uvm",
    "on_release_begin_plain",
    "on_release_end",
];

/// What is loaded instead of those that need `bpf_loop` (5.17).
pub(super) const INSTEAD: [(&str, &str); 1] = [("on_deferred_begin", "on_deferred_begin_unrolled")];

const fn essential(name: &'static str, part: Part) -> Function {
    Function { name, part, essential: true }
}

const fn other(name: &'static str, part: Part) -> Function {
    Function { name, part, essential: false }
}

/// In the order of attaching: what tells that a release was not deferred must be there before releases are.
pub(super) static FUNCTIONS: [Function; 18] = [
    other("nvidia:rm_cleanup_file_private", Part::InPlace),
    other("nvidia:nvidia_close_deferred", Part::Deferred),
    other("nvidia_uvm:uvm_va_space_destroy", Part::InPlace),
    other("nvidia_uvm:uvm_release_deferred", Part::Deferred),
    essential("nvidia:nvidia_close", Part::Release(Defers::ByPointer)),
    essential("nvidia:nvidia_open", Part::Open),
    essential("nvidia_uvm:uvm_release_entry", Part::Release(Defers::ByTaggedPointer)),
    essential("nvidia_uvm:uvm_open_entry", Part::Open),
    other("nvidia_uvm:uvm_tools_release_entry", Part::Release(Defers::Never)),
    other("nvidia_uvm:uvm_tools_open_entry", Part::Open),
    other("nvidia_modeset:nvkms_close", Part::Release(Defers::Never)),
    other("nvidia_modeset:nvkms_open", Part::Open),
    other("nvidia:nv_cap_drv_release", Part::Release(Defers::Never)),
    other("nvidia:nv_cap_drv_open", Part::Open),
    other("nvidia:nv_caps_imex_release", Part::Release(Defers::Never)),
    other("nvidia:nv_caps_imex_open", Part::Open),
    other("nvidia:nvidia_mmap", Part::Map),
    other("nvidia_uvm:uvm_mmap_entry", Part::Map),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_a_module_and_programs_that_are_loaded() {
        for function in &FUNCTIONS {
            assert!(function.name.starts_with(&format!("{}:", function.module())), "{function:?}");
            for deferrals in [false, true] {
                let (begin, end) = function.programs(deferrals);
                assert!(PROGRAMS.contains(&begin) && end.is_none_or(|end| PROGRAMS.contains(&end)));
            }
        }
    }

    #[test]
    fn what_tells_of_deferral_is_attached_before_any_release() {
        let is_release = |function: &Function| matches!(function.part, Part::Release(_));
        let first = FUNCTIONS.iter().position(is_release).expect("there are some");
        assert!(!FUNCTIONS[first..].iter().any(Function::tells_of_deferral));
    }
}
