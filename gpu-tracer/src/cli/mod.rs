//! Command line: one file per subcommand, nothing but arguments and calls.
