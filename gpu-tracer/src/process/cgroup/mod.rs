//! What a cgroup path says about who runs a process: container, pod, unit, batch job.
//!
//! Container runtimes, systemd and batch systems all name cgroups after what they start, each in its own way and
//! with two drivers (systemd scopes, plain directories). The names are text that somebody chose: whoever may make
//! cgroups can call one `docker-….scope`. They are a hint for people, kept as bytes, and nothing is decided by them.

#[cfg(test)]
mod tests;

use crate::model::RawText;

/// Most bytes of a `cgroup` file that are read: a dozen hierarchies with a path each.
pub const LIMIT: usize = 64 * 1024;

/// Who runs a process, as far as its cgroup tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Innermost container: `docker:ID`, `containerd:ID`, `cri-o:ID`, `podman:ID`, `lxc:NAME`, `nspawn:NAME`, and
    /// `container:ID` where only the form of the id says that it is one.
    pub container: Option<RawText>,
    /// Kubernetes pod uid.
    pub pod: Option<RawText>,
    /// systemd unit (service, scope, socket, mount, swap) on this host, as `systemctl` takes it; units of a systemd
    /// inside of the container are not the host's and are left out.
    pub unit: Option<RawText>,
    /// Batch job: `slurm:ID[.STEP]`.
    pub job: Option<RawText>,
}

impl Placement {
    /// How much it tells: what is found is better than what is not, in the order in which people ask.
    fn weight(&self) -> u8 {
        let has = |field: &Option<RawText>, bit| if field.is_some() { bit } else { 0 };
        has(&self.container, 8) + has(&self.job, 4) + has(&self.pod, 2) + has(&self.unit, 1)
    }
}

/// The most telling path of a `/proc/PID/cgroup`, and what it says.
///
/// On a v2 host there is one path. On v1 and hybrid hosts each hierarchy has its own and some may be `/`: the one
/// that tells most is taken whole (mixing a unit of one hierarchy with a container of another would accuse the
/// wrong unit); of equals, v2 first, then `name=systemd`, devices, memory.
#[must_use]
pub fn most_telling(file: &[u8]) -> Option<(RawText, Placement)> {
    let lines = file.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let placement = classify(path);
        Some(((placement.weight(), path != b"/", preference(controllers)), path, placement))
    });
    let (_, path, placement) = lines.max_by_key(|(rank, ..)| *rank)?;
    Some((RawText::from(path.to_vec()), placement))
}

fn preference(controllers: &[u8]) -> u8 {
    if controllers.is_empty() {
        return 4;
    }
    let named = |name: &[u8]| controllers.split(|byte| *byte == b',').any(|controller| controller == name);
    [(b"name=systemd".as_slice(), 3), (b"devices", 2), (b"memory", 1)]
        .into_iter()
        .find_map(|(name, value)| named(name).then_some(value))
        .unwrap_or(0)
}

/// What one cgroup path says. Never fails: what is not recognised is `None`.
#[must_use]
pub fn classify(path: &[u8]) -> Placement {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let components: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    let mut placement = Placement::default();
    for (depth, &component) in components.iter().enumerate() {
        let above = &components[..depth];
        let outside = placement.container.is_none();
        if outside && is_unit(component) {
            placement.unit = Some(RawText::from(component.to_vec()));
        }
        if let Some(pod) = pod_uid(component, above) {
            placement.pod = Some(pod);
        }
        if let Some(container) = container(component, above) {
            placement.container = Some(container);
        }
    }
    placement.job = slurm_job(&components);
    placement
}

/// Prefixes of a container's cgroup name, and the runtime that writes them.
const RUNTIMES: [(&[u8], &str); 8] = [
    (b"docker", "docker"),
    (b"cri-containerd", "containerd"),
    (b"containerd", "containerd"),
    (b"nerdctl", "containerd"),
    (b"crio", "cri-o"),
    (b"libpod-payload", "podman"),
    (b"libpod", "podman"),
    (b"podman", "podman"),
];

/// Directories whose children are containers of a runtime that uses the bare id as a name: containerd's are its
/// namespaces.
const PARENTS: [(&[u8], &str); 6] = [
    (b"docker", "docker"),
    (b"ecs", "docker"),
    (b"k8s.io", "containerd"),
    (b"default", "containerd"),
    (b"nerdctl", "containerd"),
    (b"containerd", "containerd"),
];

fn container(component: &[u8], above: &[&[u8]]) -> Option<RawText> {
    scoped_container(component)
        .or_else(|| system_container(component, above.last().copied().unwrap_or_default()))
        .or_else(|| bare_container(component, above))
}

/// `docker-ID.scope`, `crio-ID`, and what runc makes of systemd's notation when it was told not to use systemd:
/// `SLICE:cri-containerd:ID`.
fn scoped_container(component: &[u8]) -> Option<RawText> {
    let name = component.strip_suffix(b".scope").unwrap_or(component);
    let (prefix, id) = match name.iter().rposition(|byte| *byte == b':') {
        Some(colon) => (name[..colon].rsplit(|byte| *byte == b':').next()?, &name[colon + 1..]),
        None => {
            let dash = name.iter().rposition(|byte| *byte == b'-')?;
            (&name[..dash], &name[dash + 1..])
        }
    };
    let runtime = RUNTIMES.iter().find(|(written, _)| *written == prefix)?.1;
    is_id(id).then(|| labelled(runtime, id))
}

/// A container that looks like a whole system: LXC (also Proxmox, LXD, Incus) and systemd-nspawn.
fn system_container(component: &[u8], parent: &[u8]) -> Option<RawText> {
    if matches!(parent, b"lxc" | b"lxc.payload") {
        return Some(labelled("lxc", component));
    }
    if let Some(name) = component.strip_prefix(b"lxc.payload.").filter(|name| !name.is_empty()) {
        return Some(labelled("lxc", name));
    }
    let instance = |prefix: &[u8], suffix: &[u8]| {
        component.strip_prefix(prefix)?.strip_suffix(suffix).filter(|name| !name.is_empty()).map(unescape)
    };
    if let Some(name) = instance(b"systemd-nspawn@", b".service") {
        return Some(labelled("nspawn", &name));
    }
    let name = instance(b"machine-", b".scope")?;
    match libvirt_name(&name) {
        // A virtual machine is no container: the process that holds the device is the hypervisor, on this host.
        Some((b"qemu", _)) => None,
        Some((_, domain)) => Some(labelled("lxc", domain)),
        None => Some(labelled("nspawn", &name)),
    }
}

/// libvirt registers its machines as `DRIVER-NUMBER-DOMAIN`.
fn libvirt_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = name.splitn(3, |byte| *byte == b'-');
    let (driver, number, domain) = (parts.next()?, parts.next()?, parts.next()?);
    let counted = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
    (counted && matches!(driver, b"qemu" | b"lxc")).then_some((driver, domain))
}

/// A container whose cgroup is nothing but its id.
fn bare_container(component: &[u8], above: &[&[u8]]) -> Option<RawText> {
    let parent = *above.last()?;
    let grandparents = &above[..above.len() - 1];
    if is_id(component) {
        if pod_uid(parent, grandparents).is_some() {
            return Some(labelled("containerd", component));
        }
        let known = PARENTS
            .iter()
            .find(|(name, _)| *name == parent || (*name == b"ecs" && grandparents.last() == Some(name)));
        if let Some((_, runtime)) = known.filter(|_| is_full_id(component)) {
            return Some(labelled(runtime, component));
        }
    }
    // `--cgroup-parent` puts containers anywhere; nothing else names a cgroup with 64 hexadecimal digits.
    is_full_id(component).then(|| labelled("container", component))
}

/// `kubepods-burstable-podUID.slice`, `kubepods/burstable/podUID`, and either inside of the kubelet's own cgroup.
fn pod_uid(component: &[u8], above: &[&[u8]]) -> Option<RawText> {
    let slice = component.split(|byte| *byte == b':').next()?.strip_suffix(b".slice");
    let uid = match slice {
        Some(slice) => {
            let dash = slice.iter().rposition(|byte| *byte == b'-')?;
            let in_kubepods = slice[..dash].split(|byte| *byte == b'-').any(|part| part == b"kubepods");
            slice[dash + 1..].strip_prefix(b"pod").filter(|_| in_kubepods)?
        }
        None => {
            component.strip_prefix(b"pod").filter(|_| above.iter().any(|part| part.ends_with(b"kubepods")))?
        }
    };
    // A static pod's uid is a hash of 32 digits without separators.
    let plausible = (32..=36).contains(&uid.len())
        && uid.iter().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_'));
    plausible.then(|| RawText(uid.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect()))
}

/// `slurm/uid_N/job_N/step_X/task_N` (v1; also `slurm_NODE`) and `slurmstepd.scope/job_N/step_X/user/task_N` (v2).
fn slurm_job(components: &[&[u8]]) -> Option<RawText> {
    let root = components.iter().position(|part| {
        *part == b"slurm" || part.starts_with(b"slurm_") || part.ends_with(b"slurmstepd.scope")
    })?;
    let below = &components[root + 1..];
    let place = below.iter().position(|part| part.starts_with(b"job_"))?;
    let id = &below[place][b"job_".len()..];
    if id.is_empty() || !id.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut job = [b"slurm:", id].concat();
    if let Some(step) = below.get(place + 1).and_then(|part| part.strip_prefix(b"step_")) {
        job.push(b'.');
        job.extend_from_slice(step);
    }
    Some(RawText::from(job))
}

/// Is it a unit that processes live in? Slices only group units.
fn is_unit(component: &[u8]) -> bool {
    const TYPES: [&[u8]; 5] = [b".service", b".scope", b".socket", b".mount", b".swap"];
    let may_name = |byte: &u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(byte);
    component.iter().all(may_name)
        && TYPES.iter().any(|kind| component.len() > kind.len() && component.ends_with(kind))
}

/// A container id, possibly shortened.
fn is_id(text: &[u8]) -> bool {
    (12..=64).contains(&text.len()) && is_hex(text)
}

fn is_full_id(text: &[u8]) -> bool {
    text.len() == 64 && is_hex(text)
}

fn is_hex(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
}

fn labelled(label: &str, name: &[u8]) -> RawText {
    RawText::from([label.as_bytes(), b":", name].concat())
}

/// Undoes systemd's `\xNN`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = rest.strip_prefix(b"\\x").and_then(|digits| digits.get(..2)).and_then(|digits| {
            let digits = std::str::from_utf8(digits)
                .ok()
                .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
            u8::from_str_radix(digits, 16).ok()
        });
        match escaped {
            Some(byte) => {
                plain.push(byte);
                rest = &rest[4..];
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}
