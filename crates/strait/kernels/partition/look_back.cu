// One radix pass in a single sweep, with decoupled look-back (Merrill and Garland 2016; as a sort,
// Adinets and Merrill 2022): each tuple is read once and written once.
//
//   tile ─► rank tuples by digit ─► publish the tile's counts ─► order tuples in shared memory
//                                        │                              │
//           counts of earlier tiles ◄────┘ look back            write each digit's run where
//                        └──────────────────────────────────────► the earlier tiles' runs end
//
// Tuples are pairs (key, value) in one array. A digit's run in a tile is thus twice as long as it would be in
// two columns, and a tuple needs one load and one store. Only the first pass reads columns, and only the last
// pass of a sort writes columns.
#include "tile.cuh"

// The status word of a tile for a digit: the digit's count in this tile (OWN), or in all tiles up to this one
// (UPTO).
#define OWN (1u << 30)
#define UPTO (2u << 30)
#define COUNT (OWN - 1)

// Returns how often a digit occurred in earlier tiles of this launch.
__device__ __forceinline__ u32 look_back(const u32* status, u32 tile, u32 digit) {
    u32 before = 0;
    for (i64 i = (i64)tile - 1; i >= 0;) {
        // Reads the status of four tiles at once. If one is not ready, it and the tiles before it are read
        // again.
        u32 word[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const i64 t = i - j < 0 ? 0 : i - j;
            word[j] = *reinterpret_cast<const volatile u32*>(status + t * BINS + digit);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (word[j] == 0 || i < 0) break;
            before += word[j] & COUNT;
            if (word[j] & UPTO) return before;
            i--;
        }
    }
    return before;
}

template <bool FROM_TUPLES, bool TO_TUPLES, bool STABLE>
__device__ __forceinline__ void pass(const LookBack& a) {
    Tuple* tuples = reinterpret_cast<Tuple*>(shared_bytes);
    // The order overwrites the counts, which are no longer needed by then.
    u16* order = reinterpret_cast<u16*>(shared_bytes + TUPLE_BYTES);
    u16* counts = order;
    u64* target = reinterpret_cast<u64*>(shared_bytes + TUPLE_BYTES + ORDER_BYTES);
    u32* starts = reinterpret_cast<u32*>(target + BINS);
    u32* sums = starts + BINS;
    const u32 thread = threadIdx.x;
    const bool mixing = !FROM_TUPLES && a.mix;
    const auto key_of = [&](u32 n) { return mixing ? mix(tuples[n].key, a.mixing) : tuples[n].key; };

    if (thread == 0) sums[0] = atomicAdd(at<u32>(a.ticket), 1u);
    clear_counts<STABLE>(counts);
    __syncthreads();
    const u32 tile = sums[0];
    const u64 begin = (u64)tile * TILE;
    const u32 rows = a.rows - begin < TILE ? (u32)(a.rows - begin) : TILE;
    if (FROM_TUPLES) load_tuples(at<Tuple>(a.tuples), tuples, rows, [&](u32 n) { return begin + n; });
    else load_columns(a.columns, tuples, begin, rows);
    __syncthreads();

    u32 rank[ITEMS];
    rank_tile<STABLE>(rank, counts, key_of, a.digit, rows);
    __syncthreads();

    // Publishes the tile's counts as early as possible, because later tiles wait for them.
    u32 count = 0;
    u32* status = at<u32>(a.status);
    if (thread < BINS) {
        count = count_digit<STABLE>(counts, thread);
        __stcg(status + (u64)tile * BINS + thread, count | (tile == 0 ? UPTO : OWN));
    }
    u32 total;
    const u32 start = block_exclusive<u32, THREADS>(count, sums, total);
    if (thread < BINS) starts[thread] = start;
    __syncthreads();
    order_tile<STABLE>(rank, counts, starts, rows);
    if (thread < BINS) {
        const u32 before = look_back(status, tile, thread);
        if (tile > 0) __stcg(status + (u64)tile * BINS + thread, (before + count) | UPTO);
        const u64 base = at<u64>(a.base)[thread];
        target[thread] = base + before - start;
        if (begin + rows == a.rows) at<u64>(a.next_base)[thread] = base + before + count;
    }
    __syncthreads();

#pragma unroll 4
    for (u32 place = thread; place < rows; place += THREADS) {
        const u32 n = order[place];
        const Tuple t = {key_of(n), tuples[n].value};
        const u64 to = target[digit_of(t.key, a.digit)] + place;
        if (TO_TUPLES) {
            store_tuple(at<Tuple>(a.to_tuples) + to, t);
        } else {
            at<Word>(a.to_keys)[to] = t.key;
            at<Word>(a.to_values)[to] = t.value;
        }
    }
}

#define ENTRY(name, from, to, stable)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, LOOK_BACK_BLOCKS) name(LookBack a) {     \
        pass<from, to, stable>(a);                                                                 \
    }
ENTRY(look_back_first, false, true, false)
ENTRY(look_back_first_stable, false, true, true)
ENTRY(look_back_tuples, true, true, true)
ENTRY(look_back_last, true, false, true)
ENTRY(look_back_only, false, false, true)
