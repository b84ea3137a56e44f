// Joins co-partitions in shared memory (003 §III-C, 004 §3.2.2). The build tuples form a bucket-chained hash
// table with 16-bit links. The probe tuples look up their keys, one round at a time.
//
//   heads[5] = 3 ─► tuple 2 ─ next[2] = 1 ─► tuple 0 ─ next[0] = 0: end       (links are one-based)
//
// If rows are written, a round walks its chains twice: first it counts the matches, then it writes them.
//
// A block joins one task after another. If the output is full, the rest of the task, from this round on, goes
// onto the redo list.
#include "output.cuh"

#define THREADS SHARED_THREADS
#define ITEMS SHARED_ITEMS
#define ROUND (THREADS * ITEMS)
#define BUILD_ROWS SHARED_BUILD_ROWS
#define HEADS SHARED_HEADS
#define WARPS (THREADS / WARP)

struct SharedTable {
    Word* keys;
    Word* values;
    u32* heads;
    u16* next;

    __device__ __forceinline__ SharedTable() {
        keys = reinterpret_cast<Word*>(shared_bytes);
        values = keys + BUILD_ROWS;
        heads = reinterpret_cast<u32*>(values + BUILD_ROWS);
        next = reinterpret_cast<u16*>(heads + HEADS);
    }

    // The top bits chose the partition; the low bits choose the bucket.
    __device__ __forceinline__ u32 bucket(Word key) const { return (u32)key & (HEADS - 1); }

    __device__ __forceinline__ void build(const Tuple* tuples, u32 rows) {
        uint4* clear = reinterpret_cast<uint4*>(heads);
        for (u32 i = threadIdx.x; i < HEADS / 4; i += THREADS) clear[i] = uint4{0, 0, 0, 0};
        __syncthreads();
        for (u32 begin = 0; begin < rows; begin += ROUND) {
            Tuple tuple[ITEMS];
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                const u32 row = begin + i * THREADS + threadIdx.x;
                if (row < rows) tuple[i] = stream_tuple(tuples + row);
            }
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                const u32 row = begin + i * THREADS + threadIdx.x;
                if (row >= rows) break;
                keys[row] = tuple[i].key;
                values[row] = tuple[i].value;
                next[row] = (u16)atomicExch(&heads[bucket(tuple[i].key)], row + 1);
            }
        }
        __syncthreads();
    }

    // Returns the first link, starting at `link`, whose key is `key`; zero if there is none.
    __device__ __forceinline__ u32 find(u32 link, Word key) const {
        while (link && keys[link - 1] != key) link = next[link - 1];
        return link;
    }
};

// The counts and sums of one thread.
struct Sums {
    u64 counted, build, probe;
};

// Joins one round of probe tuples. Returns false if the output is full.
template <int FLAVOUR>
__device__ __forceinline__ bool join_round(const JoinShared& a, const SharedTable& table, const Task& rest,
                                           u32 rows, Sums& sums, u32* counts, u64* begins) {
    const Output& out = a.output;
    const Tuple* tuples = at<Tuple>(a.probe) + rest.probe;
    Tuple tuple[ITEMS];
    u32 link[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 row = i * THREADS + threadIdx.x;
        if (row < rows) tuple[i] = stream_tuple(tuples + row);
    }
    u32 found = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        link[i] = 0;
        if (i * THREADS + threadIdx.x >= rows) continue;
        link[i] = table.find(table.heads[table.bucket(tuple[i].key)], tuple[i].key);
        if (FLAVOUR == EXISTS) {
            if (link[i]) flag_probe(out, tuple[i].value);
            if (!out.build_flags) continue;
        }
        for (u32 l = link[i]; l; l = table.find(table.next[l - 1], tuple[i].key)) {
            found++;
            if (FLAVOUR == EXISTS || FLAVOUR == PAIRS_FLAGGED) flag_build(out, table.values[l - 1]);
            if (FLAVOUR == AGGREGATE) {
                sums.build += summand(out, table.values[l - 1]);
                sums.probe += summand(out, tuple[i].value);
            }
        }
        if (FLAVOUR == PAIRS_FLAGGED && link[i]) flag_probe(out, tuple[i].value);
    }
    if (FLAVOUR == AGGREGATE) sums.counted += found;
    if (FLAVOUR == EXISTS || FLAVOUR == AGGREGATE) return true;

    const u32 of_warp = warp_sum(found);
    if (lane_id() == 0) counts[warp_id()] = of_warp;
    __syncthreads();
    if (warp_id() == 0) {
        const u32 mine = lane_id() < WARPS ? counts[lane_id()] : 0;
        const u64 inclusive = warp_inclusive((u64)mine);
        const u64 total = __shfl_sync(ALL_LANES, inclusive, WARP - 1);
        u64 begin = 0;
        u32 room = ROOM;
        if (lane_id() == 0 && total) {
            const Task round = {rest.build, rest.probe, rest.build_rows, rows};
            room = reserve(out, total > min(out.most, out.capacity) ? round : rest, total, begin);
        }
        begin = __shfl_sync(ALL_LANES, begin, 0);
        room = __shfl_sync(ALL_LANES, room, 0);
        if (lane_id() < WARPS) begins[lane_id()] = begin + inclusive - mine;
        if (lane_id() == 0) counts[WARPS] = room;
    }
    __syncthreads();
    const u32 room = counts[WARPS];
    if (room != ROOM) return room == TOO_LONG;

    u64 place = begins[warp_id()];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const Word key = tuple[i].key;
        for (u32 having = __ballot_sync(ALL_LANES, link[i] != 0); having;) {
            if (link[i]) {
                const u64 to = place + __popc(having & lanes_below());
                write_row(out, to, out.mixed ? mix(key, out.unmixing) : key, table.values[link[i] - 1], tuple[i].value);
                link[i] = table.find(table.next[link[i] - 1], key);
            }
            place += __popc(having);
            having = __ballot_sync(ALL_LANES, link[i] != 0);
        }
    }
    return true;
}

template <int FLAVOUR>
__device__ __forceinline__ void join_tasks(const JoinShared& a) {
    __shared__ u32 slot;
    __shared__ u32 counts[WARPS + 1];
    __shared__ u64 begins[WARPS];
    SharedTable table;
    Sums sums = {0, 0, 0};
    Tasks tasks(a.output, &slot);
    for (;;) {
        const u32 number = tasks.take(a.output);
        if (number >= a.count) break;
        Task task = at<Task>(a.tasks)[number];
        table.build(at<Tuple>(a.build) + task.build, task.build_rows);
        while (task.probe_rows) {
            const u32 rows = min(task.probe_rows, (u32)ROUND);
            if (!join_round<FLAVOUR>(a, table, task, rows, sums, counts, begins)) break;
            task.probe += rows;
            task.probe_rows -= rows;
        }
    }
    if (FLAVOUR == AGGREGATE) add_up(a.output, sums.counted, sums.build, sums.probe);
}

#define ENTRY(name, flavour)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, SHARED_BLOCKS) name(JoinShared a) {      \
        join_tasks<flavour>(a);                                                                    \
    }
ENTRY(join_shared_pairs, PAIRS)
ENTRY(join_shared_flagged, PAIRS_FLAGGED)
ENTRY(join_shared_exists, EXISTS)
ENTRY(join_shared_aggregate, AGGREGATE)
