// Reductions within a block of threads, in an order that depends on the length of a row alone: a row has the same
// bits whatever it is computed with.
#pragma once

#include "packs.cuh"

// Threads of a block that works on one row.
#define THREADS 256

// Elements that are added up by a block at a time. Sums of pieces are added in order.
#define PIECE 16384

struct Add { template <class W> static __device__ inline W of(W a, W b) { return a + b; } };
struct Largest { template <class W> static __device__ inline W of(W a, W b) { return a > b ? a : b; } };

// Combines one value of every thread; all threads get the result.
template <class Op, class W> __device__ inline W combine(W x) {
    __shared__ W parts[THREADS / 32];
    for (int offset = 16; offset > 0; offset /= 2) x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, offset));
    // What an earlier call left is read by then.
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    W result = parts[0];
    for (int warp = 1; warp < THREADS / 32; warp++) result = Op::of(result, parts[warp]);
    return result;
}

// The sum of f(i) for i below a length.
template <class W, class F> __device__ inline W row_sum(uint64_t length, F f) {
    W total = 0;
    for (uint64_t start = 0; start < length; start += PIECE) {
        uint64_t end = start + PIECE < length ? start + PIECE : length;
        W part = 0;
        for (uint64_t i = start + threadIdx.x; i < end; i += THREADS) part += f(i);
        total += combine<Add, W>(part);
    }
    return total;
}

// The largest of f(i); -infinity for an empty row. NaN is passed over.
template <class W, class F> __device__ inline W row_largest(uint64_t length, F f) {
    W most = -infinity<W>();
    for (uint64_t i = threadIdx.x; i < length; i += THREADS) {
        W x = f(i);
        most = x > most ? x : most;
    }
    return combine<Largest, W>(most);
}

// A warp, or a block of threads, that works on one row.
template <int THREADS_> struct Team {
    static constexpr int SIZE = THREADS_;
    static __device__ inline unsigned member() { return threadIdx.x % THREADS_; }
    template <class Op, class W> static __device__ inline W combined(W x) {
        if constexpr (THREADS_ == THREADS) {
            return combine<Op, W>(x);
        } else {
            for (int offset = 16; offset > 0; offset /= 2) x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, offset));
            return x;
        }
    }
};

// Calls `held(k, i)` for the first packs of a row that this thread has, from element `i` on, which are few enough for
// registers, and `rest(i)` for its other elements. Which elements it has, and their order, depend on the length alone.
template <class T, int HELD, class Members, class Held, class Rest>
__device__ inline void for_owned(uint32_t length, Held held, Rest rest) {
    constexpr int COUNT = Pack<T>::COUNT;
    uint32_t packs = length / COUNT;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        uint32_t pack = Members::member() + k * Members::SIZE;
        if (pack < packs) held(k, pack * COUNT);
    }
    for (uint32_t pack = Members::member() + HELD * Members::SIZE; pack < packs; pack += Members::SIZE)
        for (int j = 0; j < COUNT; j++) rest(pack * COUNT + j);
    if (packs * COUNT + Members::member() < length) rest(packs * COUNT + Members::member());
}

// The sum of f(x) for the elements of a row of less than 2^32, a pack at a time.
template <class W, class T, class F> __device__ inline W sum_of_packs(const T* x, uint64_t length, F f) {
    constexpr int COUNT = Pack<T>::COUNT;
    W part = 0;
    auto add = [&](const Pack<T>& values) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) part += f(widen(values.values[j]));
    };
    uint32_t packs = (uint32_t)(length / COUNT);
    if (is_aligned(x)) {
#pragma unroll 4
        for (uint32_t pack = threadIdx.x; pack < packs; pack += THREADS) add(load_pack(x + pack * COUNT, true));
    } else {
        for (uint32_t pack = threadIdx.x; pack < packs; pack += THREADS) add(load_pack(x + pack * COUNT, false));
    }
    uint64_t last = length / COUNT * COUNT + threadIdx.x;
    if (last < length) part += f(widen(x[last]));
    return combine<Add, W>(part);
}

// Rows of the grid's loop, a block for each.
#define FOR_ROWS(row, count) for (uint64_t row = blockIdx.x; row < (count); row += gridDim.x)
