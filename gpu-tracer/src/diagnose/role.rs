//! What kind of holder it is.

use super::Evidence;

/// Programs that keep GPU devices open on purpose, by the name of their executable.
const INFRASTRUCTURE: &[&str] = &[
    "nvidia-persistenced",
    "nv-hostengine",
    "nv-fabricmanager",
    "nvidia-fabricmanager",
    "dcgm-exporter",
    "nvidia-device-plugin",
    "gpu-feature-discovery",
    "nvidia-imex",
    "gpud",
];
/// Programs that draw.
const DISPLAY: &[&str] = &["Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "sway", "weston", "mutter"];
/// Programs that only look.
const MONITORS: &[&str] = &["nvidia-smi", "nvtop", "nvitop", "gpustat", "all-smi", "btop"];
/// Mappings of nvidiactl that `cuInit` alone makes.
const INITIALISED_MAPS: u64 = 2;

/// `infrastructure`, `display`, `mps`, `monitor`, `initialised`, `compute`, or `unknown` for devices that are not NVIDIA's.
///
/// A process can call itself anything, so the name is that of its executable; otherwise the handles speak: a monitor
/// maps nothing, `cuInit` maps two pages of the control device, a context dozens.
#[must_use]
pub fn role(evidence: &Evidence<'_>) -> &'static str {
    let exe = evidence.facts.and_then(|facts| facts.exe.as_ref()).map(|exe| exe.to_text());
    let name = exe.as_deref().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    if INFRASTRUCTURE.contains(&name) {
        return "infrastructure";
    }
    if DISPLAY.contains(&name) {
        return "display";
    }
    if name.starts_with("nvidia-cuda-mps") {
        return "mps";
    }
    if MONITORS.contains(&name) {
        return "monitor";
    }
    let Some(control) = evidence.devices.iter().find(|held| held.device == "nvidiactl") else {
        return "unknown";
    };
    let maps: u64 = evidence.devices.iter().map(|held| held.maps).sum();
    if maps == 0 && control.in_flight == 0 {
        "monitor"
    } else if control.maps <= INITIALISED_MAPS && control.in_flight == 0 {
        "initialised"
    } else {
        "compute"
    }
}
