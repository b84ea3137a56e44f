// An array of values that keys index directly, for unique keys that nearly fill their range: perfect hashing,
// as in 001. One bit per place says whether it is taken, so no value is reserved. The bits of 2^27 places
// take 16 MiB, which fits the L2 cache.
//
//   min = 40; rows (42, a), (40, b), (43, c)      values  [b] [?] [a] [c]      taken  1 0 1 1
//
// If all places are taken, there are no bits to read.
#include "look_up.cuh"

extern "C" __global__ void __launch_bounds__(256) clear_single(ClearTable a) {
    const u64 words = (a.table.slot_count + 31) / 32;
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < words; i += (u64)gridDim.x * 256) at<u32>(a.table.taken)[i] = 0;
}

// Sets `duplicates` if a key repeats. The table is then useless.
extern "C" __global__ void __launch_bounds__(THREADS) insert_single(Insert a) {
    if (*reinterpret_cast<volatile u32*>(&at<Control>(a.control)->duplicates)) return;
    const u64 begin = (u64)blockIdx.x * ProbeTile::ROWS;
    Tuple tuple[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u64 row = begin + ProbeTile::number(i);
        if (row < a.rows) tuple[i] = row_of(0, a.columns, a.table, false, row);
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (begin + ProbeTile::number(i) >= a.rows) continue;
        const u32 slot = (u32)(tuple[i].key - (Word)a.table.min), bit = 1u << slot % 32;
        const u32 before = atomicOr(at<u32>(a.table.taken) + slot / 32, bit);
        if (before & bit) at<Control>(a.control)->duplicates = 1;
        else at<Word>(a.table.slots)[slot] = tuple[i].value;
    }
}

struct Array {
    struct Seen {
        Word value;
        u32 taken;
    };
    static constexpr bool MIXED = false;

    // A key below `min` wraps around to at least `slot_count`, so one comparison checks both bounds. There
    // are fewer than 2^32 slots, so `find` needs only 32 bits of the slot number.
    static __device__ __forceinline__ Seen ask(const DeviceTable& table, Word key) {
        const Word slot = key - (Word)table.min;
        Seen seen = {0, 0};
        if ((u64)slot < table.slot_count) seen.taken = table.taken ? __ldg(at<u32>(table.taken) + slot / 32) : ~0u;
        return seen;
    }
    static __device__ __forceinline__ bool find(const DeviceTable& table, Word key, Seen& seen) {
        const u32 slot = (u32)(key - (Word)table.min);
        if (!(seen.taken >> slot % 32 & 1)) return false;
        seen.value = __ldg(at<Word>(table.slots) + slot);
        return true;
    }
};

SINGLE_ENTRIES(Array)
