// Gathers values of a column by row number: target[i] = source[rows[i]].
#include "word.cuh"

template <typename T>
__device__ __forceinline__ void gather(const Gather& a) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += stride) {
        at<T>(a.target)[i] = at<T>(a.source)[at<Word>(a.rows)[i]];
    }
}

extern "C" __global__ void __launch_bounds__(256) gather_1(Gather a) { gather<u8>(a); }
extern "C" __global__ void __launch_bounds__(256) gather_2(Gather a) { gather<u16>(a); }
extern "C" __global__ void __launch_bounds__(256) gather_4(Gather a) { gather<u32>(a); }
extern "C" __global__ void __launch_bounds__(256) gather_8(Gather a) { gather<u64>(a); }
extern "C" __global__ void __launch_bounds__(256) gather_16(Gather a) { gather<ulonglong2>(a); }
