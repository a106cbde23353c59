//! What kind of holder it is.

use crate::model::report::HeldDevice;

/// Mappings of nvidiactl that `cuInit` alone makes.
const INITIALISED_MAPS: u64 = 2;
/// More descriptors of one device than NVML ever opens: left over by a fork of something that computed.
const MONITOR_FDS: u64 = 8;

/// Every role that there is.
pub const NAMES: [&str; 9] = [
    "infrastructure",
    "display",
    "monitor",
    "container-hook",
    "mps-control",
    "mps-server",
    "initialised",
    "compute",
    "unknown",
];

/// What a site says of a program of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRule {
    /// One of [`NAMES`].
    pub role: &'static str,
    /// The path of the executable, or the name of its file.
    pub exe: String,
}

impl RoleRule {
    /// Is that executable meant? It may have been replaced while it ran.
    fn is_about(&self, exe: &[u8]) -> bool {
        let path = exe.strip_suffix(b" (deleted)").unwrap_or(exe);
        self.exe.as_bytes() == if self.exe.contains('/') { path } else { file_name(path) }
    }
}

/// Which executables play which role, by the name of their file.
///
/// A process can call itself anything, so its own name decides nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Programs that keep GPU devices open on purpose.
    pub infrastructure: Vec<String>,
    /// Programs that draw.
    pub display: Vec<String>,
    /// Programs that only look.
    pub monitors: Vec<String>,
    /// Programs that a container runtime starts to set GPUs up.
    pub container_hooks: Vec<String>,
    /// What a site says, which comes before everything else.
    pub rules: Vec<RoleRule>,
}

impl Default for Roles {
    fn default() -> Self {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self {
            infrastructure: names(&[
                "nvidia-persistenced",
                "nv-hostengine",
                "nv-fabricmanager",
                "nvidia-fabricmanager",
                "nvlsm",
                "dcgm-exporter",
                "nvidia-device-plugin",
                "gpu-feature-discovery",
                "nvidia-imex",
                "nvidia-powerd",
                "nvidia-mig-manager",
                "gpud",
            ]),
            display: names(&[
                "Xorg",
                "Xwayland",
                "gnome-shell",
                "kwin_wayland",
                "kwin_x11",
                "sway",
                "weston",
                "mutter",
                "Hyprland",
            ]),
            monitors: names(&["nvidia-smi", "nvtop", "nvitop", "gpustat", "all-smi", "btop"]),
            container_hooks: names(&[
                "nvidia-container-cli",
                "nvidia-container-runtime-hook",
                "nvidia-container-toolkit",
                "nvidia-cdi-hook",
                "nvidia-ctk",
            ]),
            rules: Vec::new(),
        }
    }
}

impl Roles {
    /// `infrastructure`, `display`, `mps-control`, `mps-server`, `container-hook`, `monitor`, `initialised`, `compute`, or
    /// `unknown` for devices that are not NVIDIA's.
    ///
    /// Where the executable says nothing the handles speak: a monitor maps nothing, `cuInit` maps two pages of the control
    /// device, a context dozens.
    #[must_use]
    pub fn role(&self, exe: Option<&[u8]>, devices: &[HeldDevice]) -> &'static str {
        let exe = exe.unwrap_or_default();
        if let Some(rule) = self.rules.iter().find(|rule| rule.is_about(exe)) {
            return rule.role;
        }
        let name = file_name(exe);
        let is_one_of = |known: &[String]| known.iter().any(|known| known.as_bytes() == name);
        match name {
            b"nvidia-cuda-mps-control" => return "mps-control",
            b"nvidia-cuda-mps-server" => return "mps-server",
            _ if is_one_of(&self.infrastructure) => return "infrastructure",
            _ if is_one_of(&self.display) => return "display",
            _ if is_one_of(&self.container_hooks) => return "container-hook",
            _ if is_one_of(&self.monitors) => return "monitor",
            _ => {}
        }
        let Some(control) = devices.iter().find(|held| held.device == "nvidiactl") else {
            return "unknown";
        };
        let maps = devices.iter().map(|held| held.maps).fold(0u64, u64::saturating_add);
        let indirect = devices.iter().any(|held| held.in_flight > 0 || held.io_uring > 0);
        let own = devices.iter().any(|held| held.gpu.is_some());
        let managed = devices.iter().any(|held| held.device == "nvidia-uvm");
        match () {
            () if indirect => "compute",
            // NVML keeps a GPU's own device and the control device open. A control device alone may be exported memory.
            () if maps == 0 && own && devices.iter().all(|held| held.fds <= MONITOR_FDS) => "monitor",
            // With it goes nvidia-uvm; what is left without it is no library's doing.
            () if maps > 0 && control.maps <= INITIALISED_MAPS && managed => "initialised",
            () => "compute",
        }
    }
}

/// Does a role belong to those that keep devices open on purpose: infrastructure, display, monitors?
#[must_use]
pub fn is_infrastructure(role: &str) -> bool {
    matches!(role, "infrastructure" | "display" | "monitor" | "mps-control" | "container-hook")
}

/// The reason for holding that goes with a role, if one does: `infrastructure` or `indirect`.
#[must_use]
pub fn reason_of(role: &str) -> Option<&'static str> {
    match role {
        "mps-server" => Some("indirect"),
        role if is_infrastructure(role) => Some("infrastructure"),
        _ => None,
    }
}

fn file_name(exe: &[u8]) -> &[u8] {
    let path = exe.strip_suffix(b" (deleted)").unwrap_or(exe);
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(device: &str, fds: u64, maps: u64) -> HeldDevice {
        let gpu = device.strip_prefix("nvidia").and_then(|digits| digits.parse().ok());
        HeldDevice { device: device.to_owned(), gpu, fds, maps, ..HeldDevice::default() }
    }

    #[test]
    fn what_was_measured_on_an_h200_gets_the_right_role() {
        type Case<'a> = (&'a str, &'a [(&'a str, u64, u64)], &'a str);
        let cases: &[Case<'_>] = &[
            (
                "python3.12",
                &[("nvidia0", 4, 2), ("nvidia1", 20, 3), ("nvidiactl", 1, 28), ("nvidia-uvm", 2, 1)],
                "compute",
            ),
            (
                "a.out",
                &[("nvidia0", 4, 2), ("nvidia1", 4, 2), ("nvidiactl", 1, 2), ("nvidia-uvm", 2, 0)],
                "initialised",
            ),
            (
                "watcher",
                &[("nvidia0", 1, 0), ("nvidia1", 3, 0), ("nvidiactl", 1, 0), ("nvidia-uvm", 2, 0)],
                "monitor",
            ),
            ("nvidia-persistenced", &[("nvidia0", 4, 0), ("nvidiactl", 1, 0)], "infrastructure"),
            ("nvidia-cuda-mps-control", &[("nvidia0", 4, 2), ("nvidiactl", 1, 2)], "mps-control"),
            (
                "nvidia-cuda-mps-server",
                &[("nvidia0", 20, 3), ("nvidiactl", 1, 22), ("nvidia-uvm", 1, 2)],
                "mps-server",
            ),
            ("importer", &[("nvidiactl", 1, 0)], "compute"),
            ("left-over", &[("nvidia0", 20, 0), ("nvidiactl", 1, 0)], "compute"),
            ("zero", &[("nvidia0", 1, 1)], "unknown"),
        ];
        for (exe, devices, expected) in cases {
            let devices: Vec<HeldDevice> =
                devices.iter().map(|(device, fds, maps)| held(device, *fds, *maps)).collect();
            let exe = format!("/usr/bin/{exe} (deleted)");
            assert_eq!(Roles::default().role(Some(exe.as_bytes()), &devices), *expected, "{exe}");
        }
    }

    #[test]
    fn what_a_site_says_of_a_path_or_a_name_comes_before_everything_else() {
        let rule = |role, exe: &str| RoleRule { role, exe: exe.to_owned() };
        let rules = vec![
            rule("infrastructure", "site-agent"),
            rule("monitor", "/opt/a/watch"),
            rule("compute", "nvtop"),
        ];
        let roles = Roles { rules, ..Roles::default() };
        let devices = [held("nvidia0", 1, 9), held("nvidiactl", 1, 9)];
        let role = |exe: &str| roles.role(Some(exe.as_bytes()), &devices);
        assert_eq!(role("/opt/site-agent"), "infrastructure");
        assert_eq!(role("/opt/site-agent (deleted)"), "infrastructure");
        assert_eq!(role("/opt/a/watch"), "monitor");
        assert_eq!(role("/opt/b/watch"), "compute", "another program of that name");
        assert_eq!(role("/usr/bin/nvtop"), "compute");
        assert_eq!(roles.role(None, &devices), "compute");
    }
}
