// Unpacks keys that crossed the link in fewer bytes.
//
//   pack: base 1000, 3 bytes per key    … 02 00 00 │ 07 01 00 │ 00 00 00 …
//                                          1002        1263       1000
//
// A value lies in one or two aligned 64-bit words, which are read whole. Neighbouring threads read
// neighbouring values, so a warp reads only a few cache lines.
#include "block.cuh"
#include "word.cuh"

#define THREADS 256
#define AT_ONCE 8

// Reads a little-endian number of `bits` bits that begins at any byte. Reads no word outside the number's
// bytes.
__device__ __forceinline__ u64 read_packed(u64 address, u32 bits) {
    const u64* words = at<u64>(address & ~7ull);
    const u32 shift = (u32)(address & 7) * 8;
    u64 value = __ldg(words) >> shift;
    // If this is true, the shift is not zero.
    if (shift + bits > 64) value |= __ldg(words + 1) << (64 - shift);
    return bits == 64 ? value : value & ((1ull << bits) - 1);
}

// Every pack has the same number of blocks, `gridDim.x / count`. The blocks of a pack take its tiles in turn.
extern "C" __global__ void __launch_bounds__(THREADS) unpack(Unpack a) {
    const u32 each = gridDim.x / a.count, which = blockIdx.x / each;
    if (which >= a.count) return;
    const Pack pack = at<Pack>(a.packs)[which];
    const u64 from = a.packed + pack.at;
    Word* to = at<Word>(a.keys) + pack.first;
    const u32 bits = 8 * pack.bytes;
    const u64 step = (u64)each * THREADS * AT_ONCE;
    for (u64 begin = (u64)(blockIdx.x % each) * THREADS * AT_ONCE; begin < pack.rows; begin += step) {
        u64 value[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const u64 row = begin + i * THREADS + threadIdx.x;
            value[i] = bits && row < pack.rows ? read_packed(from + row * pack.bytes, bits) : 0;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const u64 row = begin + i * THREADS + threadIdx.x;
            if (row < pack.rows) __stcs(to + row, (Word)(pack.base + value[i]));
        }
    }
}
