//! The builder writes what the kernel's documentation of BTF describes; it shares nothing with the reader.

use proptest::prelude::*;

use super::*;

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;
const FLAG: u32 = 1 << 31;

struct Blob {
    types: Vec<u8>,
    strings: Vec<u8>,
    next_id: u32,
}

impl Blob {
    fn new() -> Self {
        Self { types: Vec::new(), strings: vec![0], next_id: 1 }
    }

    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(name.as_bytes());
        self.strings.push(0);
        at
    }

    fn words(&mut self, words: &[u32]) {
        self.types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }

    /// Adds a type and returns its id. `info` is kind and flag; `vlen` is taken from the tail.
    fn add(&mut self, name: &str, kind: u32, vlen: usize, size_or_type: u32, tail: &[u32]) -> u32 {
        let name = self.name(name);
        let info = ((kind & 0x7f) << 24) | (kind & FLAG) | vlen as u32;
        self.words(&[name, info, size_or_type]);
        self.words(tail);
        self.next_id += 1;
        self.next_id - 1
    }

    fn int(&mut self, name: &str, size: u32) -> u32 {
        self.add(name, INT, 0, size, &[size * 8])
    }

    /// Members are (name, type, bit offset or, with the flag, width << 24 | bit offset).
    fn record(&mut self, name: &str, kind: u32, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let tail: Vec<u32> =
            members.iter().flat_map(|(name, kind, bits)| [self.name(name), *kind, *bits]).collect();
        self.add(name, kind, members.len(), size, &tail)
    }

    fn bytes(&self) -> Vec<u8> {
        let words = [24_u32, 0, self.types.len() as u32, self.types.len() as u32, self.strings.len() as u32];
        let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes
    }

    fn parse(&self) -> Btf {
        Btf::parse(self.bytes()).expect("the builder writes valid BTF")
    }
}

fn at(offset: u32, size: u32) -> Field {
    Field { offset, size }
}

/// Something like `struct file`, with most kinds in it.
fn sample() -> Blob {
    let mut blob = Blob::new();
    let int = blob.int("int", 4);
    let long = blob.int("long", 8);
    let pointer = blob.add("", PTR, 0, 0, &[]);
    let path = blob.record("path", STRUCT, 16, &[("mnt", pointer, 0), ("dentry", pointer, 64)]);
    let constant = blob.add("", CONST, 0, path, &[]);
    let volatile = blob.add("", VOLATILE, 0, constant, &[]);
    let alias = blob.add("path_t", TYPEDEF, 0, volatile, &[]);
    let tagged = blob.add("rcu", TYPE_TAG, 0, alias, &[]);
    let restricted = blob.add("", RESTRICT, 0, tagged, &[]);
    let anonymous = blob.record("", UNION, 16, &[("f_path", restricted, 0), ("__f_path", path, 0)]);
    let array = blob.add("", ARRAY, 0, 0, &[int, int, 3]);
    let table = blob.add("", ARRAY, 0, 0, &[array, int, 2]);
    let forward = blob.add("dentry", FWD, 0, 0, &[]);
    blob.record(
        "file",
        STRUCT,
        64,
        &[
            ("f_count", long, 0),
            ("", anonymous, 64),
            ("grid", table, 192),
            ("tail", array, 384),
            ("opaque", forward, 480),
        ],
    );
    blob.record("flags", STRUCT | FLAG, 8, &[("whole", int, 0), ("bit", int, (1 << 24) | 32)]);
    let proto = blob.add("", FUNC_PROTO, 1, 0, &[0, int]);
    blob.add("chrdev_open", FUNC, 0, proto, &[]);
    let (stopped, running) = (blob.name("STOPPED"), blob.name("RUNNING"));
    blob.add("state", ENUM | FLAG, 2, 4, &[stopped, u32::MAX, running, 7]);
    let big = blob.name("BIG");
    blob.add("wide", ENUM64, 1, 8, &[big, 1, 2]);
    let loose = blob.name("LOOSE");
    blob.add("", ENUM, 1, 4, &[loose, u32::MAX]);
    blob
}

#[test]
fn a_path_goes_through_anonymous_unions_and_every_modifier() {
    let btf = sample().parse();
    assert_eq!(btf.field("file", "f_count").unwrap(), at(0, 8));
    assert_eq!(btf.field("file", "f_path").unwrap(), at(8, 16));
    assert_eq!(btf.field("file", "f_path.dentry").unwrap(), at(16, 8));
    assert_eq!(btf.field("file", "__f_path.mnt").unwrap(), at(8, 8));
    assert_eq!(btf.field("path_t", "dentry").unwrap(), at(8, 8));
    assert_eq!(btf.size_of("path_t").unwrap(), 16);
}

#[test]
fn the_size_of_an_array_is_that_of_all_its_elements() {
    assert_eq!(sample().parse().field("file", "grid").unwrap(), at(24, 24));
}

#[test]
fn kind_and_name_must_both_match() {
    let btf = sample().parse();
    assert!(matches!(btf.field("dentry", "d_name"), Err(BtfError::NoStructure { .. })));
    assert!(matches!(btf.field("state", "STOPPED"), Err(BtfError::NoStructure { .. })));
    for name in ["fil", "file_", "", "chrdev_open", "pat"] {
        assert!(matches!(btf.size_of(name), Err(BtfError::NoStructure { .. })), "{name}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let btf = sample().parse();
    let message = btf.field("file", "f_path.nothing").unwrap_err().to_string();
    assert_eq!(message, "this kernel's `file` has no member `f_path.nothing` (stopped at `nothing`)");
    let message = btf.field("file", "f_count.counter").unwrap_err().to_string();
    assert_eq!(message, "`f_count` in `file.f_count.counter` is not an embedded struct or union");
    for path in ["", ".", "f_path.", ".f_path", "f_path..dentry"] {
        assert!(matches!(btf.field("file", path), Err(BtfError::NoMember { .. })), "path {path:?}");
    }
    assert!(matches!(btf.field("file", "opaque"), Err(BtfError::Incomplete { .. })));
}

#[test]
fn a_bitfield_of_either_encoding_is_refused_and_its_neighbour_is_not() {
    let mut blob = sample();
    let three_bits = blob.add("unsigned int", INT, 0, 4, &[3]);
    blob.record("old", STRUCT, 4, &[("narrow", three_bits, 0)]);
    let btf = blob.parse();
    assert_eq!(btf.field("flags", "whole").unwrap(), at(0, 4));
    assert!(matches!(btf.field("flags", "bit"), Err(BtfError::Bitfield { .. })));
    assert!(matches!(btf.field("old", "narrow"), Err(BtfError::Bitfield { .. })));
}

#[test]
fn structures_of_one_name_must_agree() {
    let mut blob = sample();
    let int = blob.int("int", 4);
    blob.record("twin", STRUCT, 8, &[("same", int, 0), ("moved", int, 32)]);
    blob.record("twin", STRUCT, 16, &[("same", int, 0), ("moved", int, 64)]);
    let btf = blob.parse();
    assert_eq!(btf.field("twin", "same").unwrap(), at(0, 4));
    assert!(matches!(btf.field("twin", "moved"), Err(BtfError::Ambiguous { .. })));
    assert!(matches!(btf.field("twin", "neither"), Err(BtfError::NoMember { .. })));
    assert!(matches!(btf.size_of("twin"), Err(BtfError::Ambiguous { .. })));
}

#[test]
fn names_that_begin_alike_are_told_apart() {
    let mut blob = Blob::new();
    let names = ["a", "trace_e", "trace_ev", "trace_event", "trace_event_call"];
    for (name, size) in names.into_iter().zip(1..) {
        blob.record(name, STRUCT, size, &[]);
    }
    // The last string of a blob may be shorter than what is looked at of it.
    let btf = blob.parse();
    for (name, size) in names.into_iter().zip(1..) {
        assert_eq!(btf.size_of(name).ok(), Some(size), "{name}");
    }
}

#[test]
fn an_unknown_kind_is_named() {
    let mut blob = sample();
    blob.add("", 77, 0, 0, &[]);
    let message = Btf::parse(blob.bytes()).unwrap_err().to_string();
    assert!(message.contains("unknown kind 77"), "{message}");
}

#[test]
fn what_is_no_btf_is_refused() {
    assert!(Btf::parse(Vec::new()).is_err());
    assert!(Btf::parse(b"\x7fELF not this one, sorry".to_vec()).is_err());
    let mut swapped = sample().bytes();
    swapped.swap(0, 1);
    let message = Btf::parse(swapped).unwrap_err().to_string();
    assert!(message.contains("the other byte order"), "{message}");
    let whole = sample().bytes();
    for len in 0..whole.len() {
        assert!(Btf::parse(whole[..len].to_vec()).is_err(), "cut off at {len}");
    }
}

#[test]
fn cycles_end() {
    let mut blob = Blob::new();
    // 1 and 2 refer to each other; 3 contains itself; 4 is an array of itself.
    blob.add("ring", TYPEDEF, 0, 2, &[]);
    blob.add("", CONST, 0, 1, &[]);
    blob.record("self", STRUCT, 8, &[("", 3, 0), ("", 3, 0), ("loop", 1, 0)]);
    blob.add("", ARRAY, 0, 0, &[4, 4, 1]);
    blob.record("arrays", STRUCT, 8, &[("all", 4, 0)]);
    let btf = blob.parse();
    assert!(matches!(btf.field("ring", "x"), Err(BtfError::NoStructure { .. })));
    assert!(matches!(btf.field("self", "loop"), Err(BtfError::TooDeep)));
    assert!(matches!(btf.field("arrays", "all"), Err(BtfError::TooDeep)));
}

#[test]
fn anonymous_members_beyond_count_end() {
    let mut blob = Blob::new();
    let mut inner = blob.record("", STRUCT, 8, &[]);
    for _ in 0..20 {
        inner = blob.record("", STRUCT, 8, &vec![("", inner, 0); 100]);
    }
    blob.record("wide", STRUCT, 8, &[("", inner, 0)]);
    assert!(matches!(blob.parse().field("wide", "absent"), Err(BtfError::TooDeep)));
}

/// Asks everything that can be asked.
fn question(btf: &Btf) {
    for structure in ["file", "path_t", "flags", "state", "ring", ""] {
        for path in ["f_count", "f_path.dentry", "grid", "bit", "opaque", "absent", ""] {
            let _ = btf.field(structure, path);
        }
        let _ = btf.size_of(structure);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(btf) = Btf::parse(bytes) {
            question(&btf);
        }
    }

    #[test]
    fn arbitrary_types_never_panic(types in proptest::collection::vec(any::<u32>(), 0..200), kinds in any::<u32>()) {
        let mut blob = Blob::new();
        blob.name("file");
        blob.name("f_count");
        // Small words make plausible ids, names and counts.
        let small: Vec<u32> = types.iter().enumerate().map(|(at, word)| {
            if at % 3 == 1 { (word & 0x9f00_0007).wrapping_add(kinds & 0x0100_0000) } else { word % 24 }
        }).collect();
        blob.words(&small);
        if let Ok(btf) = Btf::parse(blob.bytes()) {
            question(&btf);
        }
    }

    #[test]
    fn mutated_blobs_never_panic(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut bytes = sample().bytes();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(btf) = Btf::parse(bytes) {
            question(&btf);
        }
    }
}

/// Members with the offset and the type name that the kernel's own tool shows, for structures that it prints flat.
fn bpftool_members(structure: &str) -> Option<Vec<(String, u32)>> {
    let dump = std::process::Command::new("bpftool")
        .args(["btf", "dump", "-j", "file", Btf::VMLINUX])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let dump: serde_json::Value = serde_json::from_slice(&dump.stdout).ok()?;
    let found = dump["types"].as_array()?.iter().find(|t| t["kind"] == "STRUCT" && t["name"] == structure)?;
    let members =
        found["members"].as_array()?.iter().filter(|m| m["bitfield_size"].as_u64().unwrap_or(0) == 0);
    let member =
        |m: &serde_json::Value| Some((m["name"].as_str()?.to_owned(), m["bits_offset"].as_u64()? as u32));
    Some(members.filter_map(member).filter(|(name, _)| name != "(anon)" && !name.is_empty()).collect())
}

#[test]
fn this_kernel_is_read_as_bpftool_reads_it() {
    if !Path::new(Btf::VMLINUX).exists() {
        return;
    }
    let btf = Btf::read(Btf::VMLINUX).unwrap();
    for structure in ["task_struct", "file", "mm_struct"] {
        // Without the tool there is nothing to compare with.
        for (member, bits) in bpftool_members(structure).into_iter().flatten() {
            let ours = btf.field(structure, &member).unwrap();
            assert_eq!(ours.offset * 8, bits, "{structure}.{member}");
        }
    }
}

#[test]
fn this_kernel_has_what_every_kernel_has() {
    if !Path::new(Btf::VMLINUX).exists() {
        return;
    }
    let start = std::time::Instant::now();
    let btf = Btf::read(Btf::VMLINUX).unwrap();
    let parsed = start.elapsed();
    let sizes = [
        ("task_struct", "pid", 4),
        ("task_struct", "tgid", 4),
        ("task_struct", "comm", 16),
        ("task_struct", "files", 8),
        ("task_struct", "mm", 8),
        ("task_struct", "pending.signal", 8),
        ("signal_struct", "shared_pending.signal", 8),
        ("files_struct", "fdt", 8),
        ("fdtable", "max_fds", 4),
        ("file", "f_inode", 8),
        ("file", "f_path.dentry", 8),
        ("file", "f_op", 8),
        ("inode", "i_rdev", 4),
        ("inode", "i_mode", 2),
        ("vm_area_struct", "vm_file", 8),
        ("vm_area_struct", "vm_start", 8),
        ("sk_buff", "sk", 8),
        ("unix_sock", "peer", 8),
        ("sock", "sk_receive_queue", 24),
        ("nsproxy", "pid_ns_for_children", 8),
    ];
    for (structure, path, size) in sizes {
        let field = btf.field(structure, path).unwrap();
        assert_eq!(field.size, size, "{structure}.{path}");
        assert!(field.offset + field.size <= btf.size_of(structure).unwrap(), "{structure}.{path}");
    }
    let looked_up = start.elapsed();
    println!("parse {parsed:?}, {} lookups {:?}", 2 * sizes.len(), looked_up - parsed);
}
