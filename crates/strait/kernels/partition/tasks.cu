// Finds where partitions begin, and lists the tasks that join co-partitions.
#include "block.cuh"
#include "word.cuh"

#define THREADS 256

// Computes bounds[p], the first tuple whose partition is p or later, by binary search with one thread per
// partition. The bits above the partition number are ignored: if an earlier pass has partitioned the side,
// all tuples here share them.
extern "C" __global__ void __launch_bounds__(256) bounds(Bounds a) {
    const u32 partition = blockIdx.x * 256 + threadIdx.x;
    if (partition > a.partitions) return;
    u64* out = at<u64>(a.bounds) + partition;
    if (partition == 0 || partition == a.partitions) {
        *out = partition == 0 ? 0 : a.rows;
        return;
    }
    const Tuple* tuples = at<Tuple>(a.tuples);
    u64 low = 0, high = a.rows;
    while (low < high) {
        const u64 middle = (low + high) / 2;
        if (((u32)(tuples[middle].key >> a.shift) & (a.partitions - 1)) < partition) low = middle + 1;
        else high = middle;
    }
    *out = low;
}

// Lists the tasks of every pair of partitions: none if a side is empty, several if a side is long. A block
// reserves the places of its tasks with one atomic addition.
extern "C" __global__ void __launch_bounds__(THREADS) list_tasks(ListTasks a) {
    __shared__ u32 sums[THREADS / WARP + 1];
    __shared__ u32 begin;
    const u32 p = blockIdx.x * THREADS + threadIdx.x;
    const u64* build = at<u64>(a.build_bounds) + p;
    const u64* probe = at<u64>(a.probe_bounds) + p;
    const auto pieces = [](u64 rows, u32 most) { return (u32)((rows + most - 1) / most); };
    const bool mine = p < a.partitions;
    const u32 count =
        mine ? pieces(build[1] - build[0], a.build_rows) * pieces(probe[1] - probe[0], a.probe_rows) : 0;
    u32 total;
    u32 place = block_exclusive<u32, THREADS>(count, sums, total);
    if (threadIdx.x == 0) begin = atomicAdd(at<u32>(a.count), total);
    __syncthreads();
    if (!count) return;
    place += begin;
    Task* tasks = at<Task>(a.tasks);
    for (u64 s = probe[0]; s < probe[1]; s += a.probe_rows) {
        for (u64 r = build[0]; r < build[1]; r += a.build_rows, place++) {
            if (place >= a.capacity) return;
            tasks[place] = Task{r, s, (u32)min((u64)a.build_rows, build[1] - r),
                                (u32)min((u64)a.probe_rows, probe[1] - s)};
        }
    }
}
