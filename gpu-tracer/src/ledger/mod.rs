//! The holder ledger. Pure: no I/O, no clock.
