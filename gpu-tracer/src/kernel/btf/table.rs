//! The bytes of one BTF blob and where each type in them begins.
//!
//! A blob is a header, a type section and a string section. A type is three words (name, info, size or type) and a tail
//! whose length depends on its kind, so the only way to find type N is to walk all before it. That walk happens once and
//! leaves one `u32` per type; everything else is read from the bytes when asked for. Every read is bounds-checked: an
//! offset in the blob is a claim, not a fact.

use std::sync::OnceLock;

use super::BtfError;
use super::bytes::Bytes;

/// `BTF_MAGIC`.
pub(super) const MAGIC: u16 = 0xeb9f;
/// `sizeof(struct btf_header)` without the fields that newer kernels append.
pub(super) const HEADER_LEN: u32 = 24;
/// `sizeof(struct btf_type)`.
const TYPE_LEN: u32 = 12;
/// Into so many parts names are divided, by how they begin.
const PARTS: usize = 1 << PART_BITS;
const PART_BITS: u32 = 13;

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
    /// Where each type begins, from type 1 on.
    types: Vec<u32>,
    named: OnceLock<Names>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("bytes", &self.bytes.len())
            .field("types", &self.types.len())
            .finish_non_exhaustive()
    }
}

impl Table {
    pub(super) fn parse(bytes: Bytes) -> Result<Self, BtfError> {
        let mut table = Self { bytes, strings: (0, 0), types: Vec::new(), named: OnceLock::new() };
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
            if end - at < TYPE_LEN {
                return Err(BtfError::Malformed { what: "a type that is cut off", offset: at.into() });
            }
            let (number, _, vlen) = split_info(self.word(u64::from(at) + 4)?);
            let kind = Kind::from_number(number)
                .ok_or(BtfError::UnknownKind { kind: number, id: self.types.len() as u32 + 1 })?;
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

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The type with this id. `None` for id 0, which is `void`.
    pub(super) fn get(&self, id: u32) -> Result<Option<Type<'_>>, BtfError> {
        let Some(index) = id.checked_sub(1) else { return Ok(None) };
        let at = *self.types.get(index as usize).ok_or(BtfError::NoSuchId { id })?;
        let (number, flag, vlen) = split_info(self.word(u64::from(at) + 4)?);
        Ok(Some(Type {
            kind: Kind::from_number(number).ok_or(BtfError::UnknownKind { kind: number, id })?,
            flag,
            vlen,
            name: self.word(u64::from(at))?,
            size_or_type: self.word(u64::from(at) + 8)?,
            table: self,
            tail: at + TYPE_LEN,
        }))
    }

    /// The string section from `offset` on; the string ends at the first NUL.
    fn string_from(&self, offset: u32) -> Option<&[u8]> {
        let (begin, end) = self.strings;
        self.bytes.get(begin as usize..end as usize)?.get(offset as usize..)
    }

    /// Is the string at `offset` exactly `name`? Reads no more than `name`'s length.
    pub(super) fn string_is(&self, offset: u32, name: &str) -> bool {
        self.string_from(offset)
            .is_some_and(|bytes| bytes.starts_with(name.as_bytes()) && bytes.get(name.len()) == Some(&0))
    }

    /// Ids of the records and typedefs that are called `name`.
    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = u32> {
        let candidates = self.named.get_or_init(|| self.index()).beginning_like(name);
        let is_it = |id: &u32| matches!(self.get(*id), Ok(Some(found)) if self.string_is(found.name, name));
        candidates.iter().copied().filter(is_it)
    }

    /// (id, offset of the name) of all types of a kind that have a name.
    pub(super) fn with_names(&self, wanted: impl Fn(Kind) -> bool) -> impl Iterator<Item = (u32, u32)> {
        // There are 100,000 and more: nothing else of them is looked at.
        (1..).zip(&self.types).filter_map(move |(id, at)| {
            let words = self.bytes.get(*at as usize..)?.first_chunk::<8>()?;
            let [name, info] =
                [0, 4].map(|at| u32::from_ne_bytes(std::array::from_fn(|byte| words[at + byte])));
            (name != 0 && Kind::from_number(split_info(info).0).is_some_and(&wanted)).then_some((id, name))
        })
    }

    fn index(&self) -> Names {
        let named = self.with_names(|kind| kind.is_record() || kind == Kind::Typedef);
        Names::divide(named.filter_map(|(id, name)| Some((part(self.string_from(name)?), id))).collect())
    }
}

/// Ids of types, divided by how their names begin. That is quicker to make than an order, and little is looked up in it.
struct Names {
    /// Where each part begins in `ids`, and where the last ends.
    begins: Vec<u32>,
    ids: Vec<u32>,
}

impl Names {
    /// Of (part of the name, id).
    fn divide(named: Vec<(u16, u32)>) -> Self {
        let mut begins = vec![0; PARTS + 1];
        for (part, _) in &named {
            begins[usize::from(*part) + 1] += 1;
        }
        for part in 0..PARTS {
            begins[part + 1] += begins[part];
        }
        let (mut next, mut ids) = (begins.clone(), vec![0; named.len()]);
        for (part, id) in named {
            let at = &mut next[usize::from(part)];
            ids[*at as usize] = id;
            *at += 1;
        }
        Self { begins, ids }
    }

    fn beginning_like(&self, name: &str) -> &[u32] {
        let part = usize::from(part(name.as_bytes()));
        &self.ids[self.begins[part] as usize..self.begins[part + 1] as usize]
    }
}

/// `info` as (kind, flag, vlen).
///
/// Linux up to 7.0 uses 5 bits of kind and 16 of vlen and requires the bits between to be zero; later ones may use them
/// for larger kinds and counts. Reading the wide fields is right for both.
fn split_info(info: u32) -> (u32, bool, u32) {
    ((info >> 24) & 0x7f, info >> 31 == 1, info & 0xff_ffff)
}

/// The part that a name belongs to, which ends with these bytes or with the first NUL in them: by its first eight bytes.
fn part(name: &[u8]) -> u16 {
    let first = name.first_chunk().copied().unwrap_or_else(|| {
        let mut first = [0; 8];
        first[..name.len()].copy_from_slice(name);
        first
    });
    let word = u64::from_le_bytes(first);
    // The lowest bit that is set is in the first byte that is zero.
    let zeros = word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080;
    let before = if zeros == 0 { u64::MAX } else { (1 << (zeros.trailing_zeros() - 7)) - 1 };
    // Fibonacci hashing: the upper bits of a product depend on all of the factor.
    ((word & before).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PART_BITS)) as u16
}
