//! Puts ledger, process facts and GPU memory together into one report: the only place where they meet.
