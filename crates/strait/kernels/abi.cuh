// The structs that host and kernels pass to each other, byte for byte. src/device/abi.rs declares the same
// structs in Rust.
// Every field is an integer, so both sides agree on sizes. `at` turns an address into a pointer.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

template <typename T>
__device__ __forceinline__ T* at(u64 address) {
    return reinterpret_cast<T*>(address);
}

struct Digit { u32 shift, mask; };
struct Mixing { u64 first, second; };
struct Task { u64 build, probe; u32 build_rows, probe_rows; };
struct Redo { Task task; u64 rows; };
struct Control {
    u64 rows, counted, build_sum, probe_sum;
    u32 next, redone, full, duplicates;
};
struct Output {
    u64 keys, build, probe, build_flags, probe_flags, capacity, most, control, redo;
    u32 mixed, sign;
    Mixing unmixing;
};
struct Columns { u64 keys, values, first; };
struct Survey { u64 keys, rows, found; };
struct Histogram {
    u64 keys, rows, bins;
    Digit digits[8];
    u32 passes, mix, stride, unused;
    Mixing mixing;
};
struct Offsets { u64 bins; u32 passes, unused; };
struct LookBack {
    Columns columns;
    u64 tuples, to_tuples, to_keys, to_values, rows, base, next_base, status, ticket;
    Digit digit;
    u32 mix, stable;
    Mixing mixing;
};
struct SharedHistogram {
    Columns columns;
    u64 tuples, to_tuples, rows, chunk, counts, bins;
    Digit digit;
    u32 chunks, unused;
    Mixing mixing;
};
struct Chains { u64 tuples, directory, slots, counts; u32 digit_bits, bucket_bits; };
struct CutChains { u64 counts, rows, starts; u32 chains, piece; };
struct BucketPool {
    Columns columns;
    Chains from, to;
    u64 pieces, rows, cursor;
    Digit digit;
    u32 parents, piece, buckets, unused;
    Mixing mixing;
};
struct Compact { Chains from; u64 pieces, starts, to_tuples, rows; u32 chains, piece; };
struct Bounds { u64 tuples, rows, bounds; u32 shift, partitions; };
struct ListTasks {
    u64 build_bounds, probe_bounds, tasks, count;
    u32 partitions, build_rows, probe_rows, capacity;
};
struct JoinShared { u64 build, probe, tasks; u32 count, unused; Output output; };
struct DeviceTable { u64 slots, groups, taken, slot_count, min; u32 bits, direct; Mixing mixing; };
struct ClearTable { DeviceTable table; };
struct Insert { DeviceTable table; Columns columns; u64 tuples, rows, slot_of, rank, control; };
struct PlaceGroups { DeviceTable table; u64 cursor; };
struct FillGroups { DeviceTable table; Columns columns; u64 tuples, rows, slot_of, rank; };
struct Probe {
    DeviceTable table;
    Columns columns;
    u64 tuples, rows, tasks;
    u32 count, tile;
    Output output;
};
struct MergeJoin {
    u64 build, build_rows, probe, probe_rows, tasks, splits;
    u32 count, tile;
    Output output;
};
struct Gather { u64 rows, source, target, count; u32 width, unused; };
struct Pack { u64 at, base, first; u32 rows, bytes; };
struct Unpack { u64 packed, packs, keys; u32 count, unused; };
struct Tally { u64 keys, rows, counts; Digit digit; u32 stride, mix; Mixing mixing; };
struct Scatter {
    Columns columns;
    u64 tuples, to_tuples, rows, cursors, buffers;
    Digit digit;
    Mixing mixing;
};
