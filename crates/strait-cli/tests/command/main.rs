//! Runs the real binary on real files.

mod explain;
mod faults;
mod generate;
mod inputs;
mod interrupts;
mod joins;
mod outputs;
mod sandbox;
mod shells;
mod usage;
