// Block primitives: operations that the threads of a warp or a block carry out together.
#pragma once
#include "abi.cuh"

#define WARP 32
#define ALL_LANES 0xffffffffu

__device__ __forceinline__ u32 lane_id() { return threadIdx.x % WARP; }
__device__ __forceinline__ u32 warp_id() { return threadIdx.x / WARP; }
__device__ __forceinline__ u32 lanes_below() { return (1u << lane_id()) - 1; }

// Dynamic shared memory, as bytes. Each kernel defines its own layout.
extern __shared__ __align__(16) u8 shared_bytes[];

template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_down_sync(ALL_LANES, value, step);
    return value;
}

template <typename T>
__device__ __forceinline__ T warp_inclusive(T value) {
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const T below = __shfl_up_sync(ALL_LANES, value, step);
        if (lane_id() >= step) value += below;
    }
    return value;
}

// Returns the sum of the values of all threads before this one, and stores the block's sum in `total`. `sums`
// has one entry per warp plus one. Every thread of the block must call this. The caller places a barrier
// before `sums` is used again.
template <typename T, int THREADS>
__device__ __forceinline__ T block_exclusive(T value, T* sums, T& total) {
    const T inclusive = warp_inclusive(value);
    if (lane_id() == WARP - 1) sums[warp_id()] = inclusive;
    __syncthreads();
    if (warp_id() == 0) {
        const bool mine = lane_id() < THREADS / WARP;
        const T of_warp = mine ? sums[lane_id()] : T(0);
        const T upto = warp_inclusive(of_warp);
        if (mine) sums[lane_id()] = upto - of_warp;
        if (lane_id() == THREADS / WARP - 1) sums[THREADS / WARP] = upto;
    }
    __syncthreads();
    total = sums[THREADS / WARP];
    return sums[warp_id()] + inclusive - value;
}

// Copies `BYTES` (4, 8 or 16) from global to shared memory. From compute capability 8.0 on, the copy is
// asynchronous and uses no registers.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    const u32 place = (u32)__cvta_generic_to_shared(to);
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(BYTES) : "memory");
    }
#else
    if (BYTES == 16) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    else if (BYTES == 8) *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(from);
    else *reinterpret_cast<u32*>(to) = *reinterpret_cast<const u32*>(from);
#endif
}

// Waits for the copies that this thread started.
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
