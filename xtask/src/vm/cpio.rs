//! The archive format that the kernel unpacks into its first file system ("newc", Documentation/driver-api/early-userspace/buffer-format.rst).

use std::io::{self, Write};

/// What kind of file an entry is, and what belongs to it.
pub(crate) enum Kind<'a> {
    /// A folder.
    Folder,
    /// A regular file with this content.
    File(&'a [u8]),
    /// A symbolic link to this path.
    Link(&'a str),
    /// A character device: major and minor.
    Device(u32, u32),
}

/// Writes entries one after another; [`Writer::finish`] must come last.
pub(crate) struct Writer<W: Write> {
    out: W,
    inode: u32,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// An archive that goes to `out`.
    pub(crate) fn new(out: W) -> Self {
        Self { out, inode: 0, written: 0 }
    }

    /// Adds an entry. `path` is relative to the root, without a leading slash; its folder must have been added before.
    pub(crate) fn add(&mut self, path: &str, permissions: u32, kind: &Kind<'_>) -> io::Result<()> {
        let (format, content, device): (u32, &[u8], _) = match kind {
            Kind::Folder => (libc::S_IFDIR, &[], (0, 0)),
            Kind::File(content) => (libc::S_IFREG, content, (0, 0)),
            Kind::Link(target) => (libc::S_IFLNK, target.as_bytes(), (0, 0)),
            Kind::Device(major, minor) => (libc::S_IFCHR, &[], (*major, *minor)),
        };
        self.inode += 1;
        self.entry(path, self.inode, format | permissions, content, device)
    }

    /// Writes the entry that ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, 0, &[], (0, 0))?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        path: &str,
        inode: u32,
        mode: u32,
        content: &[u8],
        device: (u32, u32),
    ) -> io::Result<()> {
        let size = u32::try_from(content.len()).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{path} is larger than 4 GiB"))
        })?;
        let name_size = u32::try_from(path.len() + 1)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a path is too long"))?;
        // Inode, mode, uid, gid, links, mtime, size, device (2), rdevice (2), name size, checksum (unused).
        let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.write(header.as_bytes())?;
        self.write(path.as_bytes())?;
        self.write(&[0])?;
        self.align()?;
        self.write(content)?;
        self.align()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Names and contents begin at multiples of four bytes.
    fn align(&mut self) -> io::Result<()> {
        let missing = self.written.next_multiple_of(4) - self.written;
        self.write(&[0; 3][..usize::try_from(missing).unwrap_or(0)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(archive: &[u8], entry: usize, index: usize) -> u32 {
        let at = entry + 6 + 8 * index;
        u32::from_str_radix(std::str::from_utf8(&archive[at..at + 8]).unwrap(), 16).unwrap()
    }

    /// Where the entry behind the one at `entry` begins, the entry's name and its content.
    fn split(archive: &[u8], entry: usize) -> (usize, String, Vec<u8>) {
        let (size, name_size) = (field(archive, entry, 6) as usize, field(archive, entry, 11) as usize);
        let name = &archive[entry + 110..entry + 110 + name_size - 1];
        let content = (entry + 110 + name_size).next_multiple_of(4);
        let next = (content + size).next_multiple_of(4);
        (next, String::from_utf8(name.to_vec()).unwrap(), archive[content..content + size].to_vec())
    }

    #[test]
    fn what_was_written_can_be_read_back_at_aligned_places() {
        let mut writer = Writer::new(Vec::new());
        writer.add("bin", 0o755, &Kind::Folder).unwrap();
        writer.add("bin/tool", 0o755, &Kind::File(b"12345")).unwrap();
        writer.add("bin/sh", 0o777, &Kind::Link("tool")).unwrap();
        writer.add("null", 0o666, &Kind::Device(1, 3)).unwrap();
        let archive = writer.finish().unwrap();

        let mut at = 0;
        let mut seen = Vec::new();
        while at < archive.len() {
            assert_eq!(&archive[at..at + 6], b"070701", "at {at}");
            let (next, name, content) = split(&archive, at);
            seen.push((name, field(&archive, at, 1), content));
            at = next;
        }
        let expected: [(String, u32, Vec<u8>); 5] = [
            ("bin".into(), 0o40755, vec![]),
            ("bin/tool".into(), 0o100_755, b"12345".to_vec()),
            ("bin/sh".into(), 0o120_777, b"tool".to_vec()),
            ("null".into(), 0o20666, vec![]),
            ("TRAILER!!!".into(), 0, vec![]),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_device_carries_its_number() {
        let mut writer = Writer::new(Vec::new());
        writer.add("null", 0o666, &Kind::Device(1, 3)).unwrap();
        let archive = writer.finish().unwrap();
        assert_eq!((field(&archive, 0, 9), field(&archive, 0, 10)), (1, 3));
    }
}
