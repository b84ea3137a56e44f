// Output by one kernel. A block takes a task, counts its matches, reserves output rows with one atomic
// addition, and writes them. If the output is full, the task goes onto the redo list, and blocks take no more
// tasks. A task with more than `most` rows also goes onto the redo list; the host then cuts it.
//
// The difference from 004 §3.2.2: there, a thread writes each match when it finds it, into a page of its own.
// Here, a block first counts, so that output columns have no holes. Joins in shared memory walk their chains
// twice for this (`table/shared.cu`).
//
// Lanes with a match write to adjacent places (a lane's place is its rank among the lanes with a match).
// Stores are thus coalesced without a copy through shared memory.
#pragma once
#include "block.cuh"
#include "word.cuh"

#define PAIRS 0
#define PAIRS_FLAGGED 1
#define EXISTS 2
#define AGGREGATE 3
// Writes one bit per probe row, and its build value, at the row's own position.
#define IN_ORDER 4

// Hands out tasks. It requests the next task while the block works on the current one. Once the output is
// full, it hands out no more.
struct Tasks {
    u32* slot;
    u32 next;

    // Every thread of the block calls this. `slot` is in shared memory.
    __device__ __forceinline__ Tasks(const Output& out, u32* slot) : slot(slot) { ask(out); }

    __device__ __forceinline__ void ask(const Output& out) {
        if (threadIdx.x != 0) return;
        Control* control = at<Control>(out.control);
        const bool full = *reinterpret_cast<volatile u32*>(&control->full) != 0;
        next = full ? 0xffffffffu : atomicAdd(&control->next, 1u);
    }

    // Returns the task that was requested before, the same one in all threads, and requests the next.
    __device__ __forceinline__ u32 take(const Output& out) {
        __syncthreads();
        if (threadIdx.x == 0) *slot = next;
        __syncthreads();
        const u32 taken = *slot;
        if (taken != 0xffffffffu) ask(out);
        return taken;
    }

    // The second way to take tasks has one barrier less than `take`, and `next` needs a register only from `ask`
    // to `keep`. `take_kept` returns the task that `keep` stored. Then the block calls `ask`, which requests the
    // next task, and later `keep`, which waits for the request and stores the task. The caller must have a barrier
    // between `take_kept` and the next `keep`. `take_kept` itself has the barrier after `keep`.
    __device__ __forceinline__ void keep() const {
        if (threadIdx.x == 0) *slot = next;
    }
    __device__ __forceinline__ u32 take_kept() {
        __syncthreads();
        // `keep` has stored the task, so `next` is no longer needed. Without this line, it would keep a register.
        next = 0xffffffffu;
        return *slot;
    }
};

enum Room { ROOM, TOO_LONG, NO_ROOM };

// Reserves `rows` output rows for `task`. One thread calls this for the block.
__device__ __forceinline__ Room reserve(const Output& out, const Task& task, u64 rows, u64& begin) {
    Control* control = at<Control>(out.control);
    const u64 most = out.most < out.capacity ? out.most : out.capacity;
    Room room = ROOM;
    if (rows > most) {
        room = TOO_LONG;
    } else {
        begin = atomicAdd(&control->rows, rows);
        if (begin + rows > out.capacity) {
            // The count only grows, so no later reservation succeeds. Exactly one block is the first that
            // fails. It records where the written rows end.
            if (begin <= out.capacity) control->counted = begin;
            *reinterpret_cast<volatile u32*>(&control->full) = 1;
            room = NO_ROOM;
        }
    }
    if (room != ROOM) {
        at<Redo>(out.redo)[atomicAdd(&control->redone, 1u)] = Redo{task, rows};
    }
    return room;
}

// Writes one row of output.
__device__ __forceinline__ void write_row(const Output& out, u64 place, Word key, Word build, Word probe) {
    if (out.keys) __stcs(at<Word>(out.keys) + place, key);
    __stcs(at<Word>(out.build) + place, build);
    __stcs(at<Word>(out.probe) + place, probe);
}

__device__ __forceinline__ void flag_build(const Output& out, Word value) {
    if (out.build_flags) at<u8>(out.build_flags)[value] = 1;
}
__device__ __forceinline__ void flag_probe(const Output& out, Word value) {
    if (out.probe_flags) at<u8>(out.probe_flags)[value] = 1;
}

// Writes the result of a probe row at the row's own position: a bit, and the build value if it is wanted. All
// lanes of a warp call this for 32 consecutive rows; `row` is a multiple of 32 in the first lane.
__device__ __forceinline__ void write_in_order(const Output& out, u64 row, bool valid, bool found, Word build) {
    const u32 bits = __ballot_sync(ALL_LANES, valid && found);
    if (lane_id() == 0 && valid) at<u32>(out.probe)[row / 32] = bits;
    if (valid && out.build) __stcs(at<Word>(out.build) + row, build);
}

// Widens a value to 64 bits for a sum, with its sign if the column is signed.
__device__ __forceinline__ u64 summand(const Output& out, Word value) {
#if WORD_BYTES == 4
    return out.sign ? (u64)(i64)(int)value : (u64)value;
#else
    return value;
#endif
}

// Adds a thread's counts and sums to the control block. All threads of a warp call this once, at the end.
__device__ __forceinline__ void add_up(const Output& out, u64 counted, u64 build_sum, u64 probe_sum) {
    Control* control = at<Control>(out.control);
    counted = warp_sum(counted);
    build_sum = warp_sum(build_sum);
    probe_sum = warp_sum(probe_sum);
    if (lane_id() == 0 && counted) {
        atomicAdd(&control->counted, counted);
        atomicAdd(&control->build_sum, build_sum);
        atomicAdd(&control->probe_sum, probe_sum);
    }
}
