// Statistics of a side's keys: which bits vary, and how often each digit occurs.
#include "block.cuh"
#include "word.cuh"

#define BINS 256
#define MOST_PARTITIONS 2048
#define THREADS HISTOGRAM_THREADS
#define AT_ONCE 8

// found = [max key, max !key, or of keys, or of !keys].
extern "C" __global__ void __launch_bounds__(THREADS) survey(Survey a) {
    Word most = 0, least = 0, ones = 0, zeros = 0;
    const Word* keys = at<Word>(a.keys);
    const u64 stride = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < a.rows; i += stride) {
        const Word key = keys[i], not_key = ~key;
        most = key > most ? key : most;
        least = not_key > least ? not_key : least;
        ones |= key;
        zeros |= not_key;
    }
    for (int step = WARP / 2; step > 0; step /= 2) {
        const Word m = __shfl_down_sync(ALL_LANES, most, step), l = __shfl_down_sync(ALL_LANES, least, step);
        most = m > most ? m : most;
        least = l > least ? l : least;
        ones |= __shfl_down_sync(ALL_LANES, ones, step);
        zeros |= __shfl_down_sync(ALL_LANES, zeros, step);
    }
    if (lane_id() == 0) {
        u64* found = at<u64>(a.found);
        atomicMax(found, (u64)most);
        atomicMax(found + 1, (u64)least);
        atomicOr(found + 2, (u64)ones);
        atomicOr(found + 3, (u64)zeros);
    }
}

// Adds to bins[pass][digit]. Counts in shared memory first.
extern "C" __global__ void __launch_bounds__(THREADS) histogram(Histogram a) {
    u32* counts = reinterpret_cast<u32*>(shared_bytes);
    for (u32 i = threadIdx.x; i < a.passes * BINS; i += THREADS) counts[i] = 0;
    __syncthreads();
    const Word* keys = at<Word>(a.keys);
    const u64 tile = (u64)THREADS * AT_ONCE;
    for (u64 begin = blockIdx.x * tile; begin < a.rows; begin += gridDim.x * tile) {
        Word key[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const u64 row = begin + i * THREADS + threadIdx.x;
            key[i] = row < a.rows ? __ldcs(keys + row * a.stride) : Word(0);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (begin + i * THREADS + threadIdx.x >= a.rows) break;
            const Word k = a.mix ? mix(key[i], a.mixing) : key[i];
            for (u32 pass = 0; pass < a.passes; pass++) {
                const u32 digit = (u32)(k >> a.digits[pass].shift) & a.digits[pass].mask;
                atomicAdd(&counts[pass * BINS + digit], 1u);
            }
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < a.passes * BINS; i += THREADS) {
        if (counts[i]) atomicAdd(at<u64>(a.bins) + i, (u64)counts[i]);
    }
}

// Adds to counts[digit]. Counts in shared memory first. There may be more digits than in a radix pass.
extern "C" __global__ void __launch_bounds__(THREADS) tally(Tally a) {
    __shared__ u32 counts[MOST_PARTITIONS];
    for (u32 i = threadIdx.x; i <= a.digit.mask; i += THREADS) counts[i] = 0;
    __syncthreads();
    const Word* keys = at<Word>(a.keys);
    const u64 tile = (u64)THREADS * AT_ONCE;
    for (u64 begin = blockIdx.x * tile; begin < a.rows; begin += gridDim.x * tile) {
        Word key[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const u64 row = begin + i * THREADS + threadIdx.x;
            key[i] = row < a.rows ? __ldcs(keys + row * a.stride) : Word(0);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (begin + i * THREADS + threadIdx.x >= a.rows) break;
            const Word k = a.mix ? mix(key[i], a.mixing) : key[i];
            atomicAdd(&counts[(u32)(k >> a.digit.shift) & a.digit.mask], 1u);
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i <= a.digit.mask; i += THREADS) {
        if (counts[i]) atomicAdd(at<u64>(a.counts) + i, (u64)counts[i]);
    }
}

// Turns the counts of bins[pass] into start offsets per digit. One block per pass.
extern "C" __global__ void __launch_bounds__(BINS) offsets(Offsets a) {
    __shared__ u64 sums[BINS / WARP + 1];
    u64* bins = at<u64>(a.bins) + blockIdx.x * BINS;
    u64 total;
    const u64 before = block_exclusive<u64, BINS>(bins[threadIdx.x], sums, total);
    bins[threadIdx.x] = before;
}
