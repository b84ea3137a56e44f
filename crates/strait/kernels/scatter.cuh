// Code that the scatter kernels of 000 §4 share: the source of the tuples, the partition of a tuple, and a
// copy of several tuples by a warp.
#pragma once
#include "block.cuh"
#include "word.cuh"

#define MOST_PARTITIONS 2048
#define TUPLE_BYTES (2 * WORD_BYTES)

__device__ __forceinline__ u32 partition_of(const Scatter& a, Word key) {
    return (u32)(key >> a.digit.shift) & a.digit.mask;
}

// Loads a row of the source unchanged. The load may cross the link, and each row is read only once.
template <bool FROM_TUPLES>
__device__ __forceinline__ Tuple source_tuple(const Scatter& a, u64 row) {
    if (FROM_TUPLES) return stream_tuple(at<Tuple>(a.tuples) + row);
    const Columns& c = a.columns;
    const Word value = c.values ? __ldcs(at<Word>(c.values) + row) : (Word)(c.first + row);
    return Tuple{__ldcs(at<Word>(c.keys) + row), value};
}

// Returns the tuple with its key mixed; keys in columns are not mixed yet. This is separate from the load, so
// that a caller can do other work before it waits for the load.
template <bool FROM_TUPLES>
__device__ __forceinline__ Tuple mixed(const Scatter& a, const Tuple& tuple) {
    return Tuple{FROM_TUPLES ? tuple.key : mix(tuple.key, a.mixing), tuple.value};
}

// Copies tuples; all lanes of a warp call this. Each lane loads several tuples before it stores the first,
// because a store may take long if the link is busy.
__device__ __forceinline__ void copy_tuples(Tuple* to, const Tuple* from, u32 count) {
    for (u32 first = lane_id(); first < count; first += 4 * WARP) {
        Tuple tuple[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (first + i * WARP < count) tuple[i] = load_tuple(from + first + i * WARP);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (first + i * WARP < count) store_tuple(to + first + i * WARP, tuple[i]);
        }
    }
}
