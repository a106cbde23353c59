//! The bytes of one BTF blob and where each type in them begins.
//!
//! A blob is a header, a type section and a string section. A type is three words (name, info, size or type) and a tail
//! whose length depends on its kind, so the only way to find type N is to walk all before it. That walk happens once and
//! leaves one `u32` per type; everything else is read from the bytes when asked for. Every read is bounds-checked: an
//! offset in the blob is a claim, not a fact.

use std::sync::{Arc, OnceLock};

use super::BtfError;
use super::bytes::Bytes;

/// `BTF_MAGIC`.
pub(super) const MAGIC: u16 = 0xeb9f;
/// `sizeof(struct btf_header)` without the fields that newer kernels append.
pub(super) const HEADER_LEN: u32 = 24;
/// `sizeof(struct btf_type)`.
const TYPE_LEN: u32 = 12;
/// Only this much of a name is hashed, so that types which all name one huge string cost nothing.
const HASHED_LEN: usize = 64;

/// `BTF_KIND_*`. Kinds that the reader has no use for are here all the same, as their size must be known to step over them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Int = 1,
    Ptr,
    Array,
    Struct,
    Union,
    Enum,
    Fwd,
    Typedef,
    Volatile,
    Const,
    Restrict,
    Func,
    FuncProto,
    Var,
    Datasec,
    Float,
    DeclTag,
    TypeTag,
    Enum64,
}

impl Kind {
    const ALL: [Self; 19] = [
        Self::Int,
        Self::Ptr,
        Self::Array,
        Self::Struct,
        Self::Union,
        Self::Enum,
        Self::Fwd,
        Self::Typedef,
        Self::Volatile,
        Self::Const,
        Self::Restrict,
        Self::Func,
        Self::FuncProto,
        Self::Var,
        Self::Datasec,
        Self::Float,
        Self::DeclTag,
        Self::TypeTag,
        Self::Enum64,
    ];

    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get((number as usize).checked_sub(1)?).copied()
    }

    /// Bytes that follow the three words.
    fn tail_len(self, vlen: u32) -> u64 {
        let (fixed, each) = match self {
            Self::Int | Self::Var | Self::DeclTag => (4, 0),
            Self::Array => (12, 0),
            Self::Struct | Self::Union | Self::Datasec | Self::Enum64 => (0, 12),
            Self::Enum | Self::FuncProto => (0, 8),
            _ => (0, 0),
        };
        fixed + each * u64::from(vlen)
    }

    pub(super) fn is_record(self) -> bool {
        matches!(self, Self::Struct | Self::Union)
    }

    pub(super) fn is_enum(self) -> bool {
        matches!(self, Self::Enum | Self::Enum64)
    }

    /// Says something about a type but is none: what it qualifies has the size and the members.
    pub(super) fn is_modifier(self) -> bool {
        matches!(self, Self::Typedef | Self::Volatile | Self::Const | Self::Restrict | Self::TypeTag)
    }
}

/// The three words of a type, decoded, and where its tail is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Type<'t> {
    pub(super) kind: Kind,
    /// Bit 31 of `info`: bitfields for records, signed for enums.
    pub(super) flag: bool,
    pub(super) vlen: u32,
    pub(super) name: u32,
    /// Third word: `size` or `type`, by kind.
    pub(super) size_or_type: u32,
    table: &'t Table,
    tail: u32,
}

impl Type<'_> {
    /// Word `index` of the tail.
    pub(super) fn word(&self, index: u32) -> Result<u32, BtfError> {
        let at = u64::from(self.tail) + 4 * u64::from(index);
        self.table.word(at)
    }
}

/// One blob, indexed.
pub(super) struct Table {
    bytes: Bytes,
    /// Begin and end of the string section.
    strings: (u32, u32),
    /// Where each type begins; the first has id `first_id`.
    types: Vec<u32>,
    first_id: u32,
    /// Strings below this offset are in `base`.
    first_string: u32,
    base: Option<Arc<Table>>,
    /// (hash of name, id) of records, enums and typedefs, sorted.
    named_types: OnceLock<Vec<(u32, u32)>>,
    /// (hash of name, id) of functions, sorted. Apart, as there are many and they are rarely asked for.
    named_functions: OnceLock<Vec<(u32, u32)>>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("bytes", &self.bytes.len())
            .field("types", &self.types.len())
            .field("first_id", &self.first_id)
            .finish_non_exhaustive()
    }
}

impl Table {
    pub(super) fn parse(bytes: Bytes, base: Option<Arc<Self>>) -> Result<Self, BtfError> {
        let (first_id, first_string) = match &base {
            None => (1, 0),
            // Ids and string offsets of a split blob go on where the base ends.
            Some(base) => (
                base.end_id().ok_or(BtfError::Malformed { what: "too many types", offset: 0 })?,
                base.end_string().ok_or(BtfError::Malformed { what: "too many strings", offset: 0 })?,
            ),
        };
        let mut table = Self {
            bytes,
            strings: (0, 0),
            types: Vec::new(),
            first_id,
            first_string,
            base,
            named_types: OnceLock::new(),
            named_functions: OnceLock::new(),
        };
        let (begin, end) = table.read_header()?;
        table.walk(begin, end)?;
        Ok(table)
    }

    /// Checks the header, notes the string section and returns the type section.
    fn read_header(&mut self) -> Result<(u32, u32), BtfError> {
        let malformed = |what, offset| BtfError::Malformed { what, offset };
        let first = self.word(0)?.to_ne_bytes();
        match u16::from_ne_bytes([first[0], first[1]]) {
            MAGIC => {}
            other if other.swap_bytes() == MAGIC => return Err(malformed("the other byte order", 0)),
            _ => return Err(malformed("no BTF magic", 0)),
        }
        if first[2] != 1 {
            return Err(malformed("a version other than 1", 2));
        }
        let header_len = self.word(4)?;
        if header_len < HEADER_LEN {
            return Err(malformed("a header that is too short", 4));
        }
        let section = |at: u64| -> Result<(u32, u32), BtfError> {
            let begin = u64::from(header_len) + u64::from(self.word(at)?);
            let end = begin + u64::from(self.word(at + 4)?);
            if end > self.bytes.len() as u64 {
                return Err(malformed("a section that ends after the data", at));
            }
            match (u32::try_from(begin), u32::try_from(end)) {
                (Ok(begin), Ok(end)) => Ok((begin, end)),
                _ => Err(malformed("a section beyond 4 GiB", at)),
            }
        };
        let types = section(8)?;
        self.strings = section(16)?;
        Ok(types)
    }

    /// Notes where each type begins.
    fn walk(&mut self, begin: u32, end: u32) -> Result<(), BtfError> {
        // Kernels average 20 bytes or more per type; one reallocation more or less does not matter.
        self.types.reserve((end - begin) as usize / 20);
        let mut at = begin;
        while at < end {
            let too_many = || BtfError::Malformed { what: "too many types", offset: at.into() };
            let id = self.end_id().ok_or_else(too_many)?;
            if end - at < TYPE_LEN {
                return Err(BtfError::Malformed { what: "a type that is cut off", offset: at.into() });
            }
            let (number, _, vlen) = split_info(self.word(u64::from(at) + 4)?);
            let kind = Kind::from_number(number).ok_or(BtfError::UnknownKind { kind: number, id })?;
            let next = u64::from(at) + u64::from(TYPE_LEN) + kind.tail_len(vlen);
            if next > u64::from(end) {
                return Err(BtfError::Malformed { what: "a type that is cut off", offset: at.into() });
            }
            self.types.push(at);
            // At most `end`, which is a u32.
            at = next as u32;
        }
        Ok(())
    }

    fn word(&self, at: u64) -> Result<u32, BtfError> {
        usize::try_from(at)
            .ok()
            .and_then(|at| self.bytes.get(at..)?.first_chunk::<4>())
            .map(|word| u32::from_ne_bytes(*word))
            .ok_or(BtfError::Malformed { what: "data that is cut off", offset: at })
    }

    /// First id after this blob's.
    fn end_id(&self) -> Option<u32> {
        self.first_id.checked_add(u32::try_from(self.types.len()).ok()?)
    }

    /// First string offset after this blob's.
    fn end_string(&self) -> Option<u32> {
        self.first_string.checked_add(self.strings.1 - self.strings.0)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn base(&self) -> Option<&Self> {
        self.base.as_deref()
    }

    /// Ids of this blob alone, without its base's.
    pub(super) fn own_ids(&self) -> std::ops::Range<u32> {
        self.first_id..self.end_id().unwrap_or(self.first_id)
    }

    /// The type with this id, here or in the base. `None` for id 0, which is `void`.
    pub(super) fn get(&self, id: u32) -> Result<Option<Type<'_>>, BtfError> {
        if id == 0 {
            return Ok(None);
        }
        let mut table = self;
        while id < table.first_id {
            table = table.base().ok_or(BtfError::NoSuchId { id })?;
        }
        let at = *table.types.get((id - table.first_id) as usize).ok_or(BtfError::NoSuchId { id })?;
        let (number, flag, vlen) = split_info(table.word(u64::from(at) + 4)?);
        Ok(Some(Type {
            kind: Kind::from_number(number).ok_or(BtfError::UnknownKind { kind: number, id })?,
            flag,
            vlen,
            name: table.word(u64::from(at))?,
            size_or_type: table.word(u64::from(at) + 8)?,
            table,
            tail: at + TYPE_LEN,
        }))
    }

    /// The string section from `offset` on; the string ends at the first NUL.
    fn string_from(&self, offset: u32) -> Option<&[u8]> {
        let mut table = self;
        while offset < table.first_string {
            table = table.base()?;
        }
        let (begin, end) = table.strings;
        table.bytes.get(begin as usize..end as usize)?.get((offset - table.first_string) as usize..)
    }

    /// Is the string at `offset` exactly `name`? Reads no more than `name`'s length.
    pub(super) fn string_is(&self, offset: u32, name: &str) -> bool {
        self.string_from(offset)
            .is_some_and(|bytes| bytes.starts_with(name.as_bytes()) && bytes.get(name.len()) == Some(&0))
    }

    /// Ids of this blob's own records, enums and typedefs that are called `name`.
    pub(super) fn types_named(&self, name: &str) -> impl Iterator<Item = u32> {
        let index = self
            .named_types
            .get_or_init(|| self.index(|kind| kind.is_record() || kind.is_enum() || kind == Kind::Typedef));
        self.matching(index, name)
    }

    /// Ids of this blob's own functions that are called `name`.
    pub(super) fn functions_named(&self, name: &str) -> impl Iterator<Item = u32> {
        let index = self.named_functions.get_or_init(|| self.index(|kind| kind == Kind::Func));
        self.matching(index, name)
    }

    fn index(&self, wanted: impl Fn(Kind) -> bool) -> Vec<(u32, u32)> {
        let mut index: Vec<(u32, u32)> = self
            .own_ids()
            .filter_map(|id| {
                let found = self.get(id).ok()??;
                let named = wanted(found.kind) && found.name != 0;
                named.then(|| self.string_from(found.name).map(|name| (hash(name), id)))?
            })
            .collect();
        index.sort_unstable();
        index
    }

    fn matching<'t>(&'t self, index: &'t [(u32, u32)], name: &str) -> impl Iterator<Item = u32> + use<'t> {
        let hash = hash(name.as_bytes());
        let start = index.partition_point(|(other, _)| *other < hash);
        let name = name.to_owned();
        index[start..]
            .iter()
            .take_while(move |(other, _)| *other == hash)
            .map(|(_, id)| *id)
            .filter(move |id| matches!(self.get(*id), Ok(Some(found)) if self.string_is(found.name, &name)))
    }
}

/// `info` as (kind, flag, vlen).
///
/// Linux up to 7.0 uses 5 bits of kind and 16 of vlen and requires the bits between to be zero; later ones may use them
/// for larger kinds and counts. Reading the wide fields is right for both.
fn split_info(info: u32) -> (u32, bool, u32) {
    ((info >> 24) & 0x7f, info >> 31 == 1, info & 0xff_ffff)
}

/// FNV-1a of the bytes up to the first NUL.
fn hash(name: &[u8]) -> u32 {
    name.iter()
        .take(HASHED_LEN)
        .take_while(|byte| **byte != 0)
        .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
