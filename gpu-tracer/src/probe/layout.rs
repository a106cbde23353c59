//! Resolves [`KernelLayout`] from the running kernel's BTF.

use gpu_tracer_common::layout::{ABSENT, FILE_COPY, KernelLayout};

use crate::kernel::{
    btf::{Btf, BtfError},
    paging,
};

/// A field that no kernel we know of lacks is missing.
#[derive(Debug, thiserror::Error)]
#[error(
    "this kernel's BTF has no {structure}.{path} ({source}); the kernel is too old or too new for this program"
)]
pub struct LayoutError {
    structure: &'static str,
    path: &'static str,
    #[source]
    source: BtfError,
}

/// Offsets on the kernel that `btf` describes.
///
/// Fields that moved or were renamed are tried under each of their names, newest first.
pub(super) fn resolve(btf: &Btf) -> Result<KernelLayout, LayoutError> {
    let must = |structure: &'static str, path: &'static str| {
        btf.field(structure, path).map(|field| field.offset).map_err(|source| LayoutError {
            structure,
            path,
            source,
        })
    };
    let may = |structure, path| must(structure, path).unwrap_or(ABSENT);
    let either = |structure, newer, older| must(structure, newer).or_else(|_| must(structure, older));
    let (ring, registers) = (ring(btf), REGISTERS);
    let mut layout = KernelLayout {
        task_tgid: must("task_struct", "tgid")?,
        task_pid: must("task_struct", "pid")?,
        task_state: either("task_struct", "__state", "state")?,
        task_exit_state: must("task_struct", "exit_state")?,
        task_flags: must("task_struct", "flags")?,
        task_jobctl: must("task_struct", "jobctl")?,
        task_start_boottime: either("task_struct", "start_boottime", "real_start_time")?,
        task_real_parent: must("task_struct", "real_parent")?,
        task_group_leader: must("task_struct", "group_leader")?,
        task_real_cred: must("task_struct", "real_cred")?,
        task_comm: must("task_struct", "comm")?,
        task_files: must("task_struct", "files")?,
        task_mm: must("task_struct", "mm")?,
        task_nsproxy: must("task_struct", "nsproxy")?,
        task_thread_pid: must("task_struct", "thread_pid")?,
        task_signal: must("task_struct", "signal")?,
        task_pending_signal: must("task_struct", "pending.signal")?,
        signal_shared_pending_signal: must("signal_struct", "shared_pending.signal")?,
        signal_flags: must("signal_struct", "flags")?,
        signal_core_state: may("signal_struct", "core_state"),
        mm_core_state: may("mm_struct", "core_state"),
        cred_uid: must("cred", "uid")?,
        pid_level: must("pid", "level")?,
        pid_numbers: must("pid", "numbers")?,
        upid_nr: must("upid", "nr")?,
        upid_ns: must("upid", "ns")?,
        upid_size: btf.size_of("upid").unwrap_or(16),
        pid_ns_inum: must("pid_namespace", "ns.inum")?,
        nsproxy_net_ns: must("nsproxy", "net_ns")?,
        net_inum: must("net", "ns.inum")?,
        net_list: may("net", "list"),
        net_operations: may("net", "ns.ops"),
        net_unix_table: may("net", "unx.table.buckets"),
        files_fdt: must("files_struct", "fdt")?,
        fdtable_max_fds: must("fdtable", "max_fds")?,
        fdtable_fd: must("fdtable", "fd")?,
        fdtable_open_fds: must("fdtable", "open_fds")?,
        file_inode: must("file", "f_inode")?,
        file_op: must("file", "f_op")?,
        file_mode: must("file", "f_mode")?,
        file_private_data: must("file", "private_data")?,
        file_count: may("file", "f_count"),
        file_ref: may("file", "f_ref"),
        inode_mode: must("inode", "i_mode")?,
        inode_rdev: must("inode", "i_rdev")?,
        inode_ino: must("inode", "i_ino")?,
        inode_cdev: may("inode", "i_cdev"),
        cdev_owner: may("cdev", "owner"),
        file_operations_owner: may("file_operations", "owner"),
        vma_file: must("vm_area_struct", "vm_file")?,
        vma_start: must("vm_area_struct", "vm_start")?,
        vma_end: must("vm_area_struct", "vm_end")?,
        vma_mm: must("vm_area_struct", "vm_mm")?,
        mm_tree_root: mm_tree(btf),
        mm_list: may("mm_struct", "mmap"),
        mm_highest_end: may("mm_struct", "highest_vm_end"),
        vma_next: may("vm_area_struct", "vm_next"),
        vma_tree_node: may("vm_area_struct", "shared.rb"),
        file_mapping: may("file", "f_mapping"),
        mapping_tree: may("address_space", "i_mmap.rb_root.rb_node"),
        node_left: may("rb_node", "rb_left"),
        node_right: may("rb_node", "rb_right"),
        sock_state: must("sock", "__sk_common.skc_state")?,
        sock_node: must("sock", "__sk_common.skc_node")?,
        sock_socket: must("sock", "sk_socket")?,
        sock_receive_queue: must("sock", "sk_receive_queue")?,
        socket_file: must("socket", "file")?,
        unix_nr_fds: may("unix_sock", "scm_stat.nr_fds"),
        skb_next: must("sk_buff", "next")?,
        skb_sk: must("sk_buff", "sk")?,
        skb_unix_fp: must("sk_buff", "cb")? + must("unix_skb_parms", "fp")?,
        fp_count: must("scm_fp_list", "count")?,
        fp_files: must("scm_fp_list", "fp")?,
        ring_nr_files: ring.count,
        ring_files: ring.table,
        ring_node_file: ring.node_file,
        ring_known: u32::from(ring.count != ABSENT && ring.table != ABSENT),
        file_cred: must("file", "f_cred")?,
        file_path_dentry: must("file", "f_path.dentry")?,
        file_path_mnt: must("file", "f_path.mnt")?,
        file_security: may("file", "f_security"),
        dentry_inode: must("dentry", "d_inode")?,
        dentry_lockref_count: must("dentry", "d_lockref.count")?,
        files_count: must("files_struct", "count")?,
        files_next_fd: may("files_struct", "next_fd"),
        file_operations_flush: may("file_operations", "flush"),
        inode_sb: may("inode", "i_sb"),
        super_block_magic: may("super_block", "s_magic"),
        task_exit_code: must("task_struct", "exit_code")?,
        signal_live: must("signal_struct", "live")?,
        siginfo_code: must("kernel_siginfo", "si_code")?,
        module_name: may("module", "name"),
        task_cgroups: may("task_struct", "cgroups"),
        css_set_dfl_cgrp: may("css_set", "dfl_cgrp"),
        cgroup_kn: may("cgroup", "kn"),
        kernfs_node_id: may("kernfs_node", "id"),
        task_cred: may("task_struct", "cred"),
        task_nameidata: may("task_struct", "nameidata"),
        // The arguments of a tracepoint are not in BTF; what it prints is, and changed together with them.
        exit_says_group_dead: u32::from(
            btf.field("trace_event_raw_sched_process_exit", "group_dead").is_ok(),
        ),
        victim_is_task: u32::from(btf.field("trace_event_raw_mark_victim", "uid").is_ok()),
        sock_family: may("sock", "__sk_common.skc_family"),
        socket_sk: may("socket", "sk"),
        regs_argument0: registers.argument(btf, 0),
        regs_argument1: registers.argument(btf, 1),
        regs_argument4: registers.argument(btf, 4),
        thread_word: may("task_struct", registers.thread_word),
        thread_compat: registers.thread_compat,
        short_addresses: u32::from(paging::takes_too_long_addresses()),
        file_span: ABSENT,
    };
    layout.file_span = file_span(&layout);
    Ok(layout)
}

/// How much of a file has to be copied to have all its fields, none of which is longer than a word.
fn file_span(layout: &KernelLayout) -> u32 {
    let fields = [
        layout.file_inode,
        layout.file_op,
        layout.file_mode,
        layout.file_private_data,
        layout.file_count,
        layout.file_ref,
        layout.file_cred,
        layout.file_path_dentry,
        layout.file_path_mnt,
        layout.file_security,
    ];
    let last = fields.into_iter().filter(|at| *at != ABSENT).max().unwrap_or(ABSENT);
    let span = last.saturating_add(size_of::<u64>() as u32);
    if span as usize <= FILE_COPY { span } else { ABSENT }
}

/// Where an architecture keeps what a task hands to a system call, and how it marks those of 32-bit programs.
struct Registers {
    /// Members of `struct pt_regs` with the arguments, or the array that they are the first elements of.
    arguments: &'static [&'static str],
    thread_word: &'static str,
    thread_compat: u32,
}

/// `TS_COMPAT`.
#[cfg(target_arch = "x86_64")]
const REGISTERS: Registers = Registers {
    arguments: &["di", "si", "dx", "r10", "r8", "r9"],
    thread_word: "thread_info.status",
    thread_compat: 2,
};
/// `_TIF_32BIT`. The first register still has its argument when a call is entered.
#[cfg(target_arch = "aarch64")]
const REGISTERS: Registers =
    Registers { arguments: &["regs"], thread_word: "thread_info.flags", thread_compat: 1 << 22 };
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const REGISTERS: Registers = Registers { arguments: &[], thread_word: "", thread_compat: 0 };

impl Registers {
    fn argument(&self, btf: &Btf, index: u32) -> u32 {
        let at = |name: &str| btf.field("pt_regs", name).map_or(ABSENT, |field| field.offset);
        match self.arguments {
            [] => ABSENT,
            [array] => at(array).saturating_add(index * 8),
            each => each.get(index as usize).map_or(ABSENT, |name| at(name)),
        }
    }
}

/// The tree of an address space's mappings, if its nodes are as `mappings.rs` of the programs takes them to be.
fn mm_tree(btf: &Btf) -> u32 {
    let at = |structure, path| btf.field(structure, path).map_or(ABSENT, |field| field.offset);
    let as_expected = btf.size_of("maple_node").is_ok_and(|size| size == 256)
        && at("maple_range_64", "slot") == 128
        && at("maple_arange_64", "slot") == 80;
    if as_expected { at("mm_struct", "mm_mt.ma_root") } else { ABSENT }
}

struct Ring {
    count: u32,
    table: u32,
    node_file: u32,
}

/// The file table of an io_uring: pointers to nodes since 6.13, tagged file pointers before.
fn ring(btf: &Btf) -> Ring {
    let at = |structure, path| btf.field(structure, path).map_or(ABSENT, |field| field.offset);
    let newer = Ring {
        count: at("io_ring_ctx", "file_table.data.nr"),
        table: at("io_ring_ctx", "file_table.data.nodes"),
        node_file: at("io_rsrc_node", "file_ptr"),
    };
    if newer.count != ABSENT && newer.node_file != ABSENT {
        return newer;
    }
    // A table of anything but one pointer per slot would be misread.
    let flat = btf.size_of("io_fixed_file").is_ok_and(|size| size == 8);
    let table = if flat { at("io_ring_ctx", "file_table.files") } else { ABSENT };
    Ring { count: at("io_ring_ctx", "nr_user_files"), table, node_file: ABSENT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_running_kernel_is_found() {
        let Ok(btf) = Btf::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("no BTF on this kernel: nothing to test");
            return;
        };
        let layout = resolve(&btf).expect("layout");
        assert!(
            layout.file_count != ABSENT || layout.file_ref != ABSENT,
            "a file has a count under one of its names: {layout:?}"
        );
        assert_ne!(layout.task_tgid, layout.task_pid);
        let size = btf.size_of("file").expect("there are files");
        assert!(layout.file_span == ABSENT || layout.file_span <= size, "{layout:?} of {size} bytes");
    }

    #[test]
    fn a_file_is_copied_up_to_its_last_field_unless_that_is_too_far_away() {
        let Ok(btf) = Btf::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("no BTF on this kernel: nothing to test");
            return;
        };
        let layout = resolve(&btf).expect("layout");
        let with = |count, reference| KernelLayout { file_count: count, file_ref: reference, ..layout };
        assert_eq!(file_span(&with(200, ABSENT)), 208);
        assert_eq!(file_span(&with(ABSENT, 248)), 256);
        assert_eq!(file_span(&with(ABSENT, 252)), ABSENT);
    }
}
