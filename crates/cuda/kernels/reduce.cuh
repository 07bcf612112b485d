// Reductions and softmax of rows.
#pragma once

#include "row.cuh"

// `exp(x)` for x up to 0.
template <class W> __device__ inline W weight(W x) { return exp(x); }

// The numbers of reductions are those of `Reduction` in Rust: sum, max, min, product, norm, log-sum-exp.
template <class T> __device__ inline void reduce_row(T* out, const T* x, uint64_t length, int op) {
    typedef Wide<T> W;
    W result = 0;
    if (op == 0) {
        result = row_sum<W>(length, [&](uint64_t i) { return widen(x[i]); });
    } else if (op == 1 || op == 2) {
        W nans = row_largest<W>(length, [&](uint64_t i) { return widen(x[i]) != widen(x[i]) ? W(1) : W(0); });
        W sign = op == 1 ? W(1) : W(-1);
        W most = row_largest<W>(length, [&](uint64_t i) { return sign * widen(x[i]); });
        result = nans > W(0) ? not_a_number<W>() : sign * most;
    } else if (op == 3) {
        result = 1;
        for (uint64_t i = 0; i < length; i++) result *= widen(x[i]);
    } else if (op == 4) {
        result = sqrt(row_sum<W>(length, [&](uint64_t i) { W v = widen(x[i]); return v * v; }));
    } else {
        W most = row_largest<W>(length, [&](uint64_t i) { return widen(x[i]); });
        W sum = row_sum<W>(length, [&](uint64_t i) { return weight<W>(widen(x[i]) - most); });
        // The result of a row of -infinity, or with a +infinity, is that infinity.
        result = isinf(most) ? most : most + log(sum);
    }
    if (threadIdx.x == 0) *out = narrow<T>(result);
}

#define REDUCE(name, T)                                                                                        \
    extern "C" __global__ void reduce_##name(T* out, const T* x, uint64_t rows, uint64_t length, int op) {     \
        FOR_ROWS(row, rows) reduce_row<T>(out + row, x + row * length, length, op);                            \
    }                                                                                                          \
    /* Sums of the pieces of one row, of elements or of their squares. */                                     \
    extern "C" __global__ void sum_pieces_##name(Wide<T>* out, const T* x, uint64_t count, int squares) {      \
        typedef Wide<T> W;                                                                                     \
        FOR_ROWS(piece, (count + PIECE - 1) / PIECE) {                                                         \
            uint64_t start = piece * PIECE, length = count - start < PIECE ? count - start : PIECE;            \
            W sum = sum_of_packs<W>(x + start, length, [&](W v) { return squares ? v * v : v; });              \
            if (threadIdx.x == 0) out[piece] = sum;                                                            \
        }                                                                                                      \
    }                                                                                                          \
    extern "C" __global__ void add_in_order_##name(T* out, const Wide<T>* parts, uint64_t count,               \
                                                   double divisor) {                                           \
        Wide<T> total = row_sum<Wide<T>>(count, [&](uint64_t i) { return parts[i]; });                         \
        if (threadIdx.x == 0) *out = narrow<T>(total / Wide<T>(divisor));                                      \
    }                                                                                                          \
    /* For each element the product of the others, which is also right for zeros. */                          \
    extern "C" __global__ void product_gradient_##name(T* out, const T* x, const T* g, Wide<T>* after,         \
                                                       uint64_t rows, uint64_t length) {                       \
        typedef Wide<T> W;                                                                                     \
        FOR_EACH(row, rows) {                                                                                  \
            const T* values = x + row * length;                                                                \
            W* behind = after + row * length;                                                                  \
            W product = 1;                                                                                     \
            for (uint64_t i = length; i-- > 0;) {                                                              \
                behind[i] = product;                                                                           \
                product *= widen(values[i]);                                                                   \
            }                                                                                                  \
            W before = widen(g[row]);                                                                          \
            for (uint64_t i = 0; i < length; i++) {                                                            \
                out[row * length + i] = narrow<T>(before * behind[i]);                                         \
                before *= widen(values[i]);                                                                    \
            }                                                                                                  \
        }                                                                                                      \
    }
FOR_FLOATS(REDUCE)

template <class T> __device__ inline void softmax_row(T* out, const T* x, uint64_t length, int log_softmax) {
    typedef Wide<T> W;
    W most = row_largest<W>(length, [&](uint64_t i) { return widen(x[i]); });
    W sum = row_sum<W>(length, [&](uint64_t i) { return weight<W>(widen(x[i]) - most); });
    if (log_softmax) {
        W shift = most + log(sum);
        for (uint64_t i = threadIdx.x; i < length; i += THREADS) out[i] = narrow<T>(widen(x[i]) - shift);
    } else {
        W scale = W(1) / sum;
        for (uint64_t i = threadIdx.x; i < length; i += THREADS)
            out[i] = narrow<T>(weight<W>(widen(x[i]) - most) * scale);
    }
}

// `out` may be `g`.
template <class T>
__device__ inline void softmax_gradient_row(T* out, const T* y, const T* g, uint64_t length, int log_softmax) {
    typedef Wide<T> W;
    if (log_softmax) {
        W sum = row_sum<W>(length, [&](uint64_t i) { return widen(g[i]); });
        for (uint64_t i = threadIdx.x; i < length; i += THREADS)
            out[i] = narrow<T>(widen(g[i]) - weight<W>(widen(y[i])) * sum);
    } else {
        W dot = row_sum<W>(length, [&](uint64_t i) { return widen(y[i]) * widen(g[i]); });
        for (uint64_t i = threadIdx.x; i < length; i += THREADS)
            out[i] = narrow<T>(widen(y[i]) * (widen(g[i]) - dot));
    }
}

#define SOFTMAX(name, T)                                                                                       \
    extern "C" __global__ void softmax_##name(T* out, const T* x, uint64_t rows, uint64_t length, int kind) {  \
        FOR_ROWS(row, rows) softmax_row<T>(out + row * length, x + row * length, length, kind);                \
    }                                                                                                          \
    extern "C" __global__ void softmax_gradient_##name(T* out, const T* y, const T* g, uint64_t rows,          \
                                                       uint64_t length, int kind) {                            \
        FOR_ROWS(row, rows)                                                                                    \
        softmax_gradient_row<T>(out + row * length, y + row * length, g + row * length, length, kind);         \
    }
FOR_FLOATS(SOFTMAX)
