//! Programs that most looks can do without: each is loaded when it is wanted first, as to have it verified takes the kernel a
//! millisecond or two.

use std::{os::fd::OwnedFd, sync::Arc};

use aya::{Btf as AyaBtf, Ebpf};

use super::programs::link;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spare {
    /// What the driver holds on behalf of a file.
    DriverPins,
    /// The files of an io_uring.
    RingTables,
    /// The mappings of a file.
    FileMappings,
    /// What has become of files.
    Checks,
    /// Sockets in network namespaces that nobody can go into.
    SocketTables,
}

impl Spare {
    const ALL: [Self; 5] =
        [Self::DriverPins, Self::RingTables, Self::FileMappings, Self::Checks, Self::SocketTables];

    /// The program, and what takes its place where programs cannot loop.
    const fn programs(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::DriverPins => ("iter_driver_pins", Some("iter_driver_pins_singly")),
            Self::RingTables => ("iter_rings", Some("iter_rings_in_steps")),
            Self::FileMappings => ("iter_file_mappings", None),
            Self::Checks => ("iter_recheck", Some("iter_recheck_singly")),
            Self::SocketTables => ("iter_socket_tables", None),
        }
    }
}

/// The link of a program, or why there is none.
type Loaded = Result<Arc<OwnedFd>, String>;

/// All of them, loaded or not.
pub(super) struct Spares {
    loaded: [Option<Loaded>; Spare::ALL.len()],
    ebpf: Ebpf,
    /// Where the kernel's functions are that programs are attached to; no longer when all are loaded, for it is large.
    kernel: Option<AyaBtf>,
    can_loop: bool,
}

impl Spares {
    pub(super) fn new(ebpf: Ebpf, kernel: AyaBtf, can_loop: bool) -> Self {
        Self { loaded: [const { None }; _], ebpf, kernel: Some(kernel), can_loop }
    }

    /// The link of this program, which is loaded if it has not been yet.
    pub(super) fn link(&mut self, spare: Spare) -> Loaded {
        let Self { loaded, ebpf, kernel, can_loop } = self;
        loaded[spare as usize].get_or_insert_with(|| load(spare, ebpf, kernel.as_ref(), *can_loop)).clone()
    }

    /// Loads what has not been loaded: nothing is waited for later, and what cannot be had is known now.
    pub(super) fn load_all(&mut self) {
        for spare in Spare::ALL {
            let _ = self.link(spare);
        }
        self.kernel = None;
    }
}

/// The first of its programs that this kernel takes.
fn load(spare: Spare, ebpf: &mut Ebpf, kernel: Option<&AyaBtf>, can_loop: bool) -> Loaded {
    let kernel = kernel.ok_or("the kernel's types are not at hand any more")?;
    let (program, in_its_place) = spare.programs();
    let mut refusal = "programs cannot loop here (bpf_loop, Linux 5.17)".to_owned();
    for program in Some(program).filter(|_| can_loop).into_iter().chain(in_its_place) {
        match link(ebpf, program, "task", kernel) {
            Ok(link) => return Ok(Arc::new(link)),
            Err(error) => refusal = error.to_string(),
        }
    }
    Err(refusal)
}

impl std::fmt::Debug for Spares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(Spare::ALL.iter().zip(&self.loaded)).finish()
    }
}
