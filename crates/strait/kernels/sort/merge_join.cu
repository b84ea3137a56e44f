// Joins two sides that are sorted by key (004 §3.3). Each tile of probe tuples has a range of build tuples
// that may match. The tile searches its keys in this range, and writes the runs that it finds. Neither side
// is read twice.
//
// All ranges are found in advance, with two binary searches per tile. A merge-path split would also cut the
// build side. But build rows between two probe keys match nothing, so they need not be read.
#include "runs.cuh"

#define THREADS MERGE_THREADS
#define ITEMS MERGE_ITEMS
typedef Tile<THREADS, ITEMS> MergeTile;
// The largest number of build keys that are searched in shared memory.
#define NEAR (2 * MergeTile::ROWS)

// Returns the first tuple in [low, high) whose key is at least `key`, or, with `past`, greater than `key`.
__device__ __forceinline__ u64 bisect(const Tuple* tuples, u64 low, u64 high, Word key, bool past) {
    while (low < high) {
        const u64 middle = (low + high) / 2;
        const Word found = tuples[middle].key;
        if (found < key || (past && found == key)) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Computes splits[2t] and splits[2t + 1], the range of build tuples whose keys lie between the first and the
// last key of tile t.
extern "C" __global__ void __launch_bounds__(256) merge_splits(MergeJoin a) {
    const u32 number = blockIdx.x * 256 + threadIdx.x;
    if (number >= 2 * a.count) return;
    const Tuple* probe = at<Tuple>(a.probe);
    const u64 begin = (u64)(number / 2) * a.tile;
    const bool past = number % 2;
    const u64 row = past ? min(begin + a.tile, a.probe_rows) - 1 : begin;
    at<u64>(a.splits)[number] = bisect(at<Tuple>(a.build), 0, a.build_rows, probe[row].key, past);
}

template <int FLAVOUR>
__device__ __forceinline__ void merge_join(const MergeJoin& a) {
    __shared__ u32 slot;
    __shared__ MergeTile::Place place;
    // Keys are searched before rows are written, so both use the same memory.
    Word* near = reinterpret_cast<Word*>(shared_bytes);
    MergeTile::Long& tile = *reinterpret_cast<MergeTile::Long*>(shared_bytes);
    const Output& out = a.output;
    const Tuple* build = at<Tuple>(a.build);
    const Tuple* probe = at<Tuple>(a.probe);
    const auto value_of = [&](u32 at_place) { return build[at_place].value; };
    u64 counted = 0, build_sum = 0, probe_sum = 0;
    Tasks tasks(out, &slot);
    for (;;) {
        const u32 number = tasks.take(out);
        if (number >= a.count) break;
        Task task;
        u64 low, high;
        if (a.tasks) {
            task = at<Task>(a.tasks)[number];
            low = bisect(build, 0, a.build_rows, probe[task.probe].key, false);
            high = bisect(build, low, a.build_rows, probe[task.probe + task.probe_rows - 1].key, true);
        } else {
            const u64 begin = (u64)number * a.tile;
            task = Task{0, begin, 0, (u32)min((u64)a.tile, a.probe_rows - begin)};
            low = at<u64>(a.splits)[2 * number];
            high = at<u64>(a.splits)[2 * number + 1];
        }
        Tuple tuple[ITEMS];
        Run run[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            const u32 n = MergeTile::number(i);
            if (n < task.probe_rows) tuple[i] = stream_tuple(probe + task.probe + n);
        }
        const u32 rows = (u32)min(high - low, (u64)NEAR + 1);
        if (rows <= NEAR) {
            for (u32 i = threadIdx.x; i < rows; i += THREADS) near[i] = build[low + i].key;
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            run[i] = Run{0, 0};
            if (MergeTile::number(i) >= task.probe_rows) continue;
            const Word key = tuple[i].key;
            if (rows <= NEAR) {
                u32 from = 0, to = rows;
                while (from < to) {
                    const u32 middle = (from + to) / 2;
                    if (near[middle] < key) from = middle + 1;
                    else to = middle;
                }
                u32 end = from;
                while (end < rows && near[end] == key) end++;
                run[i] = Run{(u32)low + from, end - from};
            } else {
                const u64 from = bisect(build, low, high, key, false);
                run[i] = Run{(u32)from, (u32)(bisect(build, from, high, key, true) - from)};
            }
            run[i] = cut(run[i], task);
            note_run<FLAVOUR>(out, run[i], tuple[i].value, value_of, counted, build_sum, probe_sum);
        }
        __syncthreads();
        if (FLAVOUR == PAIRS || FLAVOUR == PAIRS_FLAGGED) {
            MergeTile::write_runs(out, place, tile, task, out.mixed, tuple, run, value_of);
        }
    }
    if (FLAVOUR == AGGREGATE) add_up(out, counted, build_sum, probe_sum);
}

#define ENTRY(name, flavour)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, MERGE_BLOCKS) merge_join_##name(MergeJoin a) {         \
        merge_join<flavour>(a);                                                                    \
    }
ENTRY(pairs, PAIRS)
ENTRY(flagged, PAIRS_FLAGGED)
ENTRY(exists, EXISTS)
ENTRY(aggregate, AGGREGATE)
