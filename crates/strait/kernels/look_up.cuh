// Probes a table, tile by tile. This file has the code that all kinds of table share, and the complete probe
// for tables in which every key is unique.
#pragma once
#include "runs.cuh"

#define THREADS PROBE_THREADS
#define ITEMS PROBE_ITEMS
typedef Tile<THREADS, ITEMS> ProbeTile;

// Returns the tuple of a row: from the partitioned tuples if there are any, else from the columns. With
// `mixing`, a key from the columns is mixed.
__device__ __forceinline__ Tuple row_of(u64 tuples, const Columns& columns, const DeviceTable& table, bool mixing, u64 row) {
    if (tuples) return stream_tuple(at<Tuple>(tuples) + row);
    const Word key = __ldcs(at<Word>(columns.keys) + row);
    const Word value = columns.values ? __ldcs(at<Word>(columns.values) + row) : (Word)(columns.first + row);
    return Tuple{mixing ? mix(key, table.mixing) : key, value};
}

// Returns the rest of a task after its next tile.
__device__ __forceinline__ Task after_tile(Task rest) {
    const u32 rows = min(rest.probe_rows, (u32)ProbeTile::ROWS);
    rest.probe += rows;
    rest.probe_rows -= rows;
    return rest;
}

__device__ __forceinline__ Task task_of(const Probe& a, u32 number) {
    if (a.tasks) return at<Task>(a.tasks)[number];
    const u64 begin = (u64)number * a.tile;
    return Task{0, begin, 0, (u32)min((u64)a.tile, a.rows - begin)};
}

__device__ __forceinline__ void load_tile(const Probe& a, const Task& rest, bool mixing, Tuple (&tuple)[ITEMS]) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 number = ProbeTile::number(i);
        if (number < rest.probe_rows) tuple[i] = row_of(a.tuples, a.columns, a.table, mixing, rest.probe + number);
    }
}

// Probes a table of unique keys. `Slots` describes the kind of table:
// - `MIXED`: whether its keys are mixed.
// - `Seen`: the state of one lookup.
// - `ask(table, key)` starts the lookup: it loads the first slot, or the bit that says whether it is taken.
// - `find(table, key, seen)` returns whether the table has the key. If so, `seen.value` is its value.
template <int FLAVOUR, typename Slots>
__device__ __forceinline__ void probe_single(const Probe& a) {
    __shared__ u32 slot;
    __shared__ ProbeTile::Place place;
    const Output& out = a.output;
    u64 counted = 0, build_sum = 0, probe_sum = 0;
    Tasks tasks(out, &slot);
    for (;;) {
        const u32 number = tasks.take(out);
        if (number >= a.count) break;
        Task rest = task_of(a, number);
        while (rest.probe_rows) {
            Tuple tuple[ITEMS];
            typename Slots::Seen seen[ITEMS];
            u32 found = 0;
            // Starts all lookups before it uses the first result, to hide latency. Starting the next tile
            // before this one is written was tried: the additional registers cost more occupancy than it
            // gained.
            load_tile(a, rest, Slots::MIXED, tuple);
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                if (ProbeTile::number(i) < rest.probe_rows) seen[i] = Slots::ask(a.table, tuple[i].key);
            }
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                if (ProbeTile::number(i) >= rest.probe_rows) continue;
                if (!Slots::find(a.table, tuple[i].key, seen[i])) continue;
                found |= 1u << i;
                if (FLAVOUR == AGGREGATE) {
                    build_sum += summand(out, seen[i].value);
                    probe_sum += summand(out, tuple[i].value);
                } else if (FLAVOUR == IN_ORDER) {
                    flag_build(out, seen[i].value);
                } else if (FLAVOUR != PAIRS) {
                    flag_probe(out, tuple[i].value);
                    flag_build(out, seen[i].value);
                }
            }
            if (FLAVOUR == IN_ORDER) {
#pragma unroll
                for (int i = 0; i < ITEMS; i++) {
                    const u32 number = ProbeTile::number(i);
                    const bool valid = number < rest.probe_rows;
                    write_in_order(out, rest.probe + number, valid, found >> i & 1, seen[i].value);
                }
            }
            if (FLAVOUR == AGGREGATE) counted += __popc(found);
            if (FLAVOUR == PAIRS || FLAVOUR == PAIRS_FLAGGED) {
                u64 first, total;
                const Room room = ProbeTile::reserve_tile(out, place, rest, __popc(found), first, total);
                if (room == NO_ROOM) break;
                const auto value = [&](int i) { return seen[i].value; };
                if (room == ROOM) ProbeTile::write_single(out, place.begin + first, Slots::MIXED, tuple, found, value);
            }
            rest = after_tile(rest);
        }
    }
    if (FLAVOUR == AGGREGATE) add_up(out, counted, build_sum, probe_sum);
}

// The kernel entries for a table of unique keys.
#define SINGLE_ENTRY(name, flavour, Slots)                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, PROBE_BLOCKS) probe_single_##name(Probe a) { \
        probe_single<flavour, Slots>(a);                                                               \
    }
#define SINGLE_ENTRIES(Slots)                \
    SINGLE_ENTRY(pairs, PAIRS, Slots)            \
    SINGLE_ENTRY(flagged, PAIRS_FLAGGED, Slots)  \
    SINGLE_ENTRY(exists, EXISTS, Slots)          \
    SINGLE_ENTRY(aggregate, AGGREGATE, Slots)    \
    SINGLE_ENTRY(in_order, IN_ORDER, Slots)
