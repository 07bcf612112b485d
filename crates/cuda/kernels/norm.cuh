// RMS norm and layer norm of rows.
#pragma once

#include "row.cuh"

// Rows whose shares of the gradient of a weight are summed together.
#define NORM_ROWS 16

// What is done with rows of a kind: `CENTRED` for layer norm, whose mean is subtracted. A team works on a row, of which
// each thread has `HELD` packs in registers. `ALIGNED` where packs can be loaded at once.
template <class T, bool CENTRED, int TEAM, int HELD, bool ALIGNED> struct Norm {
    typedef Wide<T> W;
    typedef Team<TEAM> Members;
    static constexpr int COUNT = Pack<T>::COUNT;

    template <class Held, class Rest> static __device__ inline void owned(uint32_t length, Held held, Rest rest) {
        for_owned<T, HELD, Members>(length, held, rest);
    }

    // A row in registers.
    struct Row {
        const T* at;
        Pack<T> held[HELD];

        __device__ inline void load(const T* x, uint32_t length) {
            at = x;
            owned(length, [&](int k, uint32_t i) { held[k] = load_pack(x + i, ALIGNED); }, [](uint32_t) {});
        }

        // Adds f(x) over this thread's part of the row.
        template <class F> __device__ inline W part(uint32_t length, F f) const {
            W part = 0;
            owned(
                length,
                [&](int k, uint32_t) {
#pragma unroll
                    for (int j = 0; j < COUNT; j++) part += f(widen(held[k].values[j]));
                },
                [&](uint32_t i) { part += f(widen(at[i])); });
            return part;
        }

        __device__ inline W mean(uint32_t length) const {
            if (!CENTRED) return 0;
            return Members::template combined<Add, W>(part(length, [](W x) { return x; })) / W(length);
        }

        // The sum of squared differences from the mean, of this thread's part.
        __device__ inline W squares(uint32_t length, W mean) const {
            return part(length, [&](W x) { return (x - mean) * (x - mean); });
        }
    };

    static __device__ inline W scale_of(W squares, uint32_t length, double eps) {
        return W(1) / sqrt(squares / W(length) + W(eps));
    }

    static __device__ inline void forward(T* out, const T* x, const T* weight, const T* bias, uint32_t length, double eps) {
        Row row;
        row.load(x, length);
        W mean = row.mean(length);
        W scale = scale_of(Members::template combined<Add, W>(row.squares(length, mean)), length, eps);
        auto value = [&](T x, T w) { return (widen(x) - mean) * scale * widen(w); };
        owned(
            length,
            [&](int k, uint32_t i) {
                Pack<T> result, w = load_pack(weight + i, ALIGNED), b;
                if (CENTRED) b = load_pack(bias + i, ALIGNED);
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
                    W y = value(row.held[k].values[j], w.values[j]);
                    result.values[j] = narrow<T>(CENTRED ? y + widen(b.values[j]) : y);
                }
                store_pack(out + i, result, ALIGNED);
            },
            [&](uint32_t i) {
                W y = value(x[i], weight[i]);
                out[i] = narrow<T>(CENTRED ? y + widen(bias[i]) : y);
            });
    }

    // Writes the gradient of some rows of `x` (`of_x` may be `g`) and their shares of the gradients of weights, then of
    // biases.
    static __device__ inline void backward(T* of_x, W* of_weight, const T* x, const T* weight, const T* g, uint64_t rows,
                                           uint32_t length, double eps) {
        W* of_bias = of_weight + length;
        W weights[HELD][COUNT] = {}, biases[CENTRED ? HELD : 1][COUNT] = {};
        owned(length, [](int, uint32_t) {}, [&](uint32_t i) {
            of_weight[i] = 0;
            if (CENTRED) of_bias[i] = 0;
        });
        for (uint64_t number = 0; number < rows; number++) {
            const T *values = x + number * length, *slopes = g + number * length;
            Row row, of;
            row.load(values, length);
            of.load(slopes, length);
            W mean = row.mean(length), squares = row.squares(length, mean), sum = 0, dot = 0;
            auto add = [&](W x, W d) {
                sum += d;
                dot += d * (x - mean);
            };
            owned(
                length,
                [&](int k, uint32_t i) {
                    Pack<T> w = load_pack(weight + i, ALIGNED);
#pragma unroll
                    for (int j = 0; j < COUNT; j++)
                        add(widen(row.held[k].values[j]), widen(of.held[k].values[j]) * widen(w.values[j]));
                },
                [&](uint32_t i) { add(widen(values[i]), widen(slopes[i]) * widen(weight[i])); });
            W scale = scale_of(Members::template combined<Add, W>(squares), length, eps);
            dot = Members::template combined<Add, W>(dot) * scale / W(length);
            sum = CENTRED ? Members::template combined<Add, W>(sum) / W(length) : W(0);
            T* result = of_x + number * length;
            owned(
                length,
                [&](int k, uint32_t i) {
                    Pack<T> w = load_pack(weight + i, ALIGNED), y;
#pragma unroll
                    for (int j = 0; j < COUNT; j++) {
                        W d = widen(of.held[k].values[j]), normed = (widen(row.held[k].values[j]) - mean) * scale;
                        weights[k][j] += d * normed;
                        if (CENTRED) biases[CENTRED ? k : 0][j] += d;
                        y.values[j] = narrow<T>((d * widen(w.values[j]) - sum - normed * dot) * scale);
                    }
                    store_pack(result + i, y, ALIGNED);
                },
                [&](uint32_t i) {
                    W d = widen(slopes[i]), normed = (widen(values[i]) - mean) * scale;
                    of_weight[i] += d * normed;
                    if (CENTRED) of_bias[i] += d;
                    result[i] = narrow<T>((d * widen(weight[i]) - sum - normed * dot) * scale);
                });
        }
        owned(
            length,
            [&](int k, uint32_t i) {
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
                    of_weight[i + j] = weights[k][j];
                    if (CENTRED) of_bias[i + j] = biases[CENTRED ? k : 0][j];
                }
            },
            [](uint32_t) {});
    }
};

// The team of this thread in the grid.
template <int TEAM> __device__ inline uint64_t team_number() { return (blockIdx.x * (uint64_t)THREADS + threadIdx.x) / TEAM; }

// Whether all rows can be loaded a pack at a time.
template <class T> __device__ inline bool rows_are_aligned(uint32_t length, const void* a, const void* b, const void* c) {
    return length % Pack<T>::COUNT == 0 && is_aligned(a) && is_aligned(b) && is_aligned(c);
}

// A team for each row; for gradients, for each chunk of rows.
#define NORM_OF(kind, CENTRED, name, T, size, TEAM, HELD)                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
    kind##_##name##_##size(T* out, const T* x, const T* weight, const T* bias, uint64_t rows, uint32_t length, \
                           double eps) {                                                                       \
        uint64_t row = team_number<TEAM>(), start = row * length;                                              \
        if (row >= rows) return;                                                                               \
        if (rows_are_aligned<T>(length, out, x, weight) && is_aligned(bias))                                   \
            Norm<T, CENTRED, TEAM, HELD, true>::forward(out + start, x + start, weight, bias, length, eps);    \
        else                                                                                                   \
            Norm<T, CENTRED, TEAM, HELD, false>::forward(out + start, x + start, weight, bias, length, eps);   \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
    kind##_gradient_##name##_##size(T* of_x, Wide<T>* shares, const T* x, const T* weight, const T* g,         \
                                    uint64_t rows, uint32_t length, double eps) {                              \
        uint64_t chunk = team_number<TEAM>(), first = chunk * NORM_ROWS;                                       \
        if (first >= rows) return;                                                                             \
        uint64_t count = rows - first < NORM_ROWS ? rows - first : NORM_ROWS, start = first * length;          \
        shares += chunk * length * (CENTRED ? 2 : 1);                                                          \
        if (rows_are_aligned<T>(length, of_x, x, weight) && is_aligned(g))                                     \
            Norm<T, CENTRED, TEAM, HELD, true>::backward(of_x + start, shares, x + start, weight, g + start,   \
                                                         count, length, eps);                                  \
        else                                                                                                   \
            Norm<T, CENTRED, TEAM, HELD, false>::backward(of_x + start, shares, x + start, weight, g + start,  \
                                                          count, length, eps);                                 \
    }

// Columns that a block adds up, and threads for each.
#define SHARE_COLUMNS 32
#define SHARE_PARTS (THREADS / SHARE_COLUMNS)

// Short rows have a warp each, which needs no barriers; for layer norm that takes too many registers.
#define NORM(name, T)                                                                                          \
    NORM_OF(rms_norm, false, name, T, short, 32, 8)                                                            \
    NORM_OF(rms_norm, false, name, T, medium, THREADS, 2)                                                      \
    NORM_OF(rms_norm, false, name, T, long, THREADS, 4)                                                        \
    NORM_OF(layer_norm, true, name, T, short, THREADS, 1)                                                           \
    NORM_OF(layer_norm, true, name, T, medium, THREADS, 2)                                                     \
    NORM_OF(layer_norm, true, name, T, long, THREADS, 4)                                                       \
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
