//! Tests of what an ordinary user sees, also when the tests run as root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs `work` on a thread without any privilege, having made `root` readable to it. Credentials are a thread's own, below the C library.
pub(crate) fn as_nobody<T: Send>(root: &Path, work: impl FnOnce(&Path) -> T + Send) -> T {
    // SAFETY: getuid cannot fail and touches no memory.
    if unsafe { libc::getuid() } != 0 {
        return work(root);
    }
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).expect("chmod");
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the raw calls change the credentials of this thread alone, which ends after `work`.
            let dropped = unsafe {
                libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) == 0
                    && libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534) == 0
                    && libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) == 0
            };
            assert!(dropped, "credentials: {}", std::io::Error::last_os_error());
            work(root)
        });
        thread.join().expect("the unprivileged thread")
    })
}
