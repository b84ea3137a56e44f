//! Tests of Strait's joins in DataFusion: each query must return the rows that DataFusion's own joins return.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `fuzz` | random queries over random tables, with and without Strait |
//! | `logic` | the meaning of nulls, marks and filters, with answers written by hand |
//! | `tpch` | the 22 queries of TPC-H |
//! | `plan` | which joins are replaced, and what `EXPLAIN` shows |
//! | `memory` | limits of memory and disk |
//! | `cancel` | joins that end early: dropped streams, failing inputs, limits |
//! | `polling` | outputs that are executed and polled in any order |
//! | `order` | joins whose order is used, and sorts that restore it |
//! | `sort_merge` | sort-merge joins that Strait replaces |
//! | `dynamic_filter` | filters from the build side that reach the scans of the probe side |
//!
//! They use `tables` (random tables), `query` (random queries), `rows` (comparing results), `session` (sessions, and facts
//! about plans), `setup` (one join in each mode) and `streams` (inputs that wait, fail or panic, and a memory pool that
//! records its peak).

mod cancel;
mod dynamic_filter;
mod fuzz;
mod logic;
mod memory;
mod order;
mod plan;
mod polling;
mod query;
mod rows;
mod session;
mod setup;
mod sort_merge;
mod streams;
mod tables;
mod tpch;
