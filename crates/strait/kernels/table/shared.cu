// Joins co-partitions in shared memory (003 §III-C, 004 §3.2.2). The build tuples form a bucket-chained hash
// table with 16-bit links. The probe tuples look up their keys, one round at a time.
//
//   heads[5] = 3 ─► tuple 2 ─ next[2] = 1 ─► tuple 0 ─ next[0] = 0: end       (links are one-based)
//
// If rows are written, a round walks its chains twice: first it counts the matches, then it writes them.
//
// If many build tuples have the same key, their chain is long. A probe tuple with this key, and every probe
// tuple with another key of the same bucket, would walk the chain alone, step by step, while the block waits.
// So such a key is set aside: the table is built a second time, with the values of the frequent key at the
// front and the other tuples behind them. Only the other tuples are in chains:
//
//   │ values of the frequent key │ tuples with other keys, in chains │
//   0                       frequent.rows                  task.build_rows
//
// A round then joins the other keys as usual. For the frequent key, it reads its probe tuples again, and the
// lanes of a warp share the values. This code is separate, so that the usual code needs no more registers.
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
// A key is probably frequent if the first two build tuples have equal keys in at least this many threads of a block. The
// key may differ from thread to thread. If a fraction f of the tuples has one key, the keys of a thread are equal with
// probability f^2. A table with two tuples per thread or more reaches the number at about f = 1/7 (768 threads) or 1/8
// (1024 threads). If each key occurs 16 times, at most one table in 200 reaches it.
#define FREQUENT_THREADS 16

// A key that is set aside: how many tuples have it (0 if there is no such key), and how many have other keys.
struct Frequent {
    Word key;
    u32 rows, others;
};

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

    __device__ __forceinline__ void clear_heads() const {
        uint4* clear = reinterpret_cast<uint4*>(heads);
        for (u32 i = threadIdx.x; i < HEADS / 4; i += THREADS) clear[i] = uint4{0, 0, 0, 0};
    }

    __device__ __forceinline__ void insert(u32 place, Tuple tuple) const {
        keys[place] = tuple.key;
        values[place] = tuple.value;
        next[place] = (u16)atomicExch(&heads[bucket(tuple.key)], place + 1);
    }

    // Builds the table, without a frequent key. Returns whether a key is probably frequent (FREQUENT_THREADS). A
    // thread compares its first two keys when the table is finished, and reads them from the table again. A comparison
    // inside the loop would need one more register, and the aggregate kernel for 32-bit words has none left.
    //
    // It also requests the next task, right after the loads of the first tuples. So both wait at the same time.
    __device__ __forceinline__ bool build(const Tuple* tuples, u32 rows, Frequent& frequent, const Output& out,
                                          Tasks& tasks) const {
        clear_heads();
        if (threadIdx.x == 0) frequent = Frequent{0, 0, 0};
        __syncthreads();
        u32 begin = 0;
        do {
            Tuple tuple[ITEMS];
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                const u32 row = begin + i * THREADS + threadIdx.x;
                if (row < rows) tuple[i] = stream_tuple(tuples + row);
            }
            if (begin == 0) tasks.ask(out);
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                const u32 row = begin + i * THREADS + threadIdx.x;
                if (row >= rows) break;
                insert(row, tuple[i]);
            }
            begin += ROUND;
        } while (begin < rows);
        tasks.keep();
        const u32 second = THREADS + threadIdx.x;
        const bool repeated = second < rows && keys[second] == keys[threadIdx.x];
        return __syncthreads_count(repeated) >= FREQUENT_THREADS;
    }

    // Builds the table again, and sets one key aside. Each thread that sees a key in two consecutive tuples of its own
    // proposes this key, and the last proposal counts. So the most frequent key is the most likely one. The join is
    // correct with every key. The order of rows is not kept.
    __device__ __forceinline__ void set_aside(const Tuple* tuples, u32 rows, Frequent& frequent) const {
#pragma unroll 1
        for (u32 row = THREADS + threadIdx.x; row < rows; row += THREADS) {
            if (keys[row] == keys[row - THREADS]) atomicExch(&frequent.key, keys[row]);
        }
        clear_heads();
        __syncthreads();
        const Word key = frequent.key;
        // One tuple at a time, to need few registers.
#pragma unroll 1
        for (u32 begin = 0; begin < rows; begin += THREADS) {
            const u32 row = begin + threadIdx.x;
            Tuple tuple = {};
            if (row < rows) tuple = stream_tuple(tuples + row);
            const bool aside = row < rows && tuple.key == key, other = row < rows && tuple.key != key;
            const u32 from_start = next_place(aside, &frequent.rows);
            const u32 from_end = next_place(other, &frequent.others);
            if (aside) values[from_start] = tuple.value;
            if (other) insert(rows - 1 - from_end, tuple);
        }
        __syncthreads();
    }

    // Returns a place of its own for each lane that asks, with one atomic addition per warp. All lanes call
    // this.
    static __device__ __forceinline__ u32 next_place(bool asks, u32* count) {
        const u32 asking = __ballot_sync(ALL_LANES, asks);
        u32 first = 0;
        if (lane_id() == 0 && asking) first = atomicAdd(count, (u32)__popc(asking));
        return __shfl_sync(ALL_LANES, first, 0) + __popc(asking & lanes_below());
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

// Returns the number of output rows of this thread's probe tuples that have the frequent key.
__device__ __forceinline__ u32 count_frequent(const Frequent& frequent, const Tuple* tuples, u32 rows) {
    u32 count = 0;
#pragma unroll 1
    for (u32 row = threadIdx.x; row < rows; row += THREADS) {
        if (tuples[row].key == frequent.key) count += frequent.rows;
    }
    return count;
}

// Joins a round of probe tuples with the frequent key. The output rows of this warp begin at `place`.
template <int FLAVOUR>
__device__ __forceinline__ void join_frequent(const Output& out, const SharedTable& table, const Frequent& frequent,
                                              const Tuple* tuples, u32 rows, Sums& sums, u64 place) {
    const bool flags = FLAVOUR == EXISTS || FLAVOUR == PAIRS_FLAGGED;
#pragma unroll 1
    for (u32 begin = 0; begin < rows; begin += THREADS) {
        const u32 row = begin + threadIdx.x;
        Tuple tuple = {};
        if (row < rows) tuple = load_tuple(tuples + row);
        const bool mine = row < rows && tuple.key == frequent.key;
        u32 having = __ballot_sync(ALL_LANES, mine);
        if (!having) continue;
        if (flags && mine) flag_probe(out, tuple.value);
        if (FLAVOUR == AGGREGATE && mine) {
            sums.counted += frequent.rows;
            sums.probe += summand(out, tuple.value) * frequent.rows;
        }
        if (FLAVOUR == AGGREGATE || (flags && out.build_flags)) {
#pragma unroll 1
            for (u32 i = lane_id(); i < frequent.rows; i += WARP) {
                if (FLAVOUR == AGGREGATE) sums.build += summand(out, table.values[i]) * __popc(having);
                else flag_build(out, table.values[i]);
            }
        }
        if (FLAVOUR == EXISTS || FLAVOUR == AGGREGATE) continue;
        const Word key = out.mixed ? mix(frequent.key, out.unmixing) : frequent.key;
        for (; having; having &= having - 1) {
            const Word probe = __shfl_sync(ALL_LANES, tuple.value, __ffs(having) - 1);
#pragma unroll 1
            for (u32 i = lane_id(); i < frequent.rows; i += WARP) {
                write_row(out, place + i, key, table.values[i], probe);
            }
            place += frequent.rows;
        }
    }
}

// Joins one round of probe tuples. Returns false if the output is full.
template <int FLAVOUR>
__device__ __forceinline__ bool join_round(const JoinShared& a, const SharedTable& table, const Frequent& frequent,
                                           const Task& rest, u32 rows, Sums& sums, u32* counts, u64* begins) {
    const Output& out = a.output;
    const Tuple* tuples = at<Tuple>(a.probe) + rest.probe;
    u32 found = 0;
    if ((FLAVOUR == PAIRS || FLAVOUR == PAIRS_FLAGGED) && frequent.rows) {
        found = count_frequent(frequent, tuples, rows);
    }
    Tuple tuple[ITEMS];
    u32 link[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u32 row = i * THREADS + threadIdx.x;
        tuple[i] = stream_tuple(tuples + min(row, rows - 1));
    }
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
    if (FLAVOUR == EXISTS || FLAVOUR == AGGREGATE) {
        if (frequent.rows) join_frequent<FLAVOUR>(out, table, frequent, tuples, rows, sums, 0);
        return true;
    }

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
            Task redo = rest;
            if (total > min(out.most, out.capacity)) redo.probe_rows = rows;
            room = reserve(out, redo, total, begin);
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
    if (frequent.rows) join_frequent<FLAVOUR>(out, table, frequent, tuples, rows, sums, place);
    return true;
}

template <int FLAVOUR>
__device__ __forceinline__ void join_tasks(const JoinShared& a) {
    __shared__ u32 slot;
    __shared__ u32 counts[WARPS + 1];
    __shared__ u64 begins[WARPS];
    __shared__ Frequent frequent;
    SharedTable table;
    Sums sums = {0, 0, 0};
    Tasks tasks(a.output, &slot);
    tasks.keep();
    for (;;) {
        const u32 number = tasks.take_kept();
        if (number >= a.count) break;
        Task task = at<Task>(a.tasks)[number];
        const Tuple* build = at<Tuple>(a.build) + task.build;
        if (table.build(build, task.build_rows, frequent, a.output, tasks)) {
            table.set_aside(build, task.build_rows, frequent);
        }
        while (task.probe_rows) {
            const u32 rows = min(task.probe_rows, (u32)ROUND);
            if (!join_round<FLAVOUR>(a, table, frequent, task, rows, sums, counts, begins)) break;
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
