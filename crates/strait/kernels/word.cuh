// Key words, tuples, and the bijective mixer (the same as KeyWord::mix in src/word/mod.rs).
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

// Loads a tuple with one aligned load.
__device__ __forceinline__ Tuple load_tuple(const Tuple* from) {
    const Packed p = *reinterpret_cast<const Packed*>(from);
    return Tuple{p.x, p.y};
}

// Same as load_tuple, for tuples that are read once: they do not evict other data from the caches.
__device__ __forceinline__ Tuple stream_tuple(const Tuple* from) {
    const Packed p = __ldcs(reinterpret_cast<const Packed*>(from));
    return Tuple{p.x, p.y};
}

__device__ __forceinline__ void store_tuple(Tuple* to, Tuple t) {
    *reinterpret_cast<Packed*>(to) = Packed{t.key, t.value};
}

// Mixes a key with xor-shifts and multiplications by odd numbers. Every step can be undone, so different
// words stay different. A shift by half a word is its own inverse. With the inverse multipliers in reverse
// order, this function therefore undoes itself. Each join has its own multipliers. They stay in the kernel's
// parameters: these are in constant memory, which a multiplication reads without a register.
__device__ __forceinline__ Word mix(Word x, const Mixing& by) {
    x = (x ^ (x >> (WORD_BITS / 2))) * (Word)by.first;
    x = (x ^ (x >> (WORD_BITS / 2))) * (Word)by.second;
    return x ^ (x >> (WORD_BITS / 2));
}
