// What the scatterers of 000 §4 have in common: where tuples come from, which partition they are of,
// and how a warp writes several.
#pragma once
#include "block.cuh"
#include "word.cuh"

#define MOST_PARTITIONS 2048
#define TUPLE_BYTES (2 * WORD_BYTES)

__device__ __forceinline__ u32 partition_of(const Scatter& a, Word key) {
    return (u32)(key >> a.digit.shift) & a.digit.mask;
}

// A row of the source, as it lies there. It may come over the link, and is read once.
template <bool FROM_TUPLES>
__device__ __forceinline__ Tuple source_tuple(const Scatter& a, u64 row) {
    if (FROM_TUPLES) return stream_tuple(at<Tuple>(a.tuples) + row);
    const Columns& c = a.columns;
    const Word value = c.values ? __ldcs(at<Word>(c.values) + row) : (Word)(c.first + row);
    return Tuple{__ldcs(at<Word>(c.keys) + row), value};
}

// A tuple with its key mixed: columns have keys as they came. Apart from the load, so that whoever
// has other work does not wait for it.
template <bool FROM_TUPLES>
__device__ __forceinline__ Tuple mixed(const Scatter& a, const Tuple& tuple) {
    return Tuple{FROM_TUPLES ? tuple.key : mix(tuple.key, a.mixing), tuple.value};
}

// Copies tuples, by the lanes of a warp: several are loaded before the first is stored, which may
// take its time where the link is busy.
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
