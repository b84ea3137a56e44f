// Tables of any number of slots, for where a power of two would be too much memory: see table.cuh. A
// module of its own, so that the others' kernels stay as they are.
//
// Homes follow from the top 32 bits of a key by a multiplication: `top * slots >> 32`. Of ten slots:
//
//   slot         0          1          2        …      8          9
//   homes from   00000000   1999999a   33333334        cccccccd   e6666667
//   empty        1999999a   33333334   4ccccccd        e6666667   00000000
//
// There are 2 to 2^32 - 1 slots, so each is the home of at least one value of the top 32 bits: homes,
// and with them the marks of empty slots, are all different.
#include "word.cuh"

__device__ __forceinline__ u64 home(const Table& t, Word key) {
    return __umulhi((u32)(key >> (WORD_BITS - 32)), (u32)t.slot_count);
}
__device__ __forceinline__ u64 after(const Table& t, u64 slot) { return slot + 1 == t.slot_count ? 0 : slot + 1; }

// ceil(after * 2^32 / slot_count), on top. The quotient has 32 bits before the point, so what the
// roundings of doubles take from it or add is far below one: cut off, it is the number sought or up
// to two less, and multiplying back tells.
__device__ __forceinline__ Word empty(const Table& t, u64 slot) {
    const u64 wanted = after(t, slot);
    u64 top = (u64)((double)wanted * (4294967296.0 / (double)t.slot_count));
    if (top * t.slot_count < wanted << 32) top++;
    if (top * t.slot_count < wanted << 32) top++;
    return (Word)top << (WORD_BITS - 32);
}

// No key lies in the slot before its home, so what has its home in the next slot is the mark. That
// is cheaper to tell than which key the mark is.
__device__ __forceinline__ bool is_empty(const Table& t, u64 slot, Word held) { return home(t, held) == after(t, slot); }

// Where a single slot is empty, whoever looks for the key that marks it comes all the way round to it:
// the mark is not the key.
__device__ __forceinline__ bool holds(const Table& t, u64 slot, Word held, Word key) {
    return held == key && !is_empty(t, slot, held);
}

#include "table.cuh"
