// One radix pass as in 004 §3.2.1: count, scan, reorder.
//
//   A  a block counts its chunk's digits in one histogram in shared memory ─► counts[digit][chunk]
//   B  an exclusive scan of that array, digit by digit ─► where each chunk's runs begin
//   C  a block reads its chunk again, and writes each digit's run where the scan says
//
// No block waits for another within a kernel. But each pass reads every tuple twice, in A and in C. Look-back
// saves one of these reads. There are two differences from 004. A chunk has several tiles, so the array of
// counts stays small. C orders a tile in shared memory before it writes, so it writes each run in one piece
// and keeps the order of an earlier pass.
#include "tile.cuh"

#define AT_ONCE 8

// A: counts the digits of a chunk.
template <bool FROM_TUPLES>
__device__ __forceinline__ void count_chunk(const SharedHistogram& a) {
    __shared__ u32 counts[BINS];
    if (threadIdx.x < BINS) counts[threadIdx.x] = 0;
    __syncthreads();
    const u64 begin = blockIdx.x * a.chunk;
    const u64 end = a.rows - begin < a.chunk ? a.rows : begin + a.chunk;
    for (u64 base = begin; base < end; base += THREADS * AT_ONCE) {
        // Load several keys at once, to hide latency (VT in 004).
        Word key[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const u64 row = base + i * THREADS + threadIdx.x;
            if (FROM_TUPLES) key[i] = row < end ? at<Tuple>(a.tuples)[row].key : Word(0);
            else key[i] = row < end ? mix(at<Word>(a.columns.keys)[row], a.mixing) : Word(0);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (base + i * THREADS + threadIdx.x >= end) break;
            atomicAdd(&counts[digit_of(key[i], a.digit)], 1u);
        }
    }
    __syncthreads();
    if (threadIdx.x < BINS) at<u32>(a.counts)[(u64)threadIdx.x * a.chunks + blockIdx.x] = counts[threadIdx.x];
}

// B: one block per digit computes the digit's count before each chunk, and its total.
extern "C" __global__ void __launch_bounds__(THREADS) shared_scan(SharedHistogram a) {
    __shared__ u32 sums[WARPS + 1];
    u32* counts = at<u32>(a.counts) + (u64)blockIdx.x * a.chunks;
    u32 before = 0;
    for (u32 base = 0; base < a.chunks; base += THREADS) {
        const u32 chunk = base + threadIdx.x;
        const u32 count = chunk < a.chunks ? counts[chunk] : 0;
        u32 total;
        const u32 place = block_exclusive<u32, THREADS>(count, sums, total);
        if (chunk < a.chunks) counts[chunk] = before + place;
        before += total;
        __syncthreads();
    }
    if (threadIdx.x == 0) at<u64>(a.bins)[blockIdx.x] = before;
}

// Writes one tile of a chunk. Between tiles, `target` is where the next tuple of each digit goes.
template <bool FROM_TUPLES>
__device__ __forceinline__ void scatter_tile(const SharedHistogram& a, u8* memory, u64 tile, u32 rows) {
    // Tuples from columns have no order that must be kept.
    constexpr bool STABLE = FROM_TUPLES;
    Tuple* tuples = reinterpret_cast<Tuple*>(memory);
    // The order overwrites the counts, which are no longer needed by then.
    u16* order = reinterpret_cast<u16*>(memory + TUPLE_BYTES);
    u64* target = reinterpret_cast<u64*>(memory + TUPLE_BYTES + ORDER_BYTES);
    u32* starts = reinterpret_cast<u32*>(target + BINS);
    u32* sums = starts + BINS;
    const u32 thread = threadIdx.x;
    const auto key_of = [&](u32 n) { return FROM_TUPLES ? tuples[n].key : mix(tuples[n].key, a.mixing); };

    clear_counts<STABLE>(order);
    if (FROM_TUPLES) load_tuples(at<Tuple>(a.tuples), tuples, rows, [&](u32 n) { return tile + n; });
    else load_columns(a.columns, tuples, tile, rows);
    __syncthreads();
    u32 rank[ITEMS];
    rank_tile<STABLE>(rank, order, key_of, a.digit, rows);
    __syncthreads();
    const u32 count = thread < BINS ? count_digit<STABLE>(order, thread) : 0;
    u32 total;
    const u32 start = block_exclusive<u32, THREADS>(count, sums, total);
    if (thread < BINS) {
        starts[thread] = start;
        target[thread] -= start;
    }
    __syncthreads();
    order_tile<STABLE>(rank, order, starts, rows);
    __syncthreads();
#pragma unroll 4
    for (u32 place = thread; place < rows; place += THREADS) {
        const u32 n = order[place];
        const Tuple t = {key_of(n), tuples[n].value};
        store_tuple(at<Tuple>(a.to_tuples) + target[digit_of(t.key, a.digit)] + place, t);
    }
    __syncthreads();
    if (thread < BINS) target[thread] += thread + 1 < BINS ? starts[thread + 1] : rows;
}

// C: writes a chunk's tuples, tile by tile.
template <bool FROM_TUPLES>
__device__ __forceinline__ void scatter_chunk(const SharedHistogram& a) {
    if (threadIdx.x < BINS) {
        u64* target = reinterpret_cast<u64*>(shared_bytes + TUPLE_BYTES + ORDER_BYTES);
        const u32 before = at<u32>(a.counts)[(u64)threadIdx.x * a.chunks + blockIdx.x];
        target[threadIdx.x] = at<u64>(a.bins)[threadIdx.x] + before;
    }
    const u64 begin = blockIdx.x * a.chunk;
    const u64 end = a.rows - begin < a.chunk ? a.rows : begin + a.chunk;
#pragma unroll 1
    for (u64 tile = begin; tile < end; tile += TILE) {
        // Hides from the compiler that the addresses are the same for every tile. Otherwise it would keep
        // them in registers that the ranks need.
        u32 nothing = 0;
        asm volatile("" : "+r"(nothing));
        scatter_tile<FROM_TUPLES>(a, shared_bytes + nothing, tile, end - tile < TILE ? (u32)(end - tile) : TILE);
    }
}

#define ENTRY(name, from, bounds, body)                                                            \
    extern "C" __global__ void bounds name(SharedHistogram a) { body<from>(a); }
ENTRY(shared_count_first, false, __launch_bounds__(THREADS), count_chunk)
ENTRY(shared_count_tuples, true, __launch_bounds__(THREADS), count_chunk)
ENTRY(shared_scatter_first, false, __launch_bounds__(THREADS, LOOK_BACK_BLOCKS), scatter_chunk)
ENTRY(shared_scatter_tuples, true, __launch_bounds__(THREADS, LOOK_BACK_BLOCKS), scatter_chunk)
