//! What a task closes and cannot finish closing: which descriptor, and what kind of file that is.
//!
//! The kind is told by the function of a file system in its kernel stack. The descriptor is the argument of `close(2)`; of
//! a task that exits it is one of those that the record of its exit has left over ([`HolderView::closing`]).

use std::path::Path;

use crate::ledger::HolderView;
use crate::probe::waiting;

const FUSE: u64 = 0x6573_5546;
const NFS: u64 = 0x6969;
const CIFS: u64 = 0xff53_4d42;
const SMB2: u64 = 0xfe53_4d42;
const CEPH: u64 = 0x00c3_6400;

/// A function, the file systems that it is of, and what is closed there.
const KNOWN: &[(&str, &[u64], &str)] = &[
    ("fuse_flush", &[FUSE], "a file on a FUSE file system whose server does not answer"),
    ("fuse_release", &[FUSE], "a file on a FUSE file system whose server does not answer"),
    ("nfs_file_flush", &[NFS], "a file on an NFS server that does not answer"),
    ("nfs4_file_flush", &[NFS], "a file on an NFS server that does not answer"),
    ("cifs_flush", &[CIFS, SMB2], "a file on an SMB server that does not answer"),
    ("ceph_flush", &[CEPH], "a file on a Ceph cluster that does not answer"),
    ("uvm_release", &[], "a handle of the NVIDIA driver (nvidia-uvm)"),
    ("nvidia_close", &[], "a handle of the NVIDIA driver"),
];

/// In words, if the kernel stack of the holder's carrier tells.
pub(super) fn closing(view: &HolderView, stack: &[String]) -> Option<String> {
    let (file_systems, what) = kind(stack)?;
    let carrier = &view.carrier;
    let descriptors: Vec<u32> = if carrier.exiting {
        let of_kind = view.closing.iter().filter(|wait| file_systems.contains(&wait.file_system));
        of_kind.map(|wait| wait.fd).collect()
    } else {
        waiting::descriptor_being_closed(Path::new("/proc"), carrier.tgid, carrier.tid).into_iter().collect()
    };
    Some(match &descriptors[..] {
        [] => what.to_owned(),
        [fd] => format!("descriptor {fd}, {what}"),
        fds => {
            let fds: Vec<String> = fds.iter().map(u32::to_string).collect();
            format!("one of the descriptors {}, {what}", fds.join(", "))
        }
    })
}

fn kind(stack: &[String]) -> Option<(&'static [u64], &'static str)> {
    let in_close =
        |frame: &String| ["filp_flush", "filp_close", "__fput"].iter().any(|name| frame.contains(name));
    if !stack.iter().any(in_close) {
        return None;
    }
    let known = |frame: &String| KNOWN.iter().find(|(function, ..)| frame.contains(function));
    stack.iter().find_map(known).map(|(_, file_systems, what)| (*file_systems, *what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stack_that_is_in_a_close_tells_what_is_closed() {
        let stack = |frames: &[&str]| frames.iter().map(|frame| (*frame).to_owned()).collect::<Vec<_>>();
        let fuse = stack(&["request_wait_answer [fuse]", "fuse_flush [fuse]", "filp_flush", "filp_close"]);
        assert!(kind(&fuse).is_some_and(|(of, what)| of == [FUSE] && what.contains("FUSE")));
        assert_eq!(kind(&stack(&["fuse_flush [fuse]", "vfs_fsync"])), None);
        assert_eq!(kind(&stack(&["pipe_release", "__fput"])), None);
    }
}
