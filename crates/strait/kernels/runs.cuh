// Writes the rows of a tile of probe tuples, of which each meets a run of build values: what a table
// and a sorted side yield.
//
// Tuple i of a lane is number `warp * 32 * ITEMS + i * 32 + lane` of its tile, so that loads are
// coalesced and each warp has a stretch. Where no tuple meets more than one value, lanes write next
// to one another. Else the tile's rows are numbered through and shared out evenly, whatever the
// lengths of the runs: row o belongs to the last tuple whose first row is o or before.
#pragma once
#include "output.cuh"

// One probe tuple's run: `count` build values from place `begin` on.
struct Run {
    u32 begin, count;
};

template <int THREADS, int ITEMS>
struct Tile {
    static constexpr int WARPS = THREADS / WARP;
    static constexpr int ROWS = THREADS * ITEMS;

    // A tile's reservation.
    struct Place {
        u64 sums[WARPS + 1];
        u64 begin;
        u32 room;
    };

    // Where tuples of a tile lie while long runs are written.
    struct Long {
        Tuple tuples[ROWS];
        u32 firsts[ROWS];
        u32 begins[ROWS];
    };

    static __device__ __forceinline__ u32 number(int item) {
        return warp_id() * (WARP * ITEMS) + item * WARP + lane_id();
    }

    // Reserves room for the tile, of which this thread has `mine` rows. The warp's first row is
    // `first` among the tile's `total`. Without room, the rest of the task is to be done again; a
    // tile that is too long, alone.
    static __device__ __forceinline__ Room reserve_tile(const Output& out, Place& place, const Task& rest,
                                                        u64 mine, u64& first, u64& total) {
        const u64 of_warp = warp_sum(mine);
        // Its lanes may still read what the tile before has put there: a shuffle does not order memory.
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

    // Writes tuples of which none meets more than one value. Bit i of `found` says whether tuple i
    // does, and `value_of(i)` is what it meets.
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

    // Writes tuples and their runs; `value_of(place)` is the build value at a place.
    // A barrier stands between this and the next use of `tile`: the one in reserve_tile.
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

// The part of a run that a task asks for: all of it, or where the task cuts a single tuple's run,
// some of it.
__device__ __forceinline__ Run cut(Run run, const Task& task) {
    if (task.build_rows == 0) return run;
    const u32 skip = (u32)min((u64)run.count, task.build);
    return Run{run.begin + skip, min(run.count - skip, task.build_rows)};
}

// The flags and sums of a tuple and its run, for the flavours that have them.
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
