// RMS norm and layer norm of rows.
#pragma once

#include "row.cuh"

// Rows whose shares of the gradient of a weight are summed together.
#define NORM_ROWS 16

// A row in registers, its mean (0 for RMS norm) and `1 / sqrt(mean square + eps)`.
template <class T, int HELD> struct NormRow {
    typedef Wide<T> W;
    const T* at;
    bool aligned;
    Pack<T> held[HELD];
    W mean, scale;

    __device__ inline void load(const T* x, uint64_t length) {
        at = x;
        aligned = is_aligned(x);
        for_owned<T, HELD>(length, [&](int k, uint64_t i) { held[k] = load_pack(x + i, aligned); }, [](uint64_t) {});
    }

    // The sum of f(i, x) over the row.
    template <class F> __device__ inline W sum(uint64_t length, F f) const {
        W part = 0;
        for_owned<T, HELD>(
            length,
            [&](int k, uint64_t i) {
#pragma unroll
                for (int j = 0; j < Pack<T>::COUNT; j++) part += f(i + j, widen(held[k].values[j]));
            },
            [&](uint64_t i) { part += f(i, widen(at[i])); });
        return combine<Add, W>(part);
    }

    __device__ inline void measure(uint64_t length, double eps, int centred) {
        mean = centred ? sum(length, [](uint64_t, W x) { return x; }) / W(length) : W(0);
        W m = mean;
        W squares = sum(length, [&](uint64_t, W x) { return (x - m) * (x - m); });
        scale = W(1) / sqrt(squares / W(length) + W(eps));
    }
};

// `bias` may be null.
template <class T, int HELD>
__device__ inline void norm_row(T* out, const T* x, const T* weight, const T* bias, uint64_t length, double eps,
                                int centred) {
    typedef Wide<T> W;
    NormRow<T, HELD> row;
    row.load(x, length);
    row.measure(length, eps, centred);
    bool aligned = is_aligned(out), weights_aligned = is_aligned(weight), biases_aligned = is_aligned(bias);
    auto value = [&](T x, T w) { return (widen(x) - row.mean) * row.scale * widen(w); };
    for_owned<T, HELD>(
        length,
        [&](int k, uint64_t i) {
            Pack<T> result, w = load_pack(weight + i, weights_aligned), b;
            if (bias) b = load_pack(bias + i, biases_aligned);
#pragma unroll
            for (int j = 0; j < Pack<T>::COUNT; j++) {
                W y = value(row.held[k].values[j], w.values[j]);
                result.values[j] = narrow<T>(bias ? y + widen(b.values[j]) : y);
            }
            store_pack(out + i, result, aligned);
        },
        [&](uint64_t i) {
            W y = value(x[i], weight[i]);
            out[i] = narrow<T>(bias ? y + widen(bias[i]) : y);
        });
}

// A block for each chunk of rows. Writes the gradient of `x` (`of_x` may be `g`) and the chunk's shares of the
// gradients of weights, then of biases if `centred`.
template <class T, int HELD>
__device__ inline void norm_gradient_rows(T* of_x, Wide<T>* shares, const T* x, const T* weight, const T* g,
                                          uint64_t rows, uint64_t length, double eps, int centred) {
    typedef Wide<T> W;
    constexpr int COUNT = Pack<T>::COUNT;
    uint64_t first = (uint64_t)blockIdx.x * NORM_ROWS;
    uint64_t last = first + NORM_ROWS < rows ? first + NORM_ROWS : rows;
    W* of_weight = shares + (uint64_t)blockIdx.x * length * (centred ? 2 : 1);
    W* of_bias = of_weight + length;
    W weights[HELD][COUNT] = {}, biases[HELD][COUNT] = {};
    for_owned<T, HELD>(length, [](int, uint64_t) {}, [&](uint64_t i) {
        of_weight[i] = 0;
        if (centred) of_bias[i] = 0;
    });
    bool weights_aligned = is_aligned(weight);
    for (uint64_t row = first; row < last; row++) {
        const T *values = x + row * length, *gs = g + row * length;
        NormRow<T, HELD> of;
        Pack<T> slopes[HELD];
        bool aligned = is_aligned(gs);
        of.load(values, length);
        for_owned<T, HELD>(length, [&](int k, uint64_t i) { slopes[k] = load_pack(gs + i, aligned); }, [](uint64_t) {});
        of.measure(length, eps, centred);
        W sum = 0, dot = 0;
        for_owned<T, HELD>(
            length,
            [&](int k, uint64_t i) {
                Pack<T> w = load_pack(weight + i, weights_aligned);
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
                    W d = widen(slopes[k].values[j]) * widen(w.values[j]);
                    sum += d;
                    dot += d * (widen(of.held[k].values[j]) - of.mean) * of.scale;
                }
            },
            [&](uint64_t i) {
                W d = widen(gs[i]) * widen(weight[i]);
                sum += d;
                dot += d * (widen(values[i]) - of.mean) * of.scale;
            });
        sum = centred ? combine<Add, W>(sum) / W(length) : W(0);
        dot = combine<Add, W>(dot) / W(length);
        T* result = of_x + row * length;
        bool result_aligned = is_aligned(result);
        for_owned<T, HELD>(
            length,
            [&](int k, uint64_t i) {
                Pack<T> w = load_pack(weight + i, weights_aligned), y;
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
                    W d = widen(slopes[k].values[j]), normed = (widen(of.held[k].values[j]) - of.mean) * of.scale;
                    weights[k][j] += d * normed;
                    if (centred) biases[k][j] += d;
                    y.values[j] = narrow<T>((d * widen(w.values[j]) - sum - normed * dot) * of.scale);
                }
                store_pack(result + i, y, result_aligned);
            },
            [&](uint64_t i) {
                W d = widen(gs[i]), normed = (widen(values[i]) - of.mean) * of.scale;
                of_weight[i] += d * normed;
                if (centred) of_bias[i] += d;
                result[i] = narrow<T>((d * widen(weight[i]) - sum - normed * dot) * of.scale);
            });
    }
    for_owned<T, HELD>(
        length,
        [&](int k, uint64_t i) {
#pragma unroll
            for (int j = 0; j < COUNT; j++) {
                of_weight[i + j] = weights[k][j];
                if (centred) of_bias[i + j] = biases[k][j];
            }
        },
        [](uint64_t) {});
}

// Columns that a block adds up, and threads for each.
#define SHARE_COLUMNS 32
#define SHARE_PARTS (THREADS / SHARE_COLUMNS)

// `HELD` packs of each thread are in registers: as many as a row has, up to 4.
#define NORM_HELD(name, T, HELD)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
    norm_##name##_##HELD(T* out, const T* x, const T* weight, const T* bias, uint64_t rows, uint64_t length,   \
                         double eps, int centred) {                                                            \
        FOR_ROWS(row, rows)                                                                                    \
        norm_row<T, HELD>(out + row * length, x + row * length, weight, bias, length, eps, centred);           \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
    norm_gradient_##name##_##HELD(T* of_x, Wide<T>* shares, const T* x, const T* weight, const T* g,           \
                                  uint64_t rows, uint64_t length, double eps, int centred) {                   \
        norm_gradient_rows<T, HELD>(of_x, shares, x, weight, g, rows, length, eps, centred);                   \
    }

#define NORM(name, T)                                                                                          \
    NORM_HELD(name, T, 1)                                                                                      \
    NORM_HELD(name, T, 2)                                                                                      \
    NORM_HELD(name, T, 4)                                                                                      \
    /* Adds up columns of shares: chunks in turn by several threads, then their sums in order. */              \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
    add_shares_##name(T* out, const Wide<T>* shares, uint64_t chunks, uint64_t stride, uint64_t offset,        \
                      uint64_t length) {                                                                       \
        __shared__ Wide<T> parts[SHARE_PARTS][SHARE_COLUMNS];                                                  \
        uint64_t column = (uint64_t)blockIdx.x * SHARE_COLUMNS + threadIdx.x % SHARE_COLUMNS;                  \
        Wide<T> sum = 0;                                                                                       \
        if (column < length)                                                                                   \
            for (uint64_t chunk = threadIdx.x / SHARE_COLUMNS; chunk < chunks; chunk += SHARE_PARTS)           \
                sum += shares[chunk * stride + offset + column];                                               \
        parts[threadIdx.x / SHARE_COLUMNS][threadIdx.x % SHARE_COLUMNS] = sum;                                 \
        __syncthreads();                                                                                       \
        if (threadIdx.x >= SHARE_COLUMNS || column >= length) return;                                          \
        sum = 0;                                                                                               \
        for (int part = 0; part < SHARE_PARTS; part++) sum += parts[part][threadIdx.x];                        \
        out[column] = narrow<T>(sum);                                                                          \
    }
FOR_FLOATS(NORM)
