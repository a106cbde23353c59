//! Where `libnvidia-ml` may be, and whether it makes sense to ask it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Names one library to load instead of searching.
pub const LIBRARY_VARIABLE: &str = "GPU_TRACER_NVML_LIBRARY";

/// The node through which every NVML call goes.
const CONTROL_NODE: &str = "/dev/nvidiactl";

/// Tried in this order. The loader's own search comes first; the others are where container runtimes and
/// distributions put it outside that search.
const CANDIDATES: [&str; 7] = [
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
];

/// The library that the user named in [`LIBRARY_VARIABLE`].
///
/// `None` in a program that runs with more privilege than its caller (file capabilities, set-user-ID): there the
/// environment is not the administrator's, and must not choose code to load.
#[must_use]
pub fn named_in_environment() -> Option<PathBuf> {
    if runs_with_raised_privilege() {
        return None;
    }
    std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Why there is no point in starting a helper, or `None` when there is one.
///
/// Without the driver's control node NVML would have it created, or even the module loaded, through a set-user-ID
/// tool. Looking at a machine must not do that, so NVML is not asked then.
#[must_use]
pub fn reason_not_to_ask(named: Option<&Path>) -> Option<String> {
    match named {
        Some(path) if is_path(path.as_os_str()) && !path.exists() => {
            Some(format!("{} does not exist", path.display()))
        }
        Some(_) => None,
        None if Path::new(CONTROL_NODE).exists() => None,
        None => Some(format!("no NVIDIA driver is loaded here ({CONTROL_NODE} does not exist)")),
    }
}

/// What to load, in this order, given the library that the asking side named.
///
/// A named library is the only candidate. In a program with raised privilege a name that is not one of the usual
/// places is ignored, since the caller chose it.
#[must_use]
pub fn candidates(named: Option<OsString>) -> Vec<OsString> {
    choose(named, runs_with_raised_privilege())
}

fn choose(named: Option<OsString>, raised: bool) -> Vec<OsString> {
    match named {
        Some(path) if !raised || CANDIDATES.iter().any(|known| OsStr::new(known) == path) => vec![path],
        _ => CANDIDATES.iter().map(OsString::from).collect(),
    }
}

/// The loader treats a name without a slash as something to search for.
fn is_path(name: &OsStr) -> bool {
    name.as_encoded_bytes().contains(&b'/')
}

fn runs_with_raised_privilege() -> bool {
    // SAFETY: `getauxval` reads a vector that the kernel wrote at exec; it has no preconditions and returns 0 for a
    // key that is absent.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_library_that_is_missing_is_absent_without_asking() {
        let reason = reason_not_to_ask(Some(Path::new("/nonexistent/libnvidia-ml.so.1")));
        assert_eq!(reason.as_deref(), Some("/nonexistent/libnvidia-ml.so.1 does not exist"));
        assert_eq!(
            reason_not_to_ask(Some(Path::new("libnvidia-ml.so.1"))),
            None,
            "the loader searches for it"
        );
    }

    #[test]
    fn raised_privilege_loads_from_usual_places_only() {
        let strange = Some(OsString::from("/tmp/mine.so"));
        assert_eq!(choose(strange.clone(), false), vec![OsString::from("/tmp/mine.so")]);
        let raised = choose(strange, true);
        assert!(!raised.contains(&OsString::from("/tmp/mine.so")), "{raised:?}");
        assert_eq!(choose(Some(OsString::from(CANDIDATES[4])), true), vec![OsString::from(CANDIDATES[4])]);
        assert_eq!(choose(None, false).len(), CANDIDATES.len());
    }
}
