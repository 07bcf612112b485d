// Cross-entropy of rows of logits.
#pragma once

#include "reduce.cuh"

// The largest of a row and the sum of `exp(x - largest)`, in one pass.
template <class T> __device__ inline void row_weights(const T* x, uint64_t length, Wide<T>& largest, Wide<T>& total) {
    typedef Wide<T> W;
    constexpr int COUNT = Pack<T>::COUNT;
    bool aligned = is_aligned(x);
    W most = -infinity<W>(), sum = 0;
    auto add = [&](W value) {
        if (value > most) {
            sum = sum * exp(most - value) + W(1);
            most = value;
        } else {
            // Two equal infinities would differ by NaN.
            sum += value == most ? W(1) : exp(value - most);
        }
    };
    for (uint64_t pack = threadIdx.x; pack < length / COUNT; pack += THREADS) {
        Pack<T> values = load_pack(x + pack * COUNT, aligned);
        W here = most;
#pragma unroll
        for (int j = 0; j < COUNT; j++) here = widen(values.values[j]) > here ? widen(values.values[j]) : here;
        if (here == -infinity<W>()) {
            // A NaN is passed over by the comparison.
            for (int j = 0; j < COUNT; j++)
                if (widen(values.values[j]) != widen(values.values[j])) sum = not_a_number<W>();
            continue;
        }
        sum *= here == most ? W(1) : exp(most - here);
        most = here;
#pragma unroll
        for (int j = 0; j < COUNT; j++) sum += exp(widen(values.values[j]) - most);
    }
    uint64_t last = length / COUNT * COUNT + threadIdx.x;
    if (last < length) add(widen(x[last]));
    largest = combine<Largest, W>(most);
    total = combine<Add, W>(most == largest ? sum : sum * exp(most - largest));
}

// Losses and gradients of rows whose logits are not needed afterwards: `(softmax(x) - target) * share` takes their
// place.
template <class T>
__device__ inline void loss_and_gradient_row(T* x, Wide<T>* loss, int64_t target, uint64_t length, double smoothing,
                                             double share_) {
    typedef Wide<T> W;
    constexpr int COUNT = Pack<T>::COUNT;
    W most, total, share = W(share_), spread = W(smoothing) / W(length), of_class = W(1) - W(smoothing);
    row_weights<T>(x, length, most, total);
    W log_sum = most + log(total), of_target = log_sum - widen(x[target]);
    if (smoothing != 0) {
        W mean = row_sum<W>(length, [&](uint64_t i) { return log_sum - widen(x[i]); }) / W(length);
        of_target = of_target * of_class + mean * W(smoothing);
    }
    if (threadIdx.x == 0) *loss = of_target;
    // All threads have read the target's logit.
    __syncthreads();
    W scale = W(1) / total;
    bool aligned = is_aligned(x);
    auto slope = [&](uint64_t i, W value) {
        W weight = exp(value - most) * scale - spread;
        return narrow<T>(share * ((int64_t)i == target ? weight - of_class : weight));
    };
    for (uint64_t pack = threadIdx.x; pack < length / COUNT; pack += THREADS) {
        Pack<T> values = load_pack(x + pack * COUNT, aligned);
#pragma unroll
        for (int j = 0; j < COUNT; j++) values.values[j] = slope(pack * COUNT + j, widen(values.values[j]));
        store_pack(x + pack * COUNT, values, aligned);
    }
    uint64_t last = length / COUNT * COUNT + threadIdx.x;
    if (last < length) x[last] = slope(last, widen(x[last]));
}

#define LOSS_AND_GRADIENT(name, T)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
    loss_and_gradient_##name(T* logits, Wide<T>* losses, const int64_t* targets, uint64_t rows,                \
                             uint64_t length, int64_t ignored, int ignores, double smoothing, double share) {  \
        FOR_ROWS(row, rows) {                                                                                  \
            T* x = logits + row * length;                                                                      \
            if (ignores && targets[row] == ignored) {                                                          \
                for (uint64_t i = threadIdx.x; i < length; i += THREADS) x[i] = narrow<T>(Wide<T>(0));         \
                if (threadIdx.x == 0) losses[row] = 0;                                                         \
                continue;                                                                                      \
            }                                                                                                  \
            loss_and_gradient_row<T>(x, losses + row, targets[row], length, smoothing, share);                 \
        }                                                                                                      \
    }
FOR_FLOATS(LOSS_AND_GRADIENT)

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
