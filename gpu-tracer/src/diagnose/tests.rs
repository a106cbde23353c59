//! Every class of situation gets its own verdict.
