// Orders a tile of tuples by digit in shared memory. The radix partitioners share these steps.
//
//   load ─► rank each tuple among the tuples of its digit ─► count digits ─► order
//
// Between these steps, each partitioner determines in its own way where the run of a digit goes.
#pragma once
#include "block.cuh"
#include "word.cuh"

#define BINS 256
#define THREADS LOOK_BACK_THREADS
#define ITEMS LOOK_BACK_ITEMS
#define TILE (THREADS * ITEMS)
#define WARPS (THREADS / WARP)

// Shared memory has three parts: the tile's tuples in input order; the counts per warp, which the tile's
// order later overwrites; and the data that each kernel keeps per digit.
#define TUPLE_BYTES (TILE * 2 * WORD_BYTES)
#define ORDER_BYTES (TILE * 2 > WARPS * BINS * 2 ? TILE * 2 : WARPS * BINS * 2)

__device__ __forceinline__ u32 digit_of(Word key, Digit digit) {
    return (u32)(key >> digit.shift) & digit.mask;
}

// Returns the lanes in `active` that have the same digit as this lane.
__device__ __forceinline__ u32 same_digit(u32 digit, u32 active) {
    u32 same = active;
#pragma unroll
    for (int bit = 0; bit < 8; bit++) {
        const bool set = digit >> bit & 1;
        const u32 with = __ballot_sync(ALL_LANES, set);
        same &= set ? with : ~with;
    }
    return same;
}

// Copies columns into shared memory with copy_async.
__device__ __forceinline__ void load_columns(const Columns& columns, Tuple* tuples, u64 begin, u32 rows) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 n = i * THREADS + threadIdx.x;
        if (n >= rows) break;
        const u64 row = begin + n;
        copy_async<WORD_BYTES>(&tuples[n].key, at<Word>(columns.keys) + row);
        if (columns.values) copy_async<WORD_BYTES>(&tuples[n].value, at<Word>(columns.values) + row);
        else tuples[n].value = (Word)(columns.first + row);
    }
    wait_for_copies();
}

// Copies tuples in the same way. `place` returns where the tile's tuple n is in memory.
template <typename Place>
__device__ __forceinline__ void load_tuples(const Tuple* from, Tuple* tuples, u32 rows, Place place) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 n = i * THREADS + threadIdx.x;
        if (n >= rows) break;
        copy_async<2 * WORD_BYTES>(tuples + n, from + place(n));
    }
    wait_for_copies();
}

// Clears the counts. Stable ranks need 16-bit counts per warp; other ranks share one array of counts.
template <bool STABLE>
__device__ __forceinline__ void clear_counts(u16* counts) {
    u32* words = reinterpret_cast<u32*>(counts);
    for (u32 i = threadIdx.x; i < (STABLE ? WARPS * BINS / 2 : BINS); i += THREADS) words[i] = 0;
}

// The number of this thread's first tuple. Tuples of a lane are 32 apart, so each warp has a contiguous
// range, and ranks keep its order.
__device__ __forceinline__ u32 first_item() { return warp_id() * (WARP * ITEMS) + lane_id(); }

// Computes `rank << 8 | digit` for each tuple of this thread. The counts must be zero before the call. The
// caller places a barrier after it.
template <bool STABLE, typename KeyOf>
__device__ __forceinline__ void rank_tile(u32 (&rank)[ITEMS], u16* counts, KeyOf key_of, Digit wanted, u32 rows) {
    const u32 first = first_item();
    u32* count_all = reinterpret_cast<u32*>(counts);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 n = first + i * WARP;
        const bool valid = n < rows;
        const u32 digit = valid ? digit_of(key_of(n), wanted) : 0;
        if (STABLE) {
            u16* mine = counts + warp_id() * BINS;
            const u32 same = same_digit(digit, __ballot_sync(ALL_LANES, valid));
            const u32 before = __popc(same & lanes_below());
            u32 old = 0;
            if (valid) old = mine[digit];
            __syncwarp();
            if (valid && before == 0) mine[digit] = (u16)(old + __popc(same));
            __syncwarp();
            rank[i] = (old + before) << 8 | digit;
        } else {
            rank[i] = (valid ? atomicAdd(&count_all[digit], 1u) : 0) << 8 | digit;
        }
    }
}

// Returns how often a digit occurs in the tile. Replaces each warp's count by the sum of the counts of the
// warps before it.
template <bool STABLE>
__device__ __forceinline__ u32 count_digit(u16* counts, u32 digit) {
    if (!STABLE) return reinterpret_cast<u32*>(counts)[digit];
    u32 count = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
        const u32 of_warp = counts[warp * BINS + digit];
        counts[warp * BINS + digit] = (u16)count;
        count += of_warp;
    }
    return count;
}

// Writes the tile's order over the counts. In this order, digit d begins at `starts[d]`. The caller places a
// barrier before the call, because `starts` is read, and one after it.
template <bool STABLE>
__device__ __forceinline__ void order_tile(u32 (&rank)[ITEMS], u16* counts, const u32* starts, u32 rows) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 digit = rank[i] & (BINS - 1);
        rank[i] = (rank[i] >> 8) + starts[digit] + (STABLE ? counts[warp_id() * BINS + digit] : 0);
    }
    __syncthreads();
    const u32 first = first_item();
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 n = first + i * WARP;
        if (n < rows) counts[rank[i]] = (u16)n;
    }
}
