// Words, tuples, and the bijective mixer (the twin of KeyWord::mix in src/key/word.rs).
#pragma once
#include "abi.cuh"

#if WORD_BYTES == 4
typedef u32 Word;
typedef uint2 Packed;
#else
typedef u64 Word;
typedef ulonglong2 Packed;
#endif

#define WORD_BITS (8 * WORD_BYTES)

struct __align__(2 * WORD_BYTES) Tuple {
    Word key, value;
};

// One aligned load or store a tuple.
__device__ __forceinline__ Tuple load_tuple(const Tuple* from) {
    const Packed p = *reinterpret_cast<const Packed*>(from);
    return Tuple{p.x, p.y};
}

// As load_tuple, of what is read once: does not displace what the caches hold.
__device__ __forceinline__ Tuple stream_tuple(const Tuple* from) {
    const Packed p = __ldcs(reinterpret_cast<const Packed*>(from));
    return Tuple{p.x, p.y};
}

__device__ __forceinline__ void store_tuple(Tuple* to, Tuple t) {
    *reinterpret_cast<Packed*>(to) = Packed{t.key, t.value};
}

// Xor-shifts and odd multiplies: each step can be undone, so no two words meet. The shifts, half a word,
// undo themselves; with the inverse multipliers in the other order, this is its own inverse. The multipliers
// are numbers of the join, and stay in the kernel's parameters: constant memory, which a multiplication
// reads without a register.
__device__ __forceinline__ Word mix(Word x, const Mixing& by) {
    x = (x ^ (x >> (WORD_BITS / 2))) * (Word)by.first;
    x = (x ^ (x >> (WORD_BITS / 2))) * (Word)by.second;
    return x ^ (x >> (WORD_BITS / 2));
}
