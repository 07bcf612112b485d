// Reductions within a block of threads, in an order that depends on the length of a row alone: a row has the same
// bits whatever it is computed with.
#pragma once

#include "number.cuh"

// Threads of a block that works on one row.
#define THREADS 256

// Elements that are added up by a block at a time. Sums of pieces are added in order.
#define PIECE 16384

struct Add { template <class W> static __device__ inline W of(W a, W b) { return a + b; } };
struct Largest { template <class W> static __device__ inline W of(W a, W b) { return a > b ? a : b; } };

// Combines one value of every thread; all threads get the result.
template <class Op, class W> __device__ inline W combine(W x) {
    __shared__ W parts[THREADS];
    __syncthreads();
    parts[threadIdx.x] = x;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] = Op::of(parts[threadIdx.x], parts[threadIdx.x + half]);
        __syncthreads();
    }
    return parts[0];
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

// Rows of the grid's loop, a block for each.
#define FOR_ROWS(row, count) for (uint64_t row = blockIdx.x; row < (count); row += gridDim.x)
