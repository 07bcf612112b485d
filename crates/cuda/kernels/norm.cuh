// RMS norm and layer norm of rows.
#pragma once

#include "row.cuh"

// Rows whose shares of the gradient of a weight are summed together, as on the CPU.
#define NORM_ROWS 32

// The mean of a row (0 for RMS norm) and `1 / sqrt(mean square + eps)`.
template <class T, class W>
__device__ inline void row_moments(const T* x, uint64_t length, double eps, int centred, W& mean, W& scale) {
    mean = 0;
    if (centred) mean = row_sum<W>(length, [&](uint64_t i) { return widen(x[i]); }) / W(length);
    W m = mean;
    W squares = row_sum<W>(length, [&](uint64_t i) { W d = widen(x[i]) - m; return d * d; });
    scale = W(1) / sqrt(squares / W(length) + W(eps));
}

#define NORM(name, T)                                                                                          \
    /* `bias` may be null. */                                                                                  \
    extern "C" __global__ void norm_##name(T* out, const T* x, const T* weight, const T* bias, uint64_t rows,  \
                                           uint64_t length, double eps, int centred) {                         \
        typedef Wide<T> W;                                                                                     \
        FOR_ROWS(row, rows) {                                                                                  \
            const T* values = x + row * length;                                                                \
            W mean, scale;                                                                                     \
            row_moments<T, W>(values, length, eps, centred, mean, scale);                                      \
            for (uint64_t i = threadIdx.x; i < length; i += THREADS) {                                         \
                W y = (widen(values[i]) - mean) * scale * widen(weight[i]);                                    \
                out[row * length + i] = narrow<T>(bias ? y + widen(bias[i]) : y);                              \
            }                                                                                                  \
        }                                                                                                      \
    }                                                                                                          \
    /* A block for each chunk of rows. Writes the gradient of `x` (`of_x` may be `g`) and the chunk's shares   \
       of the gradients of weights, then of biases if `centred`. */                                            \
    extern "C" __global__ void norm_gradient_##name(T* of_x, Wide<T>* shares, const T* x, const T* weight,     \
                                                    const T* g, uint64_t rows, uint64_t length, double eps,    \
                                                    int centred) {                                             \
        typedef Wide<T> W;                                                                                     \
        uint64_t first = (uint64_t)blockIdx.x * NORM_ROWS;                                                     \
        uint64_t last = first + NORM_ROWS < rows ? first + NORM_ROWS : rows;                                   \
        W* of_weight = shares + (uint64_t)blockIdx.x * length * (centred ? 2 : 1);                             \
        W* of_bias = of_weight + length;                                                                       \
        for (uint64_t i = threadIdx.x; i < length; i += THREADS) {                                             \
            of_weight[i] = 0;                                                                                  \
            if (centred) of_bias[i] = 0;                                                                       \
        }                                                                                                      \
        for (uint64_t row = first; row < last; row++) {                                                        \
            const T *values = x + row * length, *gs = g + row * length;                                        \
            W mean, scale;                                                                                     \
            row_moments<T, W>(values, length, eps, centred, mean, scale);                                      \
            W sum = 0;                                                                                         \
            if (centred)                                                                                       \
                sum = row_sum<W>(length, [&](uint64_t i) { return widen(gs[i]) * widen(weight[i]); }) / W(length); \
            W dot = row_sum<W>(length, [&](uint64_t i) {                                                       \
                        return widen(gs[i]) * widen(weight[i]) * (widen(values[i]) - mean) * scale;            \
                    }) / W(length);                                                                            \
            for (uint64_t i = threadIdx.x; i < length; i += THREADS) {                                         \
                W d = widen(gs[i]), normed = (widen(values[i]) - mean) * scale;                                \
                of_weight[i] += d * normed;                                                                    \
                if (centred) of_bias[i] += d;                                                                  \
                of_x[row * length + i] = narrow<T>((d * widen(weight[i]) - sum - normed * dot) * scale);       \
            }                                                                                                  \
        }                                                                                                      \
    }                                                                                                          \
    /* Adds up columns of shares in order. */                                                                  \
    extern "C" __global__ void add_shares_##name(T* out, const Wide<T>* shares, uint64_t chunks,               \
                                                 uint64_t stride, uint64_t offset, uint64_t length) {          \
        FOR_EACH(i, length) {                                                                                  \
            Wide<T> sum = 0;                                                                                   \
            for (uint64_t chunk = 0; chunk < chunks; chunk++) sum += shares[chunk * stride + offset + i];      \
            out[i] = narrow<T>(sum);                                                                           \
        }                                                                                                      \
    }
FOR_FLOATS(NORM)
