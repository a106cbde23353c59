//! A blob that has nothing but a few functions, each with the id that it has in the whole.

use super::{
    Btf,
    table::{HEADER_LEN, Kind, MAGIC},
};

/// A forward declaration, which is as short as a type can be.
const FORWARD: u32 = (Kind::Fwd as u32) << 24;
const FUNCTION: u32 = (Kind::Func as u32) << 24;
const VERSION: u32 = 1 << 16;

impl Btf {
    /// What a loader needs that decodes all there is and then wants no more than the ids of these functions. What comes before each of
    /// them is so many nameless declarations, which takes a fraction of the time. Those that the kernel does not have are left out.
    #[must_use]
    pub fn with_only(&self, functions: &[&str]) -> Vec<u8> {
        let found = self.table.with_names(|kind| kind == Kind::Func).filter_map(|(id, name)| {
            functions.iter().find(|function| self.table.string_is(name, function)).map(|name| (id, name))
        });
        let mut types = Vec::new();
        let mut strings = vec![0];
        let mut next_id = 1;
        for (id, name) in found {
            for _ in next_id..id {
                append(&mut types, [0, FORWARD, 0]);
            }
            append(&mut types, [strings.len() as u32, FUNCTION, 0]);
            strings.extend(name.bytes().chain([0]));
            next_id = id + 1;
        }
        let mut blob = Vec::with_capacity(HEADER_LEN as usize + types.len() + strings.len());
        let lengths = [types.len() as u32, strings.len() as u32];
        append(&mut blob, [u32::from(MAGIC) | VERSION, HEADER_LEN, 0, lengths[0], lengths[0], lengths[1]]);
        blob.extend(types);
        blob.extend(strings);
        blob
    }
}

fn append<const WORDS: usize>(blob: &mut Vec<u8>, words: [u32; WORDS]) {
    blob.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
}

#[cfg(test)]
mod tests {
    use aya::Endianness;
    use aya_obj::btf::BtfKind;

    use super::*;

    #[test]
    fn functions_have_the_ids_that_they_have_in_the_whole() {
        let Ok(kernel) = Btf::read(Btf::VMLINUX) else {
            eprintln!("skipped: this kernel has no BTF");
            return;
        };
        let decoded = |bytes: &[u8]| aya::Btf::parse(bytes, Endianness::default()).unwrap();
        let whole = decoded(kernel.bytes());
        let excerpt =
            decoded(&kernel.with_only(&["bpf_iter_unix", "no_such_function", "bpf_iter_task", "vfs_read"]));
        for name in ["bpf_iter_task", "bpf_iter_unix", "vfs_read"] {
            let id = |btf: &aya::Btf| btf.id_by_type_name_kind(name, BtfKind::Func).ok();
            assert!(id(&whole).is_none_or(|id| id > 0) && id(&excerpt) == id(&whole), "{name}");
        }
        assert!(excerpt.id_by_type_name_kind("no_such_function", BtfKind::Func).is_err());
        assert!(excerpt.id_by_type_name_kind("vfs_write", BtfKind::Func).is_err());
    }
}
