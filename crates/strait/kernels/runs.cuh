// Writes the rows of a tile of probe tuples. Each probe tuple matches a run of build values, from a hash
// table or from a sorted side.
//
// Tuple i of a lane is number `warp * 32 * ITEMS + i * 32 + lane` of its tile. Loads are thus coalesced, and
// each warp has a contiguous range. If no tuple matches more than one value, lanes write to adjacent places.
// Otherwise the tile's output rows are numbered and divided evenly among the threads, whatever the lengths of
// the runs. Row o belongs to the last tuple whose first row is at or before o.
#pragma once
#include "output.cuh"

// The run of one probe tuple: `count` build values, starting at place `begin`.
struct Run {
    u32 begin, count;
};

template <int THREADS, int ITEMS>
struct Tile {
    static constexpr int WARPS = THREADS / WARP;
    static constexpr int ROWS = THREADS * ITEMS;

    // The output range that is reserved for a tile.
    struct Place {
        u64 sums[WARPS + 1];
        u64 begin;
        u32 room;
    };

    // The tuples of a tile in shared memory, used while long runs are written.
    struct Long {
        Tuple tuples[ROWS];
        u32 firsts[ROWS];
        u32 begins[ROWS];
    };

    static __device__ __forceinline__ u32 number(int item) {
        return warp_id() * (WARP * ITEMS) + item * WARP + lane_id();
    }

    // Reserves output rows for the tile. This thread has `mine` rows. `first` becomes the position of the
    // warp's first row among the `total` rows of the tile. If the output is full, the rest of the task goes
    // onto the redo list. If the tile has too many rows for one reservation, only the tile does.
    static __device__ __forceinline__ Room reserve_tile(const Output& out, Place& place, const Task& rest,
                                                        u64 mine, u64& first, u64& total) {
        const u64 of_warp = warp_sum(mine);
        // Lanes of this warp may still read the sums of the previous tile. A shuffle does not order memory
        // accesses.
        __syncwarp();
        if (lane_id() == 0) place.sums[warp_id()] = of_warp;
        __syncthreads();
        if (warp_id() == 0) {
            const u64 count = lane_id() < WARPS ? place.sums[lane_id()] : 0;
            const u64 inclusive = warp_inclusive(count);
            if (lane_id() < WARPS) place.sums[lane_id()] = inclusive - count;
            if (lane_id() == WARPS - 1) {
                place.sums[WARPS] = inclusive;
                Task tile = rest;
                if (inclusive > min(out.most, out.capacity)) tile.probe_rows = min(rest.probe_rows, (u32)ROWS);
                place.room = inclusive ? reserve(out, tile, inclusive, place.begin) : ROOM;
            }
        }
        __syncthreads();
        first = place.sums[warp_id()];
        total = place.sums[WARPS];
        return (Room)place.room;
    }

    // Writes the rows of tuples that match at most one value. Bit i of `found` says whether tuple i has a
    // match, and `value_of(i)` is the matching value.
    template <typename ValueOf>
    static __device__ __forceinline__ void write_single(const Output& out, u64 first, bool mixed,
                                                        const Tuple (&tuple)[ITEMS], u32 found, ValueOf value_of) {
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            const bool mine = found >> i & 1;
            const u32 having = __ballot_sync(ALL_LANES, mine);
            if (mine) {
                const Word key = mixed ? mix(tuple[i].key, out.unmixing) : tuple[i].key;
                write_row(out, first + __popc(having & lanes_below()), key, value_of(i), tuple[i].value);
            }
            first += __popc(having);
        }
    }

    // Writes the rows of tuples and their runs. `value_of(place)` is the build value at a place. The barrier
    // in reserve_tile separates this call from the next use of `tile`.
    template <typename ValueOf>
    static __device__ __forceinline__ Room write_runs(const Output& out, Place& place, Long& tile,
                                                      const Task& rest, bool mixed,
                                                      const Tuple (&tuple)[ITEMS], const Run (&run)[ITEMS],
                                                      ValueOf value_of) {
        u64 mine = 0, first, total;
        bool has_long = false;
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            mine += run[i].count;
            has_long |= run[i].count > 1;
        }
        const Room room = reserve_tile(out, place, rest, mine, first, total);
        if (room != ROOM) return room;
        if (!__syncthreads_or(has_long)) {
            u32 found = 0;
#pragma unroll
            for (int i = 0; i < ITEMS; i++) found |= (run[i].count != 0) << i;
            const auto value = [&](int i) { return value_of(run[i].begin); };
            write_single(out, place.begin + first, mixed, tuple, found, value);
            return ROOM;
        }
        u32 before = (u32)first;
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            const u32 inclusive = warp_inclusive(run[i].count);
            const u32 n = number(i);
            tile.firsts[n] = before + inclusive - run[i].count;
            tile.begins[n] = run[i].begin;
            tile.tuples[n] = Tuple{mixed ? mix(tuple[i].key, out.unmixing) : tuple[i].key, tuple[i].value};
            before += __shfl_sync(ALL_LANES, inclusive, WARP - 1);
        }
        __syncthreads();
        for (u32 o = threadIdx.x; o < (u32)total; o += THREADS) {
            u32 low = 0, high = ROWS;
            while (high - low > 1) {
                const u32 middle = (low + high) / 2;
                if (tile.firsts[middle] <= o) low = middle;
                else high = middle;
            }
            const Word value = value_of(tile.begins[low] + (o - tile.firsts[low]));
            write_row(out, place.begin + o, tile.tuples[low].key, value, tile.tuples[low].value);
        }
        return ROOM;
    }
};

// Returns the part of a run that belongs to a task. This is the whole run, unless the task covers only some
// matches of a single tuple.
__device__ __forceinline__ Run cut(Run run, const Task& task) {
    if (task.build_rows == 0) return run;
    const u32 skip = (u32)min((u64)run.count, task.build);
    return Run{run.begin + skip, min(run.count - skip, task.build_rows)};
}

// Updates flags and sums for a tuple and its run, in the flavours that have them.
template <int FLAVOUR, typename ValueOf>
__device__ __forceinline__ void note_run(const Output& out, Run run, Word probe, ValueOf value_of,
                                         u64& counted, u64& build_sum, u64& probe_sum) {
    if (FLAVOUR == PAIRS || run.count == 0) return;
    if (FLAVOUR == AGGREGATE) {
        counted += run.count;
        probe_sum += summand(out, probe) * run.count;
        for (u32 j = 0; j < run.count; j++) build_sum += summand(out, value_of(run.begin + j));
        return;
    }
    flag_probe(out, probe);
    if (out.build_flags) {
        for (u32 j = 0; j < run.count; j++) flag_build(out, value_of(run.begin + j));
    }
}
