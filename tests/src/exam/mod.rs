//! The exam that finds what nobody listed: random steps by real processes, and an answer about every reference.
//!
//! A seed gives a sequence of [`step::Step`]s. [`cast::Cast`] has real workers carry them out and tells the
//! [`model::Model`] what happened; from it follows what must be so ([`expected`]). After every burst of steps the tracer is asked
//! ([`question`]), alone and through a daemon, and every difference is a finding. [`sitting`] then looks for the fewest
//! steps that still show it.
//!
//! ```text
//!  seed ──▶ steps ──▶ cast ──orders──▶ workers            gpu-tracer holders (alone, and through a daemon)
//!                      └──▶ model ──▶ what must be so ──▶ compared with what it answers
//! ```

pub mod cast;
pub mod compare;
pub mod expected;
pub mod model;
pub mod moment;
pub mod numbers;
pub mod question;
pub mod random;
pub mod sitting;
pub mod step;
mod surroundings;

pub use sitting::{Outcome, Settings, examine};
