//! Verdicts and advice. Pure.
