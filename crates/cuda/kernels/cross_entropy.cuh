// Cross-entropy of rows of logits.
#pragma once

#include "reduce.cuh"

#define CROSS_ENTROPY(name, T)                                                                                 \
    /* The loss of every row; an ignored row has none. */                                                      \
    extern "C" __global__ void row_loss_##name(Wide<T>* losses, const T* logits, const int64_t* targets,       \
                                               uint64_t rows, uint64_t length, int64_t ignored, int ignores,   \
                                               double smoothing) {                                             \
        typedef Wide<T> W;                                                                                     \
        FOR_ROWS(row, rows) {                                                                                  \
            const T* x = logits + row * length;                                                                \
            int64_t target = targets[row];                                                                     \
            if (ignores && target == ignored) {                                                                \
                if (threadIdx.x == 0) losses[row] = 0;                                                         \
                continue;                                                                                      \
            }                                                                                                  \
            W most = row_largest<W>(length, [&](uint64_t i) { return widen(x[i]); });                          \
            W total = most + log(row_sum<W>(length, [&](uint64_t i) { return weight<W>(widen(x[i]) - most); })); \
            W loss = total - widen(x[target]);                                                                 \
            if (smoothing != 0) {                                                                              \
                W mean = row_sum<W>(length, [&](uint64_t i) { return total - widen(x[i]); }) / W(length);      \
                loss = loss * (W(1) - W(smoothing)) + mean * W(smoothing);                                     \
            }                                                                                                  \
            if (threadIdx.x == 0) losses[row] = loss;                                                          \
        }                                                                                                      \
    }                                                                                                          \
    /* `(softmax(x) - target) * share`; `out` may be `logits`. */                                              \
    extern "C" __global__ void cross_entropy_gradient_##name(                                                  \
        T* out, const T* logits, const int64_t* targets, const T* gradient, uint64_t rows, uint64_t length,    \
        int64_t ignored, int ignores, double smoothing, double divisor) {                                      \
        typedef Wide<T> W;                                                                                     \
        W share = widen(*gradient) / W(divisor);                                                               \
        W spread_out = share * W(smoothing) / W(length), of_class = share * (W(1) - W(smoothing));             \
        FOR_ROWS(row, rows) {                                                                                  \
            const T* x = logits + row * length;                                                                \
            T* result = out + row * length;                                                                    \
            int64_t target = targets[row];                                                                     \
            if (ignores && target == ignored) {                                                                \
                for (uint64_t i = threadIdx.x; i < length; i += THREADS) result[i] = narrow<T>(W(0));          \
                continue;                                                                                      \
            }                                                                                                  \
            W most = row_largest<W>(length, [&](uint64_t i) { return widen(x[i]); });                          \
            W scale = share / row_sum<W>(length, [&](uint64_t i) { return weight<W>(widen(x[i]) - most); });   \
            for (uint64_t i = threadIdx.x; i < length; i += THREADS) {                                         \
                W value = weight<W>(widen(x[i]) - most) * scale - spread_out;                                  \
                result[i] = narrow<T>((int64_t)i == target ? value - of_class : value);                        \
            }                                                                                                  \
        }                                                                                                      \
    }
FOR_FLOATS(CROSS_ENTROPY)
