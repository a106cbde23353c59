//! What `/proc/kallsyms` says of a function that cannot be probed by its name.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

/// What the names of all modules of the driver begin with.
const MODULES: &str = "nvidia";

/// Where a function of a module is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// At this address; 0 where it may not be known (`kernel.kptr_restrict`).
    At(u64),
    /// Only under this name, as the compiler's copy of it for certain callers: its arguments may be other ones.
    Clone(String),
    /// Several have this name.
    Several,
    /// It is not there: this release of the driver does not have it, or the compiler has put it into its callers.
    Nowhere,
}

/// The functions of the driver's modules.
#[derive(Clone, Debug, Default)]
pub(super) struct Symbols(Vec<Symbol>);

#[derive(Clone, Debug)]
struct Symbol {
    address: u64,
    name: String,
    module: String,
}

impl Symbols {
    /// Reads the list: some 200,000 lines, so that this is done only where it is needed.
    pub(super) fn read(root: &Path) -> Self {
        let Ok(file) = File::open(root.join("proc/kallsyms")) else { return Self::default() };
        let lines = BufReader::with_capacity(1 << 16, file).lines().map_while(Result::ok);
        Self(lines.filter_map(|line| symbol(&line)).collect())
    }

    /// Looks a function of a module up.
    pub(super) fn look_up(&self, module: &str, function: &str) -> Found {
        let mut found = Found::Nowhere;
        for symbol in self.0.iter().filter(|symbol| symbol.module == module) {
            let Some(rest) = symbol.name.strip_prefix(function) else { continue };
            if rest.is_empty() {
                if matches!(found, Found::At(_)) {
                    return Found::Several;
                }
                found = Found::At(symbol.address);
            } else if is_clone(rest) && found == Found::Nowhere {
                found = Found::Clone(symbol.name.clone());
            }
        }
        found
    }
}

/// Address, kind, name, and the module in brackets; others than functions of the driver are left out.
fn symbol(line: &str) -> Option<Symbol> {
    let module = line.strip_suffix(']')?.rsplit_once('[')?.1;
    if !module.starts_with(MODULES) {
        return None;
    }
    let mut words = line.split_whitespace();
    let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
    let address = u64::from_str_radix(address, 16).ok()?;
    let is_code = matches!(kind, "t" | "T");
    is_code.then(|| Symbol { address, name: name.to_owned(), module: module.to_owned() })
}

/// `.isra.0`, `.constprop.1`: all of the function. `.part.0` and `.cold` are only a piece of it.
fn is_clone(suffix: &str) -> bool {
    let whole = suffix.starts_with(".isra.") || suffix.starts_with(".constprop.");
    whole && !suffix.contains(".part") && !suffix.contains(".cold")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_list(list: &str) -> Found {
        Symbols(list.lines().filter_map(symbol).collect()).look_up("nvidia", "nvidia_close")
    }

    #[test]
    fn the_function_of_the_right_module_is_found_and_no_data() {
        let list = "ffffffff81000000 T nvidia_close\n\
                    ffffffffc0001000 t nvidia_close_deferred\t[nvidia]\n\
                    ffffffffc0002000 t nvidia_close\t[nvidia_uvm]\n\
                    ffffffffc0003000 d nvidia_close\t[nvidia]\n\
                    ffffffffc0004000 T nvidia_close\t[nvidia]\n";
        assert_eq!(in_list(list), Found::At(0xffff_ffff_c000_4000));
        assert_eq!(in_list(&list.replace("nvidia_close\t[nvidia]\n", "x\t[nvidia]\n")), Found::Nowhere);
    }

    #[test]
    fn a_clone_stands_in_only_where_there_is_nothing_better_and_a_piece_never_does() {
        let clone = "1 t nvidia_close.isra.0\t[nvidia]\n";
        assert_eq!(in_list(clone), Found::Clone("nvidia_close.isra.0".to_owned()));
        assert_eq!(in_list(&format!("{clone}2 t nvidia_close\t[nvidia]")), Found::At(2));
        for piece in [".part.0", ".cold", ".isra.0.cold", ".constprop.0.part.1", "_deferred"] {
            assert_eq!(in_list(&format!("1 t nvidia_close{piece}\t[nvidia]")), Found::Nowhere, "{piece}");
        }
    }

    #[test]
    fn of_two_with_one_name_neither_is_taken() {
        assert_eq!(in_list("1 t nvidia_close\t[nvidia]\n2 t nvidia_close\t[nvidia]"), Found::Several);
    }
}
