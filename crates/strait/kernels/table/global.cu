// Hash tables with a power of two of slots, and tables that keys index directly. See table.cuh.
//
//   home of 0x3… is slot 3; slots 2, 3, 4 of sixteen:   [0x30…0: empty] [0x3a7f…: v] [0x50…0: empty]
#include "word.cuh"

__device__ __forceinline__ u64 home(const DeviceTable& t, Word key) { return (u64)(key >> (WORD_BITS - t.bits)); }
__device__ __forceinline__ u64 after(const DeviceTable& t, u64 slot) { return (slot + 1) & (t.slot_count - 1); }
__device__ __forceinline__ Word empty(const DeviceTable& t, u64 slot) {
    return (Word)after(t, slot) << (WORD_BITS - t.bits);
}
__device__ __forceinline__ bool is_empty(const DeviceTable& t, u64 slot, Word held) { return held == empty(t, slot); }

// Half of the slots are empty. A lookup of a key that equals the mark of a slot therefore ends at an earlier
// empty slot.
__device__ __forceinline__ bool holds(const DeviceTable&, u64, Word held, Word key) { return held == key; }

#include "table.cuh"
