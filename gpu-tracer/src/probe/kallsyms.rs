//! Addresses of kernel symbols.

/// Where unix sockets are kept before Linux 6.0: an array of chains.
pub(super) const UNIX_SOCKETS: &str = "unix_socket_table";

/// Address of a symbol, from `/proc/kallsyms`. Slow (a hundred thousand lines), so only where there is no other way.
/// `None` also where the kernel hides addresses from this process.
pub(super) fn address_of(symbol: &str) -> Option<u64> {
    find(&std::fs::read_to_string("/proc/kallsyms").ok()?, symbol)
}

/// Lines are `ADDRESS TYPE NAME`, with a tab and `[MODULE]` behind those of modules.
fn find(symbols: &str, symbol: &str) -> Option<u64> {
    let line = symbols.lines().find(|line| line.split_ascii_whitespace().nth(2) == Some(symbol))?;
    let address = u64::from_str_radix(line.split(' ').next()?, 16).ok()?;
    (address != 0).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_is_found_by_its_whole_name_and_a_hidden_address_is_none() {
        let symbols = "ffffffff81000010 T unix_socket_table_lock\nffffffff81000020 B unix_socket_table\n\
                       ffffffffc0000030 d io_uring_fops\t[module]\n0000000000000000 T hidden\n";
        assert_eq!(find(symbols, UNIX_SOCKETS), Some(0xffff_ffff_8100_0020));
        assert_eq!(find(symbols, "io_uring_fops"), Some(0xffff_ffff_c000_0030));
        assert_eq!(find(symbols, "hidden"), None);
        assert_eq!(find(symbols, "unix"), None);
    }
}
