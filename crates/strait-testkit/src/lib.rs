//! Test kit for Strait's joins: random tables, and a naive join to compare with.
//!
//! | module | answers |
//! | --- | --- |
//! | [`random`] | where do random numbers come from? |
//! | [`value`] | what is a cell, and when are two equal? |
//! | [`mod@decode`], [`mod@encode`] | how do arrays become values, and values arrays? |
//! | [`domain`] | which values may a column have? |
//! | [`kinds`] | which types are tested as keys and as payload? |
//! | [`shape`], [`generate`] | what does a random pair of tables look like? |
//! | [`sharing`] | do the batches of a dictionary column share their values? |
//! | [`oracle`] | which rows must a join yield? |
//! | [`compare`] | are these batches those rows? |
//! | [`mod@fingerprint`] | what is the hash of a cell? |
//!
//! The crate does not depend on Strait. It has its own enums, and shares no code with the code that it tests.

pub mod chosen;
pub mod compare;
pub mod decode;
pub mod domain;
pub mod encode;
pub mod fingerprint;
pub mod generate;
pub mod kinds;
pub mod oracle;
pub mod random;
pub mod shape;
pub mod sharing;
pub mod value;

pub use compare::{Mismatch, rows_of, same_rows};
pub use generate::{Pair, Table};
pub use kinds::KeyKind;
pub use oracle::{JoinKind, Triple, join};
pub use random::Rng;
pub use shape::Shape;
pub use value::{Comparison, Value};
