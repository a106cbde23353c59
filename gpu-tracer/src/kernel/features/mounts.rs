//! `/proc/self/mountinfo`: where the file systems that matter are mounted.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount, as far as it is of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Directory of the file system that is mounted: `/` for all of it.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// Type of file system.
    pub kind: String,
    /// Options of the file system, separated by commas.
    pub options: String,
}

impl Mount {
    /// The mounts of this process, in order of mounting. Lines that cannot be understood are skipped.
    #[must_use]
    pub fn read(root: &Path) -> Vec<Self> {
        let contents = std::fs::read(root.join("proc/self/mountinfo")).unwrap_or_default();
        contents.split(|byte| *byte == b'\n').filter_map(Self::parse).collect()
    }

    fn parse(line: &[u8]) -> Option<Self> {
        // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - TYPE SOURCE SUPER_OPTIONS
        let mut fields = line.split(|byte| *byte == b' ');
        let (root, point) = (fields.nth(3)?, fields.next()?);
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, _source, options) = (rest.next()?, rest.next()?, rest.next().unwrap_or_default());
        Some(Self {
            root: unescape(root),
            point: unescape(point),
            kind: String::from_utf8_lossy(kind).into_owned(),
            options: String::from_utf8_lossy(options).into_owned(),
        })
    }

    /// The value of option `name`.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let escaped = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[4..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_mount_is_read_with_its_escapes_and_whatever_tags_it_has() {
        let line = br"36 35 98:0 /a\040b /mnt\011x\134 rw,noatime shared:1 master:2 - proc /dev/root rw,hidepid=2,gid=7";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.root.to_str(), mount.point.to_str()), (Some("/a b"), Some("/mnt\tx\\")));
        assert_eq!(mount.kind, "proc");
        assert_eq!(
            (mount.option("hidepid"), mount.option("gid"), mount.option("pid")),
            (Some("2"), Some("7"), None)
        );
        assert_eq!(Mount::parse(b"22 27 0:21 / /proc rw - proc proc rw").unwrap().kind, "proc");
        assert_eq!(Mount::parse(b"22 27 0:21 / /proc rw"), None);
    }

    proptest! {
        #[test]
        fn hostile_lines_never_panic(line in proptest::collection::vec(prop_oneof![Just(b' '), Just(b'\\'), Just(b'-'), Just(b'0'), any::<u8>()], 0..80)) {
            let _ = Mount::parse(&line);
        }
    }
}
