// CUB's sort of 2^28 pairs of 64-bit keys and values, for comparison with `strait bench gpu`:
//   nvcc -O3 -arch=native -o cub_sort cub_sort.cu && ./cub_sort
#include <algorithm>
#include <cstdio>
#include <cub/device/device_radix_sort.cuh>
#include <vector>

typedef unsigned long long u64;

__global__ void scatter(u64* keys, u64* values, size_t rows) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < rows; i += (size_t)gridDim.x * blockDim.x) {
        const u64 x = (i + 1) * 0x9e3779b97f4a7c15ull;
        keys[i] = ((x ^ (x >> 31)) * 0x94d049bb133111ebull) ^ x;
        values[i] = i;
    }
}

int main() {
    const size_t rows = (size_t)1 << 28;
    u64 *keys, *values, *sorted_keys, *sorted_values;
    void* scratch = nullptr;
    size_t bytes = 0;
    for (u64** column : {&keys, &values, &sorted_keys, &sorted_values}) {
        if (cudaMalloc(column, rows * 8) != cudaSuccess) return 1;
    }
    scatter<<<1024, 256>>>(keys, values, rows);
    const auto sort = [&] {
        return cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted_keys, values, sorted_values, rows);
    };
    if (sort() != cudaSuccess || cudaMalloc(&scratch, bytes) != cudaSuccess) return 1;
    std::vector<float> times;
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int run = 0; run < 10; run++) {
        cudaEventRecord(begin);
        if (sort() != cudaSuccess) return 1;
        cudaEventRecord(end);
        if (cudaEventSynchronize(end) != cudaSuccess) return 1;
        float ms;
        cudaEventElapsedTime(&ms, begin, end);
        if (run > 0) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    const float ms = times[times.size() / 2];
    printf("CUB: %zu pairs in %.3f ms, %.2f billion a second\n", rows, ms, rows / ms / 1e6);
    return 0;
}
