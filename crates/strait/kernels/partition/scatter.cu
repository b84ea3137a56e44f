// Scatter kernels that keep no state between tiles (000 §4, table 1): Standard and Linear.
//
//   Standard   tuple ─► reserve a place in its partition ─► write
//   Linear     tile ─► rank by partition ─► reserve a range per partition ─► order ─► write runs
//
// Atomic additions to the partitions' cursors reserve places. The kernels count nothing: the host sets each cursor to the
// start of its partition, which follows from counts (`triton/scatter.rs`). Standard writes one tuple at a time, which means
// one packet per tuple over the link. Linear writes one run per partition. With many partitions, runs are short: with
// 512 partitions, a tile of 8192 tuples has 16 tuples per partition. Most runs begin and end inside a memory line.
#include "scatter.cuh"

#define STANDARD_THREADS 256
#define THREADS SCATTER_THREADS
#define ITEMS LINEAR_ITEMS
#define TILE (THREADS * ITEMS)
#define DIGITS_A_THREAD ((MOST_PARTITIONS + THREADS - 1) / THREADS)

template <bool FROM_TUPLES>
__device__ __forceinline__ void standard(const Scatter& a) {
    const u64 step = (u64)gridDim.x * STANDARD_THREADS;
    const u64 mine = (u64)blockIdx.x * STANDARD_THREADS + threadIdx.x;
    // All lanes of a warp stay in the loop while its first lane has a row.
    for (u64 row = mine; row - lane_id() < a.rows; row += step) {
        const bool valid = row < a.rows;
        const u32 active = __ballot_sync(ALL_LANES, valid);
        if (!valid) continue;
        const Tuple tuple = mixed<FROM_TUPLES>(a, source_tuple<FROM_TUPLES>(a, row));
        const u32 partition = partition_of(a, tuple.key);
        // Lanes with the same partition reserve together, so that a frequent key causes less contention.
        const u32 same = __match_any_sync(active, partition);
        const u32 leader = __ffs(same) - 1;
        u64 place = 0;
        if (lane_id() == leader) place = atomicAdd(at<u64>(a.cursors) + partition, (u64)__popc(same));
        place = __shfl_sync(same, place, leader) + __popc(same & lanes_below());
        store_tuple(at<Tuple>(a.to_tuples) + place, tuple);
    }
}

// Orders a tile in shared memory, and writes the run of each partition to its reserved range.
template <bool FROM_TUPLES>
__device__ __forceinline__ void linear_tile(const Scatter& a, u64 begin, u32 rows) {
    Tuple* tuples = reinterpret_cast<Tuple*>(shared_bytes);
    u64* target = reinterpret_cast<u64*>(tuples + TILE);
    // First the number of tuples per partition, then where its run begins in the tile.
    u32* starts = reinterpret_cast<u32*>(target + MOST_PARTITIONS);
    u32* sums = starts + MOST_PARTITIONS;
    const u32 thread = threadIdx.x;

    for (u32 i = thread; i < MOST_PARTITIONS; i += THREADS) starts[i] = 0;
    Tuple tuple[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 n = i * THREADS + thread;
        if (n < rows) tuple[i] = mixed<FROM_TUPLES>(a, source_tuple<FROM_TUPLES>(a, begin + n));
    }
    __syncthreads();
    u32 rank[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (i * THREADS + thread < rows) rank[i] = atomicAdd(&starts[partition_of(a, tuple[i].key)], 1u);
    }
    __syncthreads();

    u32 count[DIGITS_A_THREAD], sum = 0;
    const u32 first = thread * DIGITS_A_THREAD;
#pragma unroll
    for (int i = 0; i < DIGITS_A_THREAD; i++) {
        count[i] = first + i < MOST_PARTITIONS ? starts[first + i] : 0;
        sum += count[i];
    }
    u32 total;
    u32 before = block_exclusive<u32, THREADS>(sum, sums, total);
#pragma unroll
    for (int i = 0; i < DIGITS_A_THREAD; i++) {
        if (!count[i]) continue;
        starts[first + i] = before;
        target[first + i] = atomicAdd(at<u64>(a.cursors) + first + i, (u64)count[i]) - before;
        before += count[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (i * THREADS + thread < rows) store_tuple(tuples + starts[partition_of(a, tuple[i].key)] + rank[i], tuple[i]);
    }
    __syncthreads();
#pragma unroll 4
    for (u32 place = thread; place < rows; place += THREADS) {
        const Tuple t = load_tuple(tuples + place);
        store_tuple(at<Tuple>(a.to_tuples) + (target[partition_of(a, t.key)] + place), t);
    }
    __syncthreads();
}

template <bool FROM_TUPLES>
__device__ __forceinline__ void linear(const Scatter& a) {
#pragma unroll 1
    for (u64 begin = (u64)blockIdx.x * TILE; begin < a.rows; begin += (u64)gridDim.x * TILE) {
        linear_tile<FROM_TUPLES>(a, begin, a.rows - begin < TILE ? (u32)(a.rows - begin) : TILE);
    }
}

#define ENTRY(name, threads, body, from)                                                           \
    extern "C" __global__ void __launch_bounds__(threads) name(Scatter a) { body<from>(a); }
ENTRY(standard_columns, STANDARD_THREADS, standard, false)
ENTRY(standard_tuples, STANDARD_THREADS, standard, true)
ENTRY(linear_columns, THREADS, linear, false)
ENTRY(linear_tuples, THREADS, linear, true)
