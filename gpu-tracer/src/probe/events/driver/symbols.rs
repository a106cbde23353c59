//! What `/proc/kallsyms` says of a function that cannot be probed by its name.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

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

/// Looks a function of a module up.
pub(super) fn look_up(root: &Path, module: &str, symbol: &str) -> Found {
    let Ok(file) = File::open(root.join("proc/kallsyms")) else { return Found::Nowhere };
    let lines = BufReader::with_capacity(1 << 16, file).lines().map_while(Result::ok);
    judge(lines, module, symbol)
}

fn judge(lines: impl Iterator<Item = String>, module: &str, symbol: &str) -> Found {
    let of_module = format!("[{module}]");
    let mut found = Found::Nowhere;
    for line in lines {
        let mut words = line.split_whitespace();
        let (Some(address), Some(kind), Some(name), Some(owner)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        if owner != of_module || !matches!(kind, "t" | "T") {
            continue;
        }
        let Some(rest) = name.strip_prefix(symbol) else { continue };
        if rest.is_empty() {
            if matches!(found, Found::At(_)) {
                return Found::Several;
            }
            found = Found::At(u64::from_str_radix(address, 16).unwrap_or(0));
        } else if is_clone(rest) && found == Found::Nowhere {
            found = Found::Clone(name.to_owned());
        }
    }
    found
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
        judge(list.lines().map(str::to_owned), "nvidia", "nvidia_close")
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
