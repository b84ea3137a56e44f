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

// Xor-shifts and odd multiplies: each step can be undone, so no two words meet.
__device__ __forceinline__ u32 mix(u32 x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}
__device__ __forceinline__ u64 mix(u64 x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    return x ^ (x >> 32);
}
__device__ __forceinline__ u32 unmix(u32 x) {
    x = (x ^ (x >> 16)) * 0x43021123u;
    x = (x ^ (x >> 15) ^ (x >> 30)) * 0x1d69e2a5u;
    return x ^ (x >> 16);
}
__device__ __forceinline__ u64 unmix(u64 x) {
    x = (x ^ (x >> 32)) * 0xcfee444d8b59a89bull;
    x = (x ^ (x >> 32)) * 0xcfee444d8b59a89bull;
    return x ^ (x >> 32);
}
