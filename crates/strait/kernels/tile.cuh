// A tile of tuples ordered by digit in shared memory: what the radix partitioners have in common.
//
//   load ─► rank each tuple among those of its digit ─► count digits ─► order
//
// A partitioner does between these steps what it is known by: it learns where a digit's run goes.
#pragma once
#include "block.cuh"
#include "word.cuh"

#define BINS 256
#define THREADS LOOK_BACK_THREADS
#define ITEMS LOOK_BACK_ITEMS
#define TILE (THREADS * ITEMS)
#define WARPS (THREADS / WARP)

// Shared memory: the tile's tuples as they came; then, one after the other in the same place, each
// warp's counts and the tile's order; then what each kernel keeps a digit.
#define TUPLE_BYTES (TILE * 2 * WORD_BYTES)
#define ORDER_BYTES (TILE * 2 > WARPS * BINS * 2 ? TILE * 2 : WARPS * BINS * 2)

__device__ __forceinline__ u32 digit_of(Word key, Digit digit) {
    return (u32)(key >> digit.shift) & digit.mask;
}

// The lanes among `active` whose digit is this lane's.
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

// Copies columns into shared memory, past the registers.
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

// Likewise tuples; `place` says where in memory the tile's tuple n lies.
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

// Stable ranks count by warp, in 16 bits; others all in one place.
template <bool STABLE>
__device__ __forceinline__ void clear_counts(u16* counts) {
    u32* words = reinterpret_cast<u32*>(counts);
    for (u32 i = threadIdx.x; i < (STABLE ? WARPS * BINS / 2 : BINS); i += THREADS) words[i] = 0;
}

// This thread's first tuple. A lane's tuples are 32 apart, so that a warp has a stretch, and ranks
// keep its order.
__device__ __forceinline__ u32 first_item() { return warp_id() * (WARP * ITEMS) + lane_id(); }

// Ranks this thread's tuples: `rank << 8 | digit`. Counts are zeros at first; a barrier follows.
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

// How often a digit came in the tile; a warp's counts become what the warps before it have.
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

// Writes the tile's order, in which digit d begins at `starts[d]`, over the counts. Barriers stand
// before, since `starts` are read, and after.
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
