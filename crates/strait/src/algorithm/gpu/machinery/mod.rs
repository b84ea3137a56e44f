//! The machinery that the algorithms share.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`wanted`] | what a join must produce, and who receives the output |
//! | [`table`] | builds hash tables and arrays in GPU memory, or in host memory |
//! | [`look_up`] | looks rows up in a table: rows in GPU memory, or a stream of chunks |
//! | [`in_order`] | looks a chunk up, and returns one result per probe row, in their order |
//! | [`partitions`] | partitions a side in GPU memory, and joins co-partitions |
//! | [`stream`] | streams the probe side to the device, chunk by chunk |
//! | [`host_partitions`] | holds partitions in host memory, as lists of runs |
//! | [`working_set`] | joins partitions in host memory, one working set at a time |
//! | [`output_loop`] | writes output of any size through buffers of a fixed size |
//! | [`flags`] | records which rows have a match |
//! | [`host`] | joins Arrow tables: key words go to the GPU; pairs, values, bits or counts come back |

pub(super) mod flags;
pub(super) mod host;
pub(super) mod host_partitions;
mod in_order;
pub(super) mod look_up;
pub(super) mod output_loop;
pub(super) mod partitions;
pub(super) mod stream;
pub(super) mod table;
pub(super) mod wanted;
pub(super) mod working_set;
