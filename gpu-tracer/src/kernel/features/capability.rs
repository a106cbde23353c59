//! What this process is privileged to do.

/// A capability that some source of information needs. The values are the kernel's (`include/uapi/linux/capability.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Looking past file permissions, which `/proc/PID/fd` of others needs.
    DacReadSearch = 2,
    /// Looking into other processes: `/proc/PID/fd`, `exe`, `stack`.
    SysPtrace = 19,
    /// Everything BPF needs before Linux 5.8, and cgroup programs still; mounting.
    SysAdmin = 21,
    /// Kernel addresses in `/proc/kallsyms`.
    Syslog = 34,
    /// Tracing programs that read kernel memory (Linux 5.8).
    Perfmon = 38,
    /// Loading BPF programs (Linux 5.8).
    Bpf = 39,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Bpf, Self::Perfmon, Self::SysAdmin, Self::SysPtrace, Self::DacReadSearch, Self::Syslog];

    /// The kernel's name, `CAP_BPF`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Syslog => "CAP_SYSLOG",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// The effective capabilities of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(
    /// One bit each, as in `CapEff` of `/proc/self/status`.
    pub u64,
);

impl Capabilities {
    /// From the text of `/proc/self/status`; none if the line is missing.
    #[must_use]
    pub fn from_status(text: &str) -> Self {
        let bits = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Self(bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0))
    }

    /// Is it effective? `CAP_SYS_ADMIN` stands in for what was split off it, `CAP_BPF` and `CAP_PERFMON`; for kernel
    /// addresses it does not (`kallsyms_show_value`).
    #[must_use]
    pub const fn has(self, capability: Capability) -> bool {
        let includes = matches!(capability, Capability::Bpf | Capability::Perfmon);
        self.bit(capability) || (includes && self.bit(Capability::SysAdmin))
    }

    const fn bit(self, capability: Capability) -> bool {
        self.0 >> (capability as u8) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_capabilities_are_read_from_status() {
        let status = "Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t0000008000000004\n";
        let capabilities = Capabilities::from_status(status);
        let has: Vec<&str> = Capability::ALL
            .into_iter()
            .filter(|each| capabilities.has(*each))
            .map(Capability::name)
            .collect();
        assert_eq!(has, ["CAP_BPF", "CAP_DAC_READ_SEARCH"]);
        assert_eq!(Capabilities::from_status("CapEff:\tnonsense"), Capabilities(0));
    }

    #[test]
    fn the_old_capability_includes_those_split_off_it_and_no_others() {
        let admin = Capabilities(1 << 21);
        let has: Vec<&str> =
            Capability::ALL.into_iter().filter(|each| admin.has(*each)).map(Capability::name).collect();
        assert_eq!(has, ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN"]);
    }
}
