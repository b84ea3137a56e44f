// Scatter kernels that combine writes (000 §4.2, §4.3): Shared and Hierarchical.
//
//            ┌────────────── a block ──────────────┐
//   tile ─► put into buffers ─► pop full ones ─────┼─► target, whole lines                  Shared
//            ▲  shared memory       │              │
//            └── no room: retry ────┤              │
//                                   └─► long buffers ─► full ones are swapped for spares,
//                                       GPU memory     and drained during the next tile's
//                                                      loads ─► target, 2 KiB or more  Hierarchical
//
// Over the link, every write costs a packet, however short it is. Tuples therefore wait in one buffer per
// partition until they fill lines of 128 bytes that are aligned with the lines of the target. If partitions are
// many and far apart, writes also miss the TLB (000 §6.2.6). Then tuples wait in a second buffer until they
// fill 2 KiB.
//
// The difference from 000: there, a warp that meets a full buffer locks and flushes it, and the other warps
// continue. Here a block works in rounds. All threads put their tuples, or find the buffer full. After a
// barrier, each warp empties the full buffers among its partitions. This is simpler, because there are no
// locks. The cost is a few barriers per tile. It was not measured against the locks of 000. As in 000, the slow
// part is outside the rounds: a full long buffer is exchanged for a spare one, and is written while the loads
// of the next tile are in flight. (In 000, each warp has one spare and writes by itself. Here, a block has
// SPARES spares, and its warps write all full buffers in one step that ends with a barrier.)
#include "scatter.cuh"

#define THREADS SCATTER_THREADS
#define ITEMS SCATTER_ITEMS
#define TILE (THREADS * ITEMS)
#define WARPS (THREADS / WARP)
#define SPARES SCATTER_SPARES
// LINE: tuples per memory line. LONG: the number of tuples above which a long buffer counts as full.
#define LINE (128 / TUPLE_BYTES)
#define LONG (SCATTER_LONG / TUPLE_BYTES)

// A full long buffer that waits to be written to the target, starting at tuple `to`.
struct Aside {
    u64 to;
    u32 buffer, count;
};

// Shared memory besides the buffers: the full long buffers, the spares, and the number of spares in use.
#define ASIDE_BYTES (SPARES * 20 + 16)
// Additional shared memory per partition: the fill of its two buffers, and the number of its long buffer.
#define PARTITION_BYTES 12

// The capacity of a partition's buffer in shared memory, and the length of a line, both in tuples. If a
// buffer has no room for a line of 128 bytes, lines are shorter. Must agree with Policy::combine_shape.
struct Shape {
    u32 capacity, line;

    __device__ __forceinline__ explicit Shape(u32 partitions) {
        const u32 bytes = SCATTER_SHARED - ASIDE_BYTES - PARTITION_BYTES * partitions;
        const u32 room = min(bytes / (partitions * TUPLE_BYTES), (u32)LONG);
        line = room < LINE ? 1u << (31 - __clz(room)) : LINE;
        capacity = room / line * line;
    }

    // The tuples of a long buffer. A long buffer that is not yet full takes one more short buffer, and then
    // up to a line more.
    __device__ __forceinline__ u32 long_room() const { return LONG + capacity + line; }
};

// The buffers of one block.
template <bool HIERARCHICAL>
struct Combiner {
    const Scatter& a;
    const u32 partitions;
    const Shape shape;
    // Buffer p has `fill[p]` tuples. A value above the capacity also counts the attempts that failed.
    Tuple* buffers;
    u32* fill;
    // The long buffer of partition p is number `which[p]`, and holds `held[p]` tuples.
    Tuple* longs;
    u32 *held, *which;
    // Full buffer i was exchanged for spare i. Once it is written, it becomes the next spare i.
    Aside* aside;
    u32 *spares, *used;

    __device__ __forceinline__ explicit Combiner(const Scatter& a)
        : a(a), partitions(a.digit.mask + 1), shape(partitions) {
        buffers = reinterpret_cast<Tuple*>(shared_bytes);
        aside = reinterpret_cast<Aside*>(buffers + partitions * shape.capacity);
        spares = reinterpret_cast<u32*>(aside + SPARES);
        used = spares + SPARES;
        fill = used + 4;
        held = fill + partitions;
        which = held + partitions;
        longs = at<Tuple>(a.buffers) + (u64)blockIdx.x * (partitions + SPARES) * shape.long_room();
        for (u32 p = threadIdx.x; p < partitions; p += THREADS) {
            fill[p] = 0;
            held[p] = 0;
            which[p] = p;
        }
        for (u32 i = threadIdx.x; i < SPARES; i += THREADS) spares[i] = partitions + i;
        if (threadIdx.x == 0) *used = 0;
        __syncthreads();
    }

    __device__ __forceinline__ Tuple* long_buffer(u32 number) const { return longs + (u64)number * shape.long_room(); }
    __device__ __forceinline__ u64* cursor(u32 partition) const { return at<u64>(a.cursors) + partition; }

    // Returns the position of tuple `place` of the target within its line.
    __device__ __forceinline__ u32 into_line(u64 place) const {
        return (u32)(a.to_tuples / TUPLE_BYTES + place) & (shape.line - 1);
    }

    // Puts a tuple into the buffer of its partition. Returns false if the buffer is full.
    __device__ __forceinline__ bool put(const Tuple& tuple) {
        const u32 p = partition_of(a, tuple.key);
        // Skip the atomic operation if the buffer is known to be full: a frequent key then causes less
        // contention.
        if (*reinterpret_cast<volatile u32*>(fill + p) >= shape.capacity) return false;
        const u32 place = atomicAdd(fill + p, 1u);
        if (place >= shape.capacity) return false;
        store_tuple(buffers + p * shape.capacity + place, tuple);
        return true;
    }

    // Calls `each(p)` for the partitions of this warp, one per lane. All lanes call this. `p` may be past the
    // last partition.
    template <typename Each>
    __device__ __forceinline__ void for_partitions(Each each) {
        for (u32 first = warp_id(); first < partitions; first += THREADS) each(first + lane_id() * WARPS);
    }

    // Empties the full buffers into the target. The lanes of a warp reserve places for all its partitions at
    // once.
    //
    // Each write ends at the end of a line, according to the cursor that was read. Another block may move the
    // cursor in the meantime. But once a cursor is at the end of a line, all blocks move it by whole lines.
    // The remaining tuples stay at the front of the buffer.
    __device__ __forceinline__ void pop_to_target() {
        for_partitions([&](u32 p) {
            const bool full = p < partitions && fill[p] >= shape.capacity;
            u64 place = 0;
            u32 kept = 0;
            if (full) {
                kept = into_line(__ldcg(cursor(p)) + shape.capacity);
                place = atomicAdd(cursor(p), (u64)(shape.capacity - kept));
                fill[p] = kept;
            }
            for (u32 left = __ballot_sync(ALL_LANES, full); left; left &= left - 1) {
                const int lane = __ffs(left) - 1;
                const u32 over = __shfl_sync(ALL_LANES, kept, lane);
                Tuple* to = at<Tuple>(a.to_tuples) + __shfl_sync(ALL_LANES, place, lane);
                const Tuple* from = buffers + __shfl_sync(ALL_LANES, p, lane) * shape.capacity;
                copy_tuples(to, from + over, shape.capacity - over);
            }
        });
    }

    // Empties the full buffers into the long buffers. A full long buffer first gets enough tuples to end at
    // the end of a line, and then waits to be written. If there is no spare, the short buffer stays full
    // until the next round. The waiting buffers are drained before that round.
    __device__ __forceinline__ void pop_to_longs() {
        for_partitions([&](u32 p) {
            bool moves = p < partitions && fill[p] >= shape.capacity;
            // Tuples before `split` go to `here`, the others to `there`.
            u32 split = shape.capacity;
            Tuple *here = nullptr, *there = nullptr;
            if (moves) {
                const u32 has = held[p], number = which[p];
                here = long_buffer(number) + has;
                if (has <= LONG) {
                    held[p] = has + shape.capacity;
                    fill[p] = 0;
                } else {
                    const u32 ticket = atomicAdd(used, 1u);
                    moves = ticket < SPARES;
                    if (moves) {
                        split = (0 - into_line(__ldcg(cursor(p)) + has)) & (shape.line - 1);
                        const u32 count = has + split;
                        aside[ticket] = Aside{atomicAdd(cursor(p), (u64)count), number, count};
                        which[p] = spares[ticket];
                        spares[ticket] = number;
                        there = long_buffer(which[p]);
                        held[p] = shape.capacity - split;
                    }
                    fill[p] = moves ? 0 : shape.capacity;
                }
            }
            for (u32 left = __ballot_sync(ALL_LANES, moves); left; left &= left - 1) {
                const int lane = __ffs(left) - 1;
                const u32 cut = __shfl_sync(ALL_LANES, split, lane);
                Tuple* first = shuffled(here, lane);
                Tuple* second = shuffled(there, lane);
                const Tuple* from = buffers + __shfl_sync(ALL_LANES, p, lane) * shape.capacity;
                for (u32 i = lane_id(); i < shape.capacity; i += WARP) {
                    store_tuple(i < cut ? first + i : second + (i - cut), load_tuple(from + i));
                }
            }
        });
    }

    static __device__ __forceinline__ Tuple* shuffled(Tuple* of_lane, int lane) {
        return at<Tuple>(__shfl_sync(ALL_LANES, reinterpret_cast<u64>(of_lane), lane));
    }

    // Returns whether the spares may be used up. All threads get the same answer. Call it after a barrier.
    __device__ __forceinline__ bool out_of_spares() const { return *used >= SPARES; }

    // Writes the full long buffers that wait. All threads call this, after a barrier.
    __device__ __forceinline__ void drain() {
        const u32 count = min(*used, (u32)SPARES);
        for (u32 i = warp_id(); i < count; i += WARPS) {
            copy_tuples(at<Tuple>(a.to_tuples) + aside[i].to, long_buffer(aside[i].buffer), aside[i].count);
        }
        __syncthreads();
        if (threadIdx.x == 0) *used = 0;
        __syncthreads();
    }

    // Writes the rest of all buffers. All threads call this, after a barrier.
    __device__ __forceinline__ void finish() {
        if (HIERARCHICAL) drain();
        for_partitions([&](u32 p) {
            const u32 few = p < partitions ? fill[p] : 0;
            const u32 has = HIERARCHICAL && p < partitions ? held[p] : 0;
            u64 place = 0;
            if (few + has) place = atomicAdd(cursor(p), (u64)(few + has));
            for (u32 left = __ballot_sync(ALL_LANES, few + has != 0); left; left &= left - 1) {
                const int lane = __ffs(left) - 1;
                const u32 partition = __shfl_sync(ALL_LANES, p, lane);
                const u32 count = __shfl_sync(ALL_LANES, has, lane);
                Tuple* to = at<Tuple>(a.to_tuples) + __shfl_sync(ALL_LANES, place, lane);
                if (HIERARCHICAL) copy_tuples(to, long_buffer(which[partition]), count);
                const u32 rest = __shfl_sync(ALL_LANES, few, lane);
                copy_tuples(to + count, buffers + partition * shape.capacity, rest);
            }
        });
    }
};

template <bool HIERARCHICAL, bool FROM_TUPLES>
__device__ __forceinline__ void combine(const Scatter& a) {
    Combiner<HIERARCHICAL> combiner(a);
    for (u64 begin = (u64)blockIdx.x * TILE; begin < a.rows; begin += (u64)gridDim.x * TILE) {
        Tuple tuple[ITEMS] = {};
        u32 left = 0;
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            const u64 row = begin + i * THREADS + threadIdx.x;
            if (row >= a.rows) continue;
            tuple[i] = source_tuple<FROM_TUPLES>(a, row);
            left |= 1u << i;
        }
        if (HIERARCHICAL) combiner.drain();
#pragma unroll
        for (int i = 0; i < ITEMS; i++) tuple[i] = mixed<FROM_TUPLES>(a, tuple[i]);
        for (;;) {
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                if (left >> i & 1 && combiner.put(tuple[i])) left &= ~(1u << i);
            }
            if (!__syncthreads_or(left)) break;
            if (HIERARCHICAL) combiner.pop_to_longs();
            else combiner.pop_to_target();
            __syncthreads();
            if (HIERARCHICAL && combiner.out_of_spares()) combiner.drain();
        }
    }
    combiner.finish();
}

#define ENTRY(name, hierarchical, from)                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(Scatter a) {                     \
        combine<hierarchical, from>(a);                                                            \
    }
ENTRY(shared_columns, false, false)
ENTRY(shared_tuples, false, true)
ENTRY(hierarchical_columns, true, false)
ENTRY(hierarchical_tuples, true, true)
