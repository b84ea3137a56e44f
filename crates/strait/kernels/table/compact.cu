// Hash tables with any number of slots, used if a power of two would need too much memory. See table.cuh.
// This is a module of its own, so that the kernels of the other tables stay unchanged.
//
// A multiplication computes the home slot from the top 32 bits of a key: `top * slots >> 32`. With ten slots:
//
//   slot         0          1          2        …      8          9
//   homes from   00000000   1999999a   33333334        cccccccd   e6666667
//   empty        1999999a   33333334   4ccccccd        e6666667   00000000
//
// There are 2 to 2^32 - 1 slots. Each slot is therefore the home of at least one value of the top 32 bits,
// and the marks of empty slots are all different.
#include "word.cuh"

__device__ __forceinline__ u64 home(const DeviceTable& t, Word key) {
    return __umulhi((u32)(key >> (WORD_BITS - 32)), (u32)t.slot_count);
}
__device__ __forceinline__ u64 after(const DeviceTable& t, u64 slot) { return slot + 1 == t.slot_count ? 0 : slot + 1; }

// Returns ceil(after * 2^32 / slot_count), shifted to the top bits. The quotient has 32 bits before the
// binary point, so the rounding errors of doubles are far below one. The truncated quotient is the result or
// up to two less. Multiplying back shows which.
__device__ __forceinline__ Word empty(const DeviceTable& t, u64 slot) {
    const u64 wanted = after(t, slot);
    u64 top = (u64)((double)wanted * (4294967296.0 / (double)t.slot_count));
    if (top * t.slot_count < wanted << 32) top++;
    if (top * t.slot_count < wanted << 32) top++;
    return (Word)top << (WORD_BITS - 32);
}

// No key is stored in the slot before its home. A word whose home is the next slot is therefore the mark of
// an empty slot. This test is cheaper than computing the mark.
__device__ __forceinline__ bool is_empty(const DeviceTable& t, u64 slot, Word held) { return home(t, held) == after(t, slot); }

// If only one slot is empty, a lookup of the key that equals its mark goes all the way round to that slot.
// There, the mark must not count as the key.
__device__ __forceinline__ bool holds(const DeviceTable& t, u64 slot, Word held, Word key) {
    return held == key && !is_empty(t, slot, held);
}

#include "table.cuh"
