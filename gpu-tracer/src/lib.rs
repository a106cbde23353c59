//! Who still holds this GPU, and what will make them let go.
//!
//! The rooms, and what each may know, are described in `docs/architecture.md`. In short: [`kernel`] knows what this
//! kernel is, [`probe`] asks it, [`ledger`] keeps the truth about open files, [`process`] and [`gpu`] add what people
//! want to know about holders and cards, [`diagnose`] says why and what to do, [`answer`] puts it together,
//! [`render`] prints it. [`daemon`] does all of that always, and remembers.

pub mod answer;
pub mod cli;
pub mod daemon;
pub mod diagnose;
pub mod gpu;
pub mod journal;
pub mod kernel;
pub mod ledger;
pub mod model;
pub mod probe;
pub mod process;
pub mod release;
pub mod render;
