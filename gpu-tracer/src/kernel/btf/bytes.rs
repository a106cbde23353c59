//! The bytes of a blob: the kernel's own, mapped, or a copy.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Deref;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr::NonNull;

/// No kernel's BTF comes near this.
const MAX_FILE: u64 = 256 << 20;

/// A blob.
pub(super) enum Bytes {
    /// Read, or made by a test.
    Copied(Vec<u8>),
    /// Pages of the kernel itself.
    Mapped(Mapping),
}

impl Bytes {
    /// The file at `path`. The kernel's own types are mapped where it allows that (Linux 6.16): to read them takes more than
    /// a thousand system calls, a page each, and several MiB. Other files may change while they are looked at.
    pub(super) fn of_file(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len().min(MAX_FILE);
        let length = usize::try_from(length).unwrap_or(0);
        if path == Path::new(super::Btf::VMLINUX)
            && is_of_the_kernel(&file)
            && let Some(mapping) = Mapping::of(&file, length)
        {
            return Ok(Self::Mapped(mapping));
        }
        let mut bytes = Vec::with_capacity(length + 1);
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(Self::Copied(bytes))
    }
}

/// Not a file that somebody has put in its place, who may shorten it while it is looked at.
fn is_of_the_kernel(file: &File) -> bool {
    const SYSFS_MAGIC: u64 = 0x6265_6572;
    rustix::fs::fstatfs(file).is_ok_and(|on| on.f_type.cast_unsigned() == SYSFS_MAGIC)
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            // SAFETY: the kernel's type information is mapped for reading, so long, for as long as this lives; the kernel
            // never changes it.
            Self::Mapped(mapping) => unsafe {
                std::slice::from_raw_parts(mapping.address.as_ptr(), mapping.length)
            },
        }
    }
}

/// A private mapping for reading.
pub(super) struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: memory that is only read, and belongs to the process and not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: &File, length: usize) -> Option<Self> {
        let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses. One of no length is refused.
        let address = unsafe { libc::mmap(null, length, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0) };
        let address = NonNull::new(address.cast()).filter(|_| address != libc::MAP_FAILED)?;
        Some(Self { address, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_types_are_the_same_mapped_and_read() {
        let path = Path::new(super::super::Btf::VMLINUX);
        let Ok(read) = std::fs::read(path) else {
            eprintln!("skipped: this kernel has no BTF");
            return;
        };
        let bytes = Bytes::of_file(path).unwrap();
        if let Bytes::Copied(_) = bytes {
            eprintln!("note: this kernel does not let its BTF be mapped");
        }
        assert!(*bytes == read[..], "{} and {} bytes", bytes.len(), read.len());
    }

    #[test]
    fn any_other_file_is_copied() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"abc").unwrap();
        let bytes = Bytes::of_file(file.path()).unwrap();
        assert!(matches!(bytes, Bytes::Copied(_)) && *bytes == *b"abc");
    }
}
