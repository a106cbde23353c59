//! Real processes in real predicaments, and what gpu-tracer must say of them.
//!
//! Nothing here fakes a record. A *scenario* ([`scenario`]) is a script that a conductor process plays with *workers*
//! ([`worker`]): forked processes and threads that open, map, pass on and die as they are told. The script states the
//! ground truth ([`truth`]) from what it ordered, never from what a tool printed. [`stage`] sees to it that nothing
//! survives the scenario, whoever dies first. [`harness`] is what the integration tests use: it starts a scenario, runs
//! the tracer beside it and compares the two.
//!
//! ```text
//!  test ──stdin/stdout──▶ janitor ──parent of──▶ conductor ──orders──▶ workers, threads, their children
//!   │                       └ undoes everything when the conductor has ended, for whatever reason
//!   └──▶ gpu-tracer holders --device 1:5=nvidia0 --format json   (compared with the conductor's truth)
//! ```
//!
//! Any character device serves as the GPU; the tests use nodes for 1:5 (`/dev/zero`), which can be mapped and harms
//! nobody.

pub mod exam;
pub mod harness;
pub mod incident;
pub mod poll;
pub mod proc;
pub mod scenario;
pub mod stage;
pub mod sys;
pub mod truth;
pub mod worker;
