//! Where the fields are on this kernel.
//!
//! The user side resolves every offset from BTF and writes the whole struct into frozen `.rodata` before the programs
//! are loaded. The verifier then knows each value, prunes the code behind absent fields, and checks typed loads.

/// A field that this kernel does not have.
pub const ABSENT: u32 = u32::MAX;

/// Bytes of a `struct file` that the programs copy at most.
pub const FILE_COPY: usize = 256;

/// Byte offsets of the fields that the programs read; [`ABSENT`] where this kernel has no such field.
///
/// Names are `STRUCT_FIELD`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::IntoBytes, zerocopy::Immutable))]
#[expect(missing_docs, reason = "each field is the kernel field it is named after")]
pub struct KernelLayout {
    pub task_tgid: u32,
    pub task_pid: u32,
    /// `__state` (5.14+) or `state`.
    pub task_state: u32,
    pub task_exit_state: u32,
    pub task_flags: u32,
    pub task_jobctl: u32,
    pub task_start_boottime: u32,
    pub task_real_parent: u32,
    pub task_group_leader: u32,
    pub task_real_cred: u32,
    pub task_comm: u32,
    pub task_files: u32,
    pub task_mm: u32,
    pub task_nsproxy: u32,
    pub task_thread_pid: u32,
    pub task_signal: u32,
    pub task_pending_signal: u32,
    pub signal_shared_pending_signal: u32,
    pub signal_flags: u32,
    /// 5.17+; before it is in the mm.
    pub signal_core_state: u32,
    /// Before 5.17.
    pub mm_core_state: u32,
    pub cred_uid: u32,
    pub pid_level: u32,
    pub pid_numbers: u32,
    pub upid_nr: u32,
    pub upid_ns: u32,
    pub upid_size: u32,
    pub pid_ns_inum: u32,
    pub nsproxy_net_ns: u32,
    pub net_inum: u32,
    pub net_list: u32,
    /// `ns.ops`.
    pub net_operations: u32,
    /// `unx.table.buckets`, from 6.0.
    pub net_unix_table: u32,
    pub files_fdt: u32,
    pub fdtable_max_fds: u32,
    pub fdtable_fd: u32,
    pub fdtable_open_fds: u32,
    pub file_inode: u32,
    pub file_op: u32,
    pub file_mode: u32,
    pub file_private_data: u32,
    /// `f_count`, up to 6.12.
    pub file_count: u32,
    /// `f_ref.refcnt`, from 6.13: holds references - 1.
    pub file_ref: u32,
    pub inode_mode: u32,
    pub inode_rdev: u32,
    pub inode_ino: u32,
    pub inode_cdev: u32,
    pub cdev_owner: u32,
    pub file_operations_owner: u32,
    pub vma_file: u32,
    pub vma_start: u32,
    pub vma_end: u32,
    pub vma_mm: u32,
    /// `mm_mt.ma_root` (6.1+), only where the nodes of the tree are laid out as `mappings.rs` expects.
    pub mm_tree_root: u32,
    /// Before 6.1.
    pub mm_list: u32,
    /// `highest_vm_end`, before 6.1.
    pub mm_highest_end: u32,
    /// Before 6.1.
    pub vma_next: u32,
    /// `shared.rb`: the node in the mapping's tree.
    pub vma_tree_node: u32,
    pub file_mapping: u32,
    /// `i_mmap.rb_root.rb_node`.
    pub mapping_tree: u32,
    pub node_left: u32,
    pub node_right: u32,
    pub sock_state: u32,
    pub sock_node: u32,
    pub sock_socket: u32,
    pub sock_receive_queue: u32,
    pub socket_file: u32,
    pub unix_nr_fds: u32,
    pub skb_next: u32,
    pub skb_sk: u32,
    /// `cb` + `unix_skb_parms.fp`.
    pub skb_unix_fp: u32,
    pub fp_count: u32,
    pub fp_files: u32,
    /// `io_ring_ctx.file_table.data.nr` (6.13+) or `nr_user_files`.
    pub ring_nr_files: u32,
    /// `io_ring_ctx.file_table.data.nodes` (6.13+) or `file_table.files`.
    pub ring_files: u32,
    /// `io_rsrc_node.file_ptr` (6.13+: the table holds node pointers); [`ABSENT`] where the table holds file pointers itself.
    pub ring_node_file: u32,
    /// Non-zero where the ring's file table can be walked at all.
    pub ring_known: u32,
    pub file_cred: u32,
    pub file_path_dentry: u32,
    pub file_path_mnt: u32,
    /// Absent without CONFIG_SECURITY.
    pub file_security: u32,
    pub dentry_inode: u32,
    pub dentry_lockref_count: u32,
    pub files_count: u32,
    pub files_next_fd: u32,
    pub file_operations_flush: u32,
    /// Bytes from the beginning of a `struct file` in which all fields above lie; [`ABSENT`] where that is more than
    /// [`FILE_COPY`].
    pub file_span: u32,
    pub inode_sb: u32,
    pub super_block_magic: u32,
    pub task_exit_code: u32,
    pub signal_live: u32,
    pub siginfo_code: u32,
    /// Absent without CONFIG_MODULES.
    pub module_name: u32,
    pub task_cgroups: u32,
    pub css_set_dfl_cgrp: u32,
    pub cgroup_kn: u32,
    pub kernfs_node_id: u32,
    /// The credentials that it acts with.
    pub task_cred: u32,
    /// The walk of a path that is going on.
    pub task_nameidata: u32,
    /// Non-zero where `sched_process_exit` says itself whether the process ends (6.16+).
    pub exit_says_group_dead: u32,
    /// Non-zero where `mark_victim` passes a task and not a PID (6.8+).
    pub victim_is_task: u32,
    /// `sk.__sk_common.skc_family`.
    pub sock_family: u32,
    pub socket_sk: u32,
    /// Where the registers of a task in a system call have its first argument.
    pub regs_argument0: u32,
    pub regs_argument1: u32,
    pub regs_argument4: u32,
    /// The word of `task_struct.thread_info` in which [`Self::thread_compat`] is.
    pub thread_word: u32,
    /// Bits of it that say that the task is in a system call of a 32-bit program. Not an offset.
    pub thread_compat: u32,
    /// Non-zero where what is longer than 48 bits is no address, but is not refused. Not an offset.
    pub short_addresses: u32,
}
const _: () = assert!(size_of::<KernelLayout>() == 109 * 4);
