//! Where the kernel keeps its fields: a reader of BTF, the kernel's own type information.
//!
//! Programs for one kernel must not run with the offsets of another, so none is written down: each is looked up here by
//! the name it has in the kernel's source and handed to the programs before they are loaded. The blob
//! (`/sys/kernel/btf/vmlinux`, 5 to 10 MB, from Linux 5.4) is indexed, not decoded; see [`table`].
//!
//! The bytes are not trusted. Whatever they say, an answer or an error comes back, in bounded time.

mod bytes;
mod excerpt;
mod table;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use table::{Kind, Table, Type};

/// Modifiers in a row (`const volatile typedef ...`) and arrays of arrays. Real code has fewer than ten.
const MAX_CHAIN: u32 = 64;
/// Anonymous members inside anonymous members. Real code has fewer than six.
const MAX_DEPTH: u32 = 32;
/// Members looked at for one answer. `task_struct` has about 300.
const MAX_MEMBERS: u32 = 1 << 18;

/// Where one member is and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the structure asked about.
    pub offset: u32,
    /// Bytes of the member; 0 for a flexible array.
    pub size: u32,
}

/// Why BTF gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file is not there or not readable.
    #[error("cannot read BTF from {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The bytes are not BTF.
    #[error("malformed BTF: {what} at byte {offset}")]
    Malformed {
        /// What is wrong.
        what: &'static str,
        /// Where.
        offset: u64,
    },
    /// A kind that this reader does not know: its length is unknown too, so reading cannot go on.
    #[error("BTF type {id} is of unknown kind {kind}; this kernel is newer than this program")]
    UnknownKind {
        /// `BTF_KIND_*`.
        kind: u32,
        /// The type.
        id: u32,
    },
    /// A type refers to one that is not there.
    #[error("malformed BTF: no type {id}")]
    NoSuchId {
        /// The type referred to.
        id: u32,
    },
    /// This kernel has no structure or union of this name.
    #[error("this kernel has no struct or union `{structure}`")]
    NoStructure {
        /// Name asked for.
        structure: String,
    },
    /// The structure has no such member.
    #[error("this kernel's `{structure}` has no member `{path}` (stopped at `{component}`)")]
    NoMember {
        /// Structure asked about.
        structure: String,
        /// Path asked for.
        path: String,
        /// Component that was not found.
        component: String,
    },
    /// A component in the middle of a path is no structure: pointers and arrays are not followed.
    #[error("`{component}` in `{structure}.{path}` is not an embedded struct or union")]
    NotEmbedded {
        /// Structure asked about.
        structure: String,
        /// Path asked for.
        path: String,
        /// The component.
        component: String,
    },
    /// A bitfield has no byte offset.
    #[error("`{structure}.{path}` is a bitfield, which has no byte offset")]
    Bitfield {
        /// Structure asked about.
        structure: String,
        /// Path asked for.
        path: String,
    },
    /// The type has no size: a forward declaration, a function, `void`.
    #[error("`{name}` has an incomplete type")]
    Incomplete {
        /// What was asked for.
        name: String,
    },
    /// Several structures have this name and do not agree.
    #[error("this kernel has several `{structure}`, which differ in {what}")]
    Ambiguous {
        /// Name asked for.
        structure: String,
        /// `size`, or the path asked for.
        what: String,
    },
    /// A cycle, or nesting beyond anything that real code has.
    #[error("malformed BTF: types nested too deep or too wide")]
    TooDeep,
}

/// Type information of the kernel. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Btf {
    table: Arc<Table>,
}

/// A member as found: offset in bits from the outermost structure, and its type.
struct Member {
    bits: u64,
    type_id: u32,
    bitfield: bool,
}

impl Btf {
    /// Where the running kernel's BTF is (Linux 5.4, `CONFIG_DEBUG_INFO_BTF`).
    pub const VMLINUX: &'static str = "/sys/kernel/btf/vmlinux";

    /// Reads and indexes the file at `path`.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, BtfError> {
        let path = path.as_ref();
        let bytes = Bytes::of_file(path);
        let bytes = bytes.map_err(|source| BtfError::Read { path: path.to_owned(), source })?;
        Self::index(bytes)
    }

    /// The blob itself.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.table.bytes()
    }

    /// Indexes a blob.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        Self::index(Bytes::Copied(bytes))
    }

    fn index(bytes: Bytes) -> Result<Self, BtfError> {
        Table::parse(bytes).map(|table| Self { table: Arc::new(table) })
    }

    /// Where the member `path` of `structure` is.
    ///
    /// `structure` is the name of a struct or union, or of a typedef of one. `path` may go through embedded members
    /// (`f_path.dentry`); members of anonymous structs and unions are members of what contains them, as in C.
    /// Qualifiers and typedefs are seen through. Errors: no such structure, no such member, a bitfield, or several
    /// structures of this name in which it is not at the same place.
    pub fn field(&self, structure: &str, path: &str) -> Result<Field, BtfError> {
        let mut budget = MAX_MEMBERS;
        let ids = self.records_named(structure)?;
        agreeing(structure, path, ids.iter().map(|id| self.field_of(*id, structure, path, &mut budget)))
    }

    /// Has the kernel a function of this name?
    #[must_use]
    pub fn has_function(&self, name: &str) -> bool {
        let mut functions = self.table.with_names(|kind| kind == Kind::Func);
        functions.any(|(_, at)| self.table.string_is(at, name))
    }

    /// Bytes of `structure`, found as [`Btf::field`] finds it.
    pub fn size_of(&self, structure: &str) -> Result<u32, BtfError> {
        let ids = self.records_named(structure)?;
        agreeing(structure, "size", ids.iter().map(|id| self.size(*id, structure)))
    }

    fn kind_is(&self, id: u32, wanted: impl Fn(Kind) -> bool) -> bool {
        matches!(self.table.get(id), Ok(Some(found)) if wanted(found.kind))
    }

    /// The structs and unions called `name`; where there is none, those that typedefs of this name stand for.
    fn records_named(&self, name: &str) -> Result<Vec<u32>, BtfError> {
        let (mut records, typedefs): (Vec<u32>, Vec<u32>) =
            self.table.named(name).partition(|id| self.kind_is(*id, Kind::is_record));
        if records.is_empty() {
            let named = typedefs.iter().filter_map(|id| self.without_modifiers(*id).ok());
            records = named.filter(|id| self.kind_is(*id, Kind::is_record)).collect();
            records.dedup();
        }
        if records.is_empty() {
            return Err(BtfError::NoStructure { structure: name.to_owned() });
        }
        Ok(records)
    }

    fn field_of(
        &self,
        mut id: u32,
        structure: &str,
        path: &str,
        budget: &mut u32,
    ) -> Result<Field, BtfError> {
        let mut bits = 0_u64;
        let mut components = path.split('.').peekable();
        while let Some(component) = components.next() {
            let found = match self.table.get(id)? {
                Some(record) if record.kind.is_record() => self.member(record, component, 0, budget)?,
                _ => None,
            };
            let member = found.ok_or_else(|| BtfError::NoMember {
                structure: structure.to_owned(),
                path: path.to_owned(),
                component: component.to_owned(),
            })?;
            bits += member.bits;
            if member.bitfield || !bits.is_multiple_of(8) {
                return Err(BtfError::Bitfield { structure: structure.to_owned(), path: path.to_owned() });
            }
            id = self.without_modifiers(member.type_id)?;
            if components.peek().is_some() && !self.kind_is(id, Kind::is_record) {
                return Err(BtfError::NotEmbedded {
                    structure: structure.to_owned(),
                    path: path.to_owned(),
                    component: component.to_owned(),
                });
            }
        }
        let offset = u32::try_from(bits / 8).map_err(|_| BtfError::TooDeep)?;
        Ok(Field { offset, size: self.size(id, path)? })
    }

    /// The member called `name` of `record` or of an anonymous member of it.
    fn member(
        &self,
        record: Type<'_>,
        name: &str,
        depth: u32,
        budget: &mut u32,
    ) -> Result<Option<Member>, BtfError> {
        if depth > MAX_DEPTH || name.is_empty() {
            return if name.is_empty() { Ok(None) } else { Err(BtfError::TooDeep) };
        }
        for index in 0..record.vlen {
            *budget = budget.checked_sub(1).ok_or(BtfError::TooDeep)?;
            let (name_at, type_id, place) =
                (record.word(3 * index)?, record.word(3 * index + 1)?, record.word(3 * index + 2)?);
            // With the flag, the top byte is the width of a bitfield and 0 for an ordinary member.
            let (bits, width) = if record.flag { (place & 0xff_ffff, place >> 24) } else { (place, 0) };
            if self.table.string_is(name_at, name) {
                let bitfield = width != 0 || self.is_partial_int(type_id)?;
                return Ok(Some(Member { bits: bits.into(), type_id, bitfield }));
            }
            if !self.table.string_is(name_at, "") {
                continue;
            }
            let inner = self.table.get(self.without_modifiers(type_id)?)?;
            if let Some(inner) = inner.filter(|inner| inner.kind.is_record())
                && let Some(found) = self.member(inner, name, depth + 1, budget)?
            {
                return Ok(Some(Member { bits: found.bits + u64::from(bits), ..found }));
            }
        }
        Ok(None)
    }

    /// Before the flag existed, a bitfield was a member whose integer type has fewer bits than its bytes hold.
    fn is_partial_int(&self, id: u32) -> Result<bool, BtfError> {
        match self.table.get(self.without_modifiers(id)?)? {
            Some(int) if int.kind == Kind::Int => {
                let encoding = int.word(0)?;
                Ok(encoding & 0xff != int.size_or_type.saturating_mul(8) || (encoding >> 16) & 0xff != 0)
            }
            _ => Ok(false),
        }
    }

    fn without_modifiers(&self, mut id: u32) -> Result<u32, BtfError> {
        for _ in 0..MAX_CHAIN {
            match self.table.get(id)? {
                Some(found) if found.kind.is_modifier() => id = found.size_or_type,
                _ => return Ok(id),
            }
        }
        Err(BtfError::TooDeep)
    }

    /// Bytes of the type; `name` is for the error.
    fn size(&self, mut id: u32, name: &str) -> Result<u32, BtfError> {
        let mut elements = 1_u32;
        for _ in 0..MAX_CHAIN {
            let incomplete = || BtfError::Incomplete { name: name.to_owned() };
            let found = self.table.get(self.without_modifiers(id)?)?.ok_or_else(incomplete)?;
            let each = match found.kind {
                Kind::Array => {
                    elements = elements.checked_mul(found.word(2)?).ok_or(BtfError::TooDeep)?;
                    id = found.word(0)?;
                    continue;
                }
                // The kernel and its BPF programs are of one word size, and BPF's is 64 bits.
                Kind::Ptr => 8,
                Kind::Int | Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 | Kind::Float => {
                    found.size_or_type
                }
                _ => return Err(incomplete()),
            };
            return elements.checked_mul(each).ok_or(BtfError::TooDeep);
        }
        Err(BtfError::TooDeep)
    }
}

/// The one answer that all structures of a name give.
fn agreeing<T: PartialEq>(
    structure: &str,
    what: &str,
    answers: impl Iterator<Item = Result<T, BtfError>>,
) -> Result<T, BtfError> {
    let mut agreed: Option<Result<T, BtfError>> = None;
    for answer in answers {
        match (&agreed, &answer) {
            (None, _) => agreed = Some(answer),
            (Some(Ok(first)), Ok(other)) if first == other => {}
            // Nobody has it: the first reason will do.
            (Some(Err(_)), Err(_)) => {}
            _ => return Err(BtfError::Ambiguous { structure: structure.to_owned(), what: what.to_owned() }),
        }
    }
    agreed.unwrap_or_else(|| Err(BtfError::NoStructure { structure: structure.to_owned() }))
}
