//! How long the addresses of this kernel are.

/// Does the kernel take addresses of 57 bits for ones that can be read, and uses 48?
///
/// Before it reads for a program it refuses what is no address by what the processor could do. With page tables of four levels on a
/// processor that could do five, what lies between is a general protection fault: the kernel survives it, but it complains in
/// its log, once, and where it is to panic when it complains that is the end of it.
#[must_use]
pub fn takes_too_long_addresses() -> bool {
    longest_address() > 48 && !has_five_levels()
}

/// Bits of an address that this processor could do (`boot_cpu_data.x86_virt_bits`).
#[cfg(target_arch = "x86_64")]
fn longest_address() -> u32 {
    const ADDRESS_SIZES: u32 = 0x8000_0008;
    let leaf = std::arch::x86_64::__cpuid(ADDRESS_SIZES);
    (leaf.eax >> 8) & 0xff
}

/// Elsewhere an address that is none is one at which nothing is, for the processor as well.
#[cfg(not(target_arch = "x86_64"))]
fn longest_address() -> u32 {
    0
}

/// Page tables of five levels are in use. A process gets memory beyond the end of four only where it asks for it.
fn has_five_levels() -> bool {
    const END_OF_FOUR: usize = 1 << 47;
    const LENGTH: usize = 4096;
    let wish = std::ptr::without_provenance_mut(END_OF_FOUR * 8);
    // SAFETY: a mapping of our own, nowhere in particular, that nobody can touch and nobody has when it is removed.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = libc::mmap(wish, LENGTH, libc::PROT_NONE, flags, -1, 0);
        if at == libc::MAP_FAILED {
            // Nobody knows; nothing is changed then.
            return true;
        }
        libc::munmap(at, LENGTH);
        at.addr() >= END_OF_FOUR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_levels_are_in_use_where_the_kernel_says_so() {
        let Ok(processors) = std::fs::read_to_string("/proc/cpuinfo") else { return };
        let says_so = processors.split_ascii_whitespace().any(|word| word == "la57");
        assert_eq!(has_five_levels(), says_so);
        if cfg!(target_arch = "x86_64") {
            assert!([48, 57].contains(&longest_address()), "{}", longest_address());
        }
    }
}
