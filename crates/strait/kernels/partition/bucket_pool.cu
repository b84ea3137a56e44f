// Radix passes into chains of buckets, as in 003 §III-A. No histogram is needed.
//
//   tile ─► rank tuples by digit ─► reserve a stretch of each digit's chain ─► order ─► write runs
//                                        │ one atomic addition per digit
//                                        └─ a new bucket begins? take it from the pool, and publish it
//
// The first pass reads columns. Each later pass partitions every chain by the next lower digit. A block takes
// a few buckets of one chain, so several blocks share a long chain of skewed keys (003 also assigns buckets
// rather than chains to blocks). Partitions are thus numbered by the bits of all passes so far.
//
// There are two differences from 003. A directory locates the buckets of a chain, so no thread follows links.
// At the end, chains are compacted, so that the same kernels join the output of every partitioner. 003 joins
// from the chains; the compaction costs one more read and write per tuple.
#include "tile.cuh"

#define SCAN_THREADS 1024
#define SCAN_ITEMS 8
#define COPY_THREADS 256

// Computes starts[i], the number of pieces of the chains before i. One block suffices: chains are few
// compared with tuples.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) cut_chains(CutChains a) {
    __shared__ u32 sums[SCAN_THREADS / WARP + 1];
    const u32* counts = at<u32>(a.counts);
    u32* starts = at<u32>(a.starts);
    u32 carry = 0;
    for (u32 base = 0; base < a.chains; base += SCAN_THREADS * SCAN_ITEMS) {
        const u32 first = base + threadIdx.x * SCAN_ITEMS;
        u32 pieces[SCAN_ITEMS], sum = 0;
#pragma unroll
        for (int i = 0; i < SCAN_ITEMS; i++) {
            const u32 rows = first + i < a.chains ? (counts ? counts[first + i] : (u32)a.rows) : 0;
            pieces[i] = (rows + a.piece - 1) / a.piece;
            sum += pieces[i];
        }
        u32 total;
        u32 before = carry + block_exclusive<u32, SCAN_THREADS>(sum, sums, total);
#pragma unroll
        for (int i = 0; i < SCAN_ITEMS; i++) {
            if (first + i < a.chains) starts[first + i] = before;
            before += pieces[i];
        }
        carry += total;
        __syncthreads();
    }
    if (threadIdx.x == 0) starts[a.chains] = carry;
}

// The work of one block: some tuples of one chain.
struct Piece { u32 chain, first, rows; };

// Finds the block's piece. It has no rows if there are fewer pieces than blocks. All threads call this.
__device__ __forceinline__ Piece find_piece(const u32* pieces, const u32* counts, u32 chains, u32 piece) {
    const u32 wanted = blockIdx.x;
    if (wanted >= pieces[chains]) return Piece{0, 0, 0};
    // Finds the last chain that begins at or before the wanted piece. Each step of the search tests 32
    // chains, one per lane.
    u32 low = 0, high = chains;
    while (high - low > 1) {
        const u32 step = (high - low + WARP - 1) / WARP;
        const u32 i = low + lane_id() * step;
        const u32 not_later = __ballot_sync(ALL_LANES, i < high && pieces[i] <= wanted);
        low += (__popc(not_later) - 1) * step;
        high = min(high, low + step);
    }
    const u32 first = (wanted - pieces[low]) * piece;
    return Piece{low, first, min(piece, counts[low] - first)};
}

// Returns the directory entries of a chain. Each chain of a parent has as many entries as the parent has
// buckets, because no chain is longer than its parent.
__device__ __forceinline__ u32* entries_of(const Chains& c, u32 chain) {
    const u32* slots = at<u32>(c.slots) + (chain >> c.digit_bits);
    const u32 digit = chain & ((1u << c.digit_bits) - 1);
    const u64 begin = ((u64)slots[0] << c.digit_bits) + (u64)digit * (slots[1] - slots[0]);
    return at<u32>(c.directory) + begin;
}

// Returns where tuple `n` of a chain is in the pool.
__device__ __forceinline__ u64 place_of(const Chains& c, const u32* entries, u32 n) {
    const u32 inside = n & ((1u << c.bucket_bits) - 1);
    return ((u64)(entries[n >> c.bucket_bits] - 1) << c.bucket_bits) + inside;
}

// The target of each run. Tile places before `split` go to `near` plus the place, the others to `far` plus
// the place. The buckets that a run begins are neighbours in the pool, so two ranges suffice.
struct Stretches {
    u64 *near, *far;
    u32* split;
};

// Reserves places in a chain for a run of `count` tuples that begins at tile place `start`.
//
// A thread waits only for a bucket that an earlier reservation began. The owner of that reservation is
// already running, and publishes all its buckets before it waits for any. Therefore every wait ends. The warp
// barrier ensures this even if the threads of a warp run in lockstep.
__device__ __forceinline__ void reserve(const BucketPool& a, u32 chain, u32 count, u32 start, Stretches to) {
    const u32 bits = a.to.bucket_bits, size = 1u << bits;
    u32* entries = nullptr;
    u32 position = 0, fresh = 0;
    if (count) {
        entries = entries_of(a.to, chain);
        position = atomicAdd(at<u32>(a.to.counts) + chain, count);
        const u32 from = (position + size - 1) >> bits, upto = (position + count + size - 1) >> bits;
        if (from < upto) fresh = atomicAdd(at<u32>(a.cursor), upto - from);
        for (u32 k = from; k < upto; k++) __stcg(entries + k, fresh + (k - from) + 1);
    }
    __syncwarp();
    if (count) {
        const u32 inside = position & (size - 1);
        u32 bucket = fresh;
        if (inside) {
            const volatile u32* entry = entries + (position >> bits);
            u32 published;
            do published = *entry;
            while (published == 0);
            bucket = published - 1;
        } else {
            fresh++;
        }
        const u32 split = start + (size - inside);
        to.near[threadIdx.x] = ((u64)bucket << bits) + inside - start;
        to.far[threadIdx.x] = ((u64)fresh << bits) - split;
        to.split[threadIdx.x] = split;
    }
}

template <bool FROM_CHAINS>
__device__ __forceinline__ void divide(const BucketPool& a) {
    Tuple* tuples = reinterpret_cast<Tuple*>(shared_bytes);
    // The order overwrites the counts, which are no longer needed by then.
    u16* order = reinterpret_cast<u16*>(shared_bytes + TUPLE_BYTES);
    Stretches to;
    to.near = reinterpret_cast<u64*>(shared_bytes + TUPLE_BYTES + ORDER_BYTES);
    to.far = to.near + BINS;
    to.split = reinterpret_cast<u32*>(to.far + BINS);
    u32* starts = to.split + BINS;
    u32* sums = starts + BINS;
    const u32 thread = threadIdx.x;
    const auto key_of = [&](u32 n) { return FROM_CHAINS ? tuples[n].key : mix(tuples[n].key, a.mixing); };

    Piece piece;
    clear_counts<false>(order);
    if (FROM_CHAINS) {
        piece = find_piece(at<u32>(a.pieces), at<u32>(a.from.counts), a.parents, a.piece);
        if (piece.rows == 0) return;
        const u32* entries = entries_of(a.from, piece.chain);
        const auto place = [&](u32 n) { return place_of(a.from, entries, piece.first + n); };
        load_tuples(at<Tuple>(a.from.tuples), tuples, piece.rows, place);
    } else {
        const u32 first = blockIdx.x * a.piece;
        piece = Piece{0, first, min(a.piece, (u32)a.rows - first)};
        load_columns(a.columns, tuples, first, piece.rows);
    }
    __syncthreads();

    u32 rank[ITEMS];
    rank_tile<false>(rank, order, key_of, a.digit, piece.rows);
    __syncthreads();
    const u32 count = thread < BINS ? count_digit<false>(order, thread) : 0;
    u32 total;
    const u32 start = block_exclusive<u32, THREADS>(count, sums, total);
    if (thread < BINS) starts[thread] = start;
    __syncthreads();
    order_tile<false>(rank, order, starts, piece.rows);
    if (thread < BINS) reserve(a, (piece.chain << a.to.digit_bits) + thread, count, start, to);
    __syncthreads();

#pragma unroll 4
    for (u32 place = thread; place < piece.rows; place += THREADS) {
        const u32 n = order[place];
        const Tuple t = {key_of(n), tuples[n].value};
        const u32 digit = digit_of(t.key, a.digit);
        const u64 base = place < to.split[digit] ? to.near[digit] : to.far[digit];
        store_tuple(at<Tuple>(a.to.tuples) + (base + place), t);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, LOOK_BACK_BLOCKS) bucket_pool_first(BucketPool a) {
    divide<false>(a);
}
extern "C" __global__ void __launch_bounds__(THREADS, LOOK_BACK_BLOCKS) bucket_pool_chains(BucketPool a) {
    divide<true>(a);
}

// Compacts the chains: copies their tuples into one array, in chain order.
extern "C" __global__ void __launch_bounds__(COPY_THREADS) compact(Compact a) {
    const Piece piece = find_piece(at<u32>(a.pieces), at<u32>(a.from.counts), a.chains, a.piece);
    if (piece.rows == 0) return;
    const u32* entries = entries_of(a.from, piece.chain);
    const Tuple* from = at<Tuple>(a.from.tuples);
    Tuple* to = at<Tuple>(a.to_tuples) + at<u32>(a.starts)[piece.chain] + piece.first;
#pragma unroll 4
    for (u32 n = threadIdx.x; n < piece.rows; n += COPY_THREADS) {
        store_tuple(to + n, stream_tuple(from + place_of(a.from, entries, piece.first + n)));
    }
}
