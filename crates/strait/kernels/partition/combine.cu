// Scatterers that combine writes (000 §4.2, §4.3): Shared and Hierarchical.
//
//            ┌────────────── a block ──────────────┐
//   tile ─► put into buffers ─► pop full ones ─────┼─► target, whole lines                  Shared
//            ▲  shared memory       │              │
//            └── who found no room ─┤              │
//                                   └─► long buffers ─► full ones are swapped for spares,
//                                       GPU memory     and drained beside the next tile's
//                                                      loads ─► target, 2 KiB or more  Hierarchical
//
// Over the link, a write costs a packet, and beyond half a GiB of target also a translation, however
// short it is. So tuples wait in a buffer a partition until they fill lines of 128 bytes that begin
// and end where lines of the target do; and, where partitions are many and far apart, in a second
// buffer until they fill 2 KiB.
//
// Where it differs from 000: there, a warp that meets a full buffer locks it, flushes it, and all
// others go on. Here a block goes in rounds: all threads put their tuples, or find the buffer full;
// then, after a barrier, each warp empties the full ones among its partitions. Nobody holds a lock,
// so nobody can wait for a lane of his own warp; what it costs is barriers, a few a tile, beside
// hundreds of thousands of cycles that the link takes for one. As in 000, the slow part is outside
// of the rounds: a long buffer that is full is exchanged for a spare one and set aside, and written
// while the loads of the next tile are under way.
#include "scatter.cuh"

#define THREADS SCATTER_THREADS
#define ITEMS SCATTER_ITEMS
#define TILE (THREADS * ITEMS)
#define WARPS (THREADS / WARP)
#define SPARES SCATTER_SPARES
// Tuples of a line of memory, and those that a long buffer is emptied with, at least.
#define LINE (128 / TUPLE_BYTES)
#define LONG (SCATTER_LONG / TUPLE_BYTES)

// A long buffer set aside: it goes to tuple `to` of the target.
struct Aside {
    u64 to;
    u32 buffer, count;
};

// Shared memory besides the buffers: what is set aside, the spares, and how many are in use.
#define ASIDE_BYTES (SPARES * 20 + 16)
// And for each partition: how full its buffers are, and which long one it has.
#define PARTITION_BYTES 12

// The tuples of a partition's buffer in shared memory, and those of a line. Where a buffer has no
// room for a line of 128 bytes, lines are shorter. The twin of Policy::combine_shape.
struct Shape {
    u32 capacity, line;

    __device__ __forceinline__ explicit Shape(u32 partitions) {
        const u32 bytes = SCATTER_SHARED - ASIDE_BYTES - PARTITION_BYTES * partitions;
        const u32 room = min(bytes / (partitions * TUPLE_BYTES), (u32)LONG);
        line = room < LINE ? 1u << (31 - __clz(room)) : LINE;
        capacity = room / line * line;
    }

    // The tuples of a long buffer: not yet full, it takes another short one, and up to a line.
    __device__ __forceinline__ u32 long_room() const { return LONG + capacity + line; }
};

// A block's buffers.
template <bool HIERARCHICAL>
struct Combiner {
    const Scatter& a;
    const u32 partitions;
    const Shape shape;
    // Buffer p has `fill[p]` tuples. More than there is room for: so many have asked in vain.
    Tuple* buffers;
    u32* fill;
    // Its long buffer is number `which[p]`, and has `held[p]`.
    Tuple* longs;
    u32 *held, *which;
    // Number i of those set aside has taken spare i, and is the next spare i.
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

    // How far tuple `place` of the target is into its line.
    __device__ __forceinline__ u32 into_line(u64 place) const {
        return (u32)(a.to_tuples / TUPLE_BYTES + place) & (shape.line - 1);
    }

    // Puts a tuple into its buffer, if there is room.
    __device__ __forceinline__ bool put(const Tuple& tuple) {
        const u32 p = partition_of(a, tuple.key);
        // A buffer that is seen to be full is not asked: a frequent key is no queue.
        if (*reinterpret_cast<volatile u32*>(fill + p) >= shape.capacity) return false;
        const u32 place = atomicAdd(fill + p, 1u);
        if (place >= shape.capacity) return false;
        store_tuple(buffers + p * shape.capacity + place, tuple);
        return true;
    }

    // Calls `each(p)` with the partitions of this warp's lanes, up to 32 at a time; all lanes call it.
    template <typename Each>
    __device__ __forceinline__ void for_partitions(Each each) {
        for (u32 first = warp_id(); first < partitions; first += THREADS) each(first + lane_id() * WARPS);
    }

    // Empties the full buffers into the target. Reserving, a warp asks for all of its partitions at
    // once.
    //
    // What is written ends where a line does, as far as the cursor tells: another block may move it
    // meanwhile, but all move it by whole lines once it is at one. What is over stays in front.
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

    // Empties the full buffers into long ones. A long one that is full is set aside, with as many
    // tuples more as it takes to the end of a line; where there is no spare, the short one stays full
    // until the next round, before which those aside are drained.
    __device__ __forceinline__ void pop_to_longs() {
        for_partitions([&](u32 p) {
            bool moves = p < partitions && fill[p] >= shape.capacity;
            // Tuples up to `split` go to `here`, and those from there on to `there`.
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

    // Whether there may be no spare for the next round. The same in all threads, after a barrier.
    __device__ __forceinline__ bool out_of_spares() const { return *used >= SPARES; }

    // Writes the long buffers that were set aside. All threads call it, after a barrier.
    __device__ __forceinline__ void drain() {
        const u32 count = min(*used, (u32)SPARES);
        for (u32 i = warp_id(); i < count; i += WARPS) {
            copy_tuples(at<Tuple>(a.to_tuples) + aside[i].to, long_buffer(aside[i].buffer), aside[i].count);
        }
        __syncthreads();
        if (threadIdx.x == 0) *used = 0;
        __syncthreads();
    }

    // Writes what is left in all buffers. All threads call it, after a barrier.
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
