// One radix pass in a single sweep, with decoupled look-back (Merrill and Garland 2016; as a sort,
// Adinets and Merrill 2022): each tuple is read once and written once.
//
//   tile ─► rank tuples by digit ─► publish the tile's counts ─► order tuples in shared memory
//                                        │                              │
//           counts of earlier tiles ◄────┘ look back            write each digit's run where
//                        └──────────────────────────────────────► the earlier tiles' runs end
//
// Tuples are pairs (key, value) in one piece, so that a digit's run of a tile is twice as long as in
// two columns, and a tuple is one load and one store. Columns are read by the first pass of several
// and written by the last one of a sort.
#include "block.cuh"
#include "word.cuh"

#define BINS 256
#define THREADS LOOK_BACK_THREADS
#define ITEMS LOOK_BACK_ITEMS
#define TILE (THREADS * ITEMS)
#define WARPS (THREADS / WARP)

// Shared memory: the tile's tuples as they came; then, one after the other in the same place, each
// warp's counts and the tile's order; then a target and a start a digit, and sums.
#define TUPLE_BYTES (TILE * 2 * WORD_BYTES)
#define ORDER_BYTES (TILE * 2 > WARPS * BINS * 2 ? TILE * 2 : WARPS * BINS * 2)

// A tile's word for a digit: how often it came in this tile (OWN), or up to its end (UPTO).
#define OWN (1u << 30)
#define UPTO (2u << 30)
#define COUNT (OWN - 1)

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

// How often a digit came before this tile, in this launch.
__device__ __forceinline__ u32 look_back(const u32* status, u32 tile, u32 digit) {
    u32 before = 0;
    for (i64 i = (i64)tile - 1; i >= 0;) {
        // Several tiles are asked at once; what comes after one that is not ready is asked again.
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

// Starts to copy the tile into shared memory, past the registers.
template <bool FROM_TUPLES>
__device__ __forceinline__ void load_tile(const LookBack& a, Tuple* tuples, u64 begin, u32 rows) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 n = i * THREADS + threadIdx.x;
        if (n >= rows) break;
        const u64 row = begin + n;
        if (FROM_TUPLES) {
            copy_async<2 * WORD_BYTES>(tuples + n, at<Tuple>(a.tuples) + row);
        } else {
            copy_async<WORD_BYTES>(&tuples[n].key, at<Word>(a.columns.keys) + row);
            if (a.columns.values) copy_async<WORD_BYTES>(&tuples[n].value, at<Word>(a.columns.values) + row);
            else tuples[n].value = (Word)(a.columns.first + row);
        }
    }
    wait_for_copies();
}

template <bool FROM_TUPLES, bool TO_TUPLES, bool STABLE>
__device__ __forceinline__ void pass(const LookBack& a) {
    Tuple* tuples = reinterpret_cast<Tuple*>(shared_bytes);
    // Counts are dead when the order is written: they share the memory.
    u16* order = reinterpret_cast<u16*>(shared_bytes + TUPLE_BYTES);
    u16* counts = order;
    u32* count_all = reinterpret_cast<u32*>(order);
    u64* target = reinterpret_cast<u64*>(shared_bytes + TUPLE_BYTES + ORDER_BYTES);
    u32* starts = reinterpret_cast<u32*>(target + BINS);
    u32* sums = starts + BINS;
    const u32 thread = threadIdx.x;
    const bool mixing = !FROM_TUPLES && a.mix;
    const auto key_of = [&](u32 n) { return mixing ? mix(tuples[n].key) : tuples[n].key; };

    if (thread == 0) sums[0] = atomicAdd(at<u32>(a.ticket), 1u);
    for (u32 i = thread; i < (STABLE ? WARPS * BINS / 2 : BINS); i += THREADS) count_all[i] = 0;
    __syncthreads();
    const u32 tile = sums[0];
    const u64 begin = (u64)tile * TILE;
    const u32 rows = a.rows - begin < TILE ? (u32)(a.rows - begin) : TILE;
    load_tile<FROM_TUPLES>(a, tuples, begin, rows);
    __syncthreads();

    // A lane's tuples are 32 apart, so that a warp has a stretch, and ranks keep its order.
    const u32 first = warp_id() * (WARP * ITEMS) + lane_id();
    u32 rank[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 n = first + i * WARP;
        const bool valid = n < rows;
        const u32 digit = valid ? digit_of(key_of(n), a.digit) : 0;
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
    __syncthreads();

    // The tile's counts: told to later tiles as early as can be.
    u32 count = 0;
    u32* status = at<u32>(a.status);
    if (thread < BINS) {
        if (STABLE) {
#pragma unroll
            for (int warp = 0; warp < WARPS; warp++) {
                const u32 of_warp = counts[warp * BINS + thread];
                counts[warp * BINS + thread] = (u16)count;
                count += of_warp;
            }
        } else {
            count = count_all[thread];
        }
        __stcg(status + (u64)tile * BINS + thread, count | (tile == 0 ? UPTO : OWN));
    }
    u32 total;
    const u32 start = block_exclusive<u32, THREADS>(count, sums, total);
    if (thread < BINS) starts[thread] = start;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 digit = rank[i] & (BINS - 1);
        rank[i] = (rank[i] >> 8) + starts[digit] + (STABLE ? counts[warp_id() * BINS + digit] : 0);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 n = first + i * WARP;
        if (n < rows) order[rank[i]] = (u16)n;
    }
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
