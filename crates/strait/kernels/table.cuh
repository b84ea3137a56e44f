// One table over the whole build side in GPU memory: a hash table with linear probing, or an array that keys
// index directly. table/global.cu and table/compact.cu include this file and define where keys belong.
//
// A slot of a hash table holds a mixed key and its value. If keys repeat, it holds a mixed key and its group:
// where the values begin, and how many there are. The top bits of a key determine its home slot. Tuples that
// are partitioned by these bits therefore have nearby slots, which stay in the L2 cache.
//
// No key value is reserved for empty slots. An empty slot i holds the smallest key whose home is slot i+1.
// Probing goes forward, so no key is ever stored before its home slot.
//
// The including file defines `home(table, key)`, `after(table, slot)`, `empty(table, slot)` (the mark of an
// empty slot), `is_empty(table, slot, held)` and `holds(table, slot, held, key)`.
#pragma once
#include "look_up.cuh"

struct __align__(16) Group {
    Word key;
#if WORD_BYTES == 4
    u32 unused;
#endif
    u32 begin, count;
};

struct __align__(8) Direct {
    u32 begin, count;
};

extern "C" __global__ void __launch_bounds__(256) clear_single(ClearTable a) {
    for (u64 slot = (u64)blockIdx.x * 256 + threadIdx.x; slot < a.table.slot_count; slot += (u64)gridDim.x * 256) {
        store_tuple(at<Tuple>(a.table.slots) + slot, Tuple{empty(a.table, slot), 0});
    }
}

extern "C" __global__ void __launch_bounds__(256) clear_groups(ClearTable a) {
    for (u64 slot = (u64)blockIdx.x * 256 + threadIdx.x; slot < a.table.slot_count; slot += (u64)gridDim.x * 256) {
        if (a.table.direct) {
            at<Direct>(a.table.slots)[slot] = Direct{0, 0};
        } else {
            Group group = {};
            group.key = empty(a.table, slot);
            at<Group>(a.table.slots)[slot] = group;
        }
    }
}

// Inserts rows with unique keys: the slot holds the value. Sets `duplicates` if a key repeats.
extern "C" __global__ void __launch_bounds__(THREADS) insert_single(Insert a) {
    // Once a key has repeated, this table is useless. Stop early; above all, do not wait for the contended
    // slot of a frequent key.
    if (*reinterpret_cast<volatile u32*>(&at<Control>(a.control)->duplicates)) return;
    const u64 begin = (u64)blockIdx.x * ProbeTile::ROWS;
    Tuple tuple[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u64 row = begin + ProbeTile::number(i);
        if (row < a.rows) tuple[i] = row_of(a.tuples, a.columns, a.table, true, row);
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (begin + ProbeTile::number(i) >= a.rows) continue;
        const Word key = tuple[i].key;
        for (u64 slot = home(a.table, key);; slot = after(a.table, slot)) {
            Tuple* to = at<Tuple>(a.table.slots) + slot;
            const Word free = empty(a.table, slot), old = atomicCAS(&to->key, free, key);
            if (old == free) to->value = tuple[i].value;
            if (old == key) at<Control>(a.control)->duplicates = 1;
            if (old == free || old == key) break;
        }
    }
}

// Finds or creates the group of a row's key, and counts the row.
extern "C" __global__ void __launch_bounds__(THREADS) insert_groups(Insert a) {
    const u64 row = (u64)blockIdx.x * THREADS + threadIdx.x;
    const bool valid = row < a.rows;
    u64 slot = 0;
    u32* count = nullptr;
    if (valid) {
        const Tuple tuple = row_of(a.tuples, a.columns, a.table, !a.table.direct, row);
        if (a.table.direct) {
            slot = tuple.key - (Word)a.table.min;
            count = &at<Direct>(a.table.slots)[slot].count;
        } else {
            for (slot = home(a.table, tuple.key);; slot = after(a.table, slot)) {
                Group* to = at<Group>(a.table.slots) + slot;
                count = &to->count;
                // Read first: if the key is already there, no atomic operation is needed, and readers of a
                // slot do not wait for each other.
                if (__ldcg(&to->key) == tuple.key) break;
                const Word free = empty(a.table, slot), old = atomicCAS(&to->key, free, tuple.key);
                if (old == free || old == tuple.key) break;
            }
        }
        at<u32>(a.slot_of)[row] = (u32)slot;
    }
    // One lane counts all rows of the warp with the same key, so that a frequent key causes less contention.
    const u32 active = __ballot_sync(ALL_LANES, valid);
    if (!valid) return;
    const u32 same = __match_any_sync(active, (u32)slot);
    const u32 leader = __ffs(same) - 1;
    u32 before = 0;
    if (lane_id() == leader) before = atomicAdd(count, (u32)__popc(same));
    before = __shfl_sync(same, before, leader);
    at<u32>(a.rank)[row] = before + __popc(same & lanes_below());
}

// Gives each group its range among the values. The order of the groups does not matter.
extern "C" __global__ void __launch_bounds__(256) place_groups(PlaceGroups a) {
    __shared__ u32 sums[256 / WARP + 1];
    __shared__ u64 begin;
    for (u64 first = (u64)blockIdx.x * 256; first < a.table.slot_count; first += (u64)gridDim.x * 256) {
        const u64 slot = first + threadIdx.x;
        u32 count = 0;
        if (slot < a.table.slot_count) {
            count = a.table.direct ? at<Direct>(a.table.slots)[slot].count : at<Group>(a.table.slots)[slot].count;
        }
        u32 total;
        const u32 before = block_exclusive<u32, 256>(count, sums, total);
        if (threadIdx.x == 0) begin = atomicAdd(at<u64>(a.cursor), (u64)total);
        __syncthreads();
        if (count) {
            u32* to = a.table.direct ? &at<Direct>(a.table.slots)[slot].begin : &at<Group>(a.table.slots)[slot].begin;
            *to = (u32)begin + before;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256) fill_groups(FillGroups a) {
    const u64 row = (u64)blockIdx.x * 256 + threadIdx.x;
    if (row >= a.rows) return;
    const u32 slot = at<u32>(a.slot_of)[row];
    const u32 begin = a.table.direct ? at<Direct>(a.table.slots)[slot].begin : at<Group>(a.table.slots)[slot].begin;
    const Word value = row_of(a.tuples, a.columns, a.table, false, row).value;
    at<Word>(a.table.groups)[begin + at<u32>(a.rank)[row]] = value;
}

// Returns the run of a key in a table of groups.
__device__ __forceinline__ Run find_group(const DeviceTable& t, Word key) {
    if (t.direct) {
        const Word slot = key - (Word)t.min;
        if ((u64)slot >= t.slot_count) return Run{0, 0};
        const uint2 found = __ldg(at<uint2>(t.slots) + slot);
        return Run{found.x, found.y};
    }
    for (u64 slot = home(t, key);; slot = after(t, slot)) {
        const uint4 raw = __ldg(at<uint4>(t.slots) + slot);
#if WORD_BYTES == 4
        const Word found = raw.x;
#else
        const Word found = (u64)raw.y << 32 | raw.x;
#endif
        if (holds(t, slot, found, key)) return Run{raw.z, raw.w};
        if (is_empty(t, slot, found)) return Run{0, 0};
    }
}

// A hash table of unique keys: each key is in its home slot or in a later one.
struct Hashed {
    typedef Tuple Seen;
    static constexpr bool MIXED = true;

    static __device__ __forceinline__ Tuple slot_of(const DeviceTable& table, u64 slot) {
        const Packed p = __ldg(at<Packed>(table.slots) + slot);
        return Tuple{p.x, p.y};
    }
    static __device__ __forceinline__ Tuple ask(const DeviceTable& table, Word key) {
        return slot_of(table, home(table, key));
    }
    static __device__ __forceinline__ bool find(const DeviceTable& table, Word key, Tuple& seen) {
        u32 at_slot = (u32)home(table, key);
        while (seen.key != key && !is_empty(table, at_slot, seen.key)) {
            at_slot = (u32)after(table, at_slot);
            seen = slot_of(table, at_slot);
        }
        return holds(table, at_slot, seen.key, key);
    }
};

template <int FLAVOUR>
__device__ __forceinline__ void probe_groups(const Probe& a) {
    __shared__ u32 slot;
    __shared__ ProbeTile::Place place;
    ProbeTile::Long& tile = *reinterpret_cast<ProbeTile::Long*>(shared_bytes);
    const Output& out = a.output;
    const bool mixing = !a.table.direct;
    const Word* groups = at<Word>(a.table.groups);
    const auto value_of = [&](u32 at_place) { return __ldg(groups + at_place); };
    u64 counted = 0, build_sum = 0, probe_sum = 0;
    Tasks tasks(out, &slot);
    for (;;) {
        const u32 number = tasks.take(out);
        if (number >= a.count) break;
        for (Task rest = task_of(a, number); rest.probe_rows; rest = after_tile(rest)) {
            Tuple tuple[ITEMS];
            Run run[ITEMS];
            load_tile(a, rest, mixing, tuple);
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                run[i] = Run{0, 0};
                if (ProbeTile::number(i) >= rest.probe_rows) continue;
                run[i] = cut(find_group(a.table, tuple[i].key), rest);
                if (FLAVOUR == IN_ORDER) continue;
                note_run<FLAVOUR>(out, run[i], tuple[i].value, value_of, counted, build_sum, probe_sum);
            }
            if (FLAVOUR == IN_ORDER) {
#pragma unroll
                for (int i = 0; i < ITEMS; i++) {
                    const u32 number = ProbeTile::number(i);
                    write_in_order(out, rest.probe + number, number < rest.probe_rows, run[i].count != 0, 0);
                }
            }
            if (FLAVOUR == PAIRS || FLAVOUR == PAIRS_FLAGGED) {
                if (ProbeTile::write_runs(out, place, tile, rest, mixing, tuple, run, value_of) == NO_ROOM) break;
            }
        }
    }
    if (FLAVOUR == AGGREGATE) add_up(out, counted, build_sum, probe_sum);
}

#define ENTRY(name, flavour)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS) probe_groups_##name(Probe a) { \
        probe_groups<flavour>(a);                                                         \
    }
SINGLE_ENTRIES(Hashed)
ENTRY(pairs, PAIRS)
ENTRY(flagged, PAIRS_FLAGGED)
ENTRY(exists, EXISTS)
ENTRY(aggregate, AGGREGATE)
ENTRY(in_order, IN_ORDER)
