// Element-wise kernels.
#pragma once

#include "packs.cuh"

template <class W> __device__ inline W sigmoid(W x) { return W(1) / (W(1) + exp(-x)); }

// The same for gates, in as few instructions as the precision of the elements asks for.
template <class T> __device__ inline Wide<T> gate_sigmoid(Wide<T> x) {
    if constexpr (sizeof(T) == 2) return __fdividef(1.0f, 1.0f + __expf(-x));
    else return sigmoid(x);
}

template <class W> __device__ inline W gelu(W x) {
    return W(0.5) * x * (W(1) + erf(x * W(0.70710678118654752440)));
}

template <class W> __device__ inline W gelu_slope(W x) {
    return W(0.5) * (W(1) + erf(x * W(0.70710678118654752440))) +
           x * W(0.3989422804014327) * exp(W(-0.5) * x * x);
}

template <class W> __device__ inline W gelu_inner(W x) {
    return W(0.7978845608028654) * (x + W(0.044715) * x * x * x);
}

template <class W> __device__ inline W gelu_tanh(W x) { return W(0.5) * x * (W(1) + tanh(gelu_inner(x))); }

template <class W> __device__ inline W gelu_tanh_slope(W x) {
    W t = tanh(gelu_inner(x));
    W slope = W(0.7978845608028654) * (W(1) + W(3) * W(0.044715) * x * x);
    return W(0.5) * (W(1) + t) + W(0.5) * x * (W(1) - t * t) * slope;
}

// The numbers of operations are those of `Unary` in Rust.
template <class W> __device__ inline W unary_value(int op, W x, W p, W q) {
    switch (op) {
        case 0: return -x;
        case 1: return exp(x);
        case 2: return log(x);
        case 3: return sqrt(x);
        case 4: return W(1) / sqrt(x);
        case 5: return fabs(x);
        case 6: return x <= W(0) ? W(0) : x;  // A NaN stays a NaN.
        case 7: return sigmoid(x);
        case 8: return tanh(x);
        case 9: return x * sigmoid(x);
        case 10: return gelu(x);
        case 11: return gelu_tanh(x);
        case 12: return cos(x);
        case 13: return sin(x);
        case 14: return pow(x, p);
        default: {  // clamp; a NaN stays a NaN
            W y = x < p ? p : x;
            return y > q ? q : y;
        }
    }
}

template <class W> __device__ inline W unary_slope(int op, W x, W p, W q) {
    switch (op) {
        case 0: return W(-1);
        case 1: return exp(x);
        case 2: return W(1) / x;
        case 3: return W(0.5) / sqrt(x);
        case 4: return W(-0.5) / (x * sqrt(x));
        case 5: return x > W(0) ? W(1) : (x < W(0) ? W(-1) : W(0));
        case 6: return x > W(0) ? W(1) : W(0);
        case 7: { W s = sigmoid(x); return s * (W(1) - s); }
        case 8: { W t = tanh(x); return W(1) - t * t; }
        case 9: { W s = sigmoid(x); return s * (W(1) + x * (W(1) - s)); }
        case 10: return gelu_slope(x);
        case 11: return gelu_tanh_slope(x);
        case 12: return -sin(x);
        case 13: return cos(x);
        case 14: return p == W(0) ? W(0) : p * pow(x, q);  // q is p - 1
        default: return (x < p || x > q) ? W(0) : W(1);
    }
}

template <class T> __device__ inline Wide<T> binary_value(int op, Wide<T> a, Wide<T> b) {
    switch (op) {
        case 0: return a + b;
        case 1: return a - b;
        case 2: return a * b;
        case 3: return a / b;
        case 4: return pow(a, b);
        case 5: return a * gate_sigmoid<T>(a) * b;
        case 6: return gelu(a) * b;
        default: return gelu_tanh(a) * b;
    }
}

#define UNARY(name, T)                                                                                        \
    extern "C" __global__ void unary_##name(T* out, const T* x, uint64_t count, int op, double p, double q) { \
        FOR_EACH(i, count) out[i] = narrow<T>(unary_value<Wide<T>>(op, widen(x[i]), Wide<T>(p), Wide<T>(q))); \
    }                                                                                                         \
    extern "C" __global__ void unary_gradient_##name(T* out, const T* x, const T* g, uint64_t count, int op,  \
                                                     double p, double q) {                                    \
        FOR_EACH(i, count)                                                                                    \
        out[i] = narrow<T>(widen(g[i]) * unary_slope<Wide<T>>(op, widen(x[i]), Wide<T>(p), Wide<T>(q)));      \
    }
FOR_FLOATS(UNARY)

// Both operands contiguous.
template <class T> __device__ inline void binary_contiguous(T* out, const T* a, const T* b, uint64_t count, int op) {
    constexpr int COUNT = Pack<T>::COUNT;
    auto value = [&](T x, T y) { return narrow<T>(binary_value<T>(op, widen(x), widen(y))); };
    for_packs<COUNT>(
        count, is_aligned(out) && is_aligned(a) && is_aligned(b),
        [&](uint64_t i) {
            Pack<T> x = load_pack(a + i, true), y = load_pack(b + i, true);
#pragma unroll
            for (int j = 0; j < COUNT; j++) x.values[j] = value(x.values[j], y.values[j]);
            store_pack(out + i, x, true);
        },
        [&](uint64_t i) { out[i] = value(a[i], b[i]); });
}

#define BINARY(name, T)                                                                                   \
    extern "C" __global__ void binary_##name(T* out, const T* a, const T* b, uint64_t count, Strides s,   \
                                             int op) {                                                    \
        if (s.ndim == 1 && s.strides[0][0] == 1 && s.strides[1][0] == 1)                                  \
            return binary_contiguous<T>(out, a, b, count, op);                                            \
        FOR_EACH(i, count) {                                                                              \
            uint64_t at[2];                                                                               \
            offsets<2>(s, i, at);                                                                         \
            out[i] = narrow<T>(binary_value<T>(op, widen(a[at[0]]), widen(b[at[1]])));              \
        }                                                                                                 \
    }                                                                                                     \
    extern "C" __global__ void add_into_##name(T* out, const T* into, const T* x, uint64_t count) {       \
        binary_contiguous<T>(out, into, x, count, 0);                                                     \
    }
FOR_FLOATS(BINARY)

// The gradients of both operands of a gate. `of_a` may be `g`, and `of_b` may be `b`.
template <class T>
__device__ inline void gate_gradient(T* of_a, T* of_b, const T* a, const T* b, const T* g, uint64_t count, int gate) {
    typedef Wide<T> W;
    constexpr int COUNT = Pack<T>::COUNT;
    auto both = [&](T left, T right, T gradient, T& of_left, T& of_right) {
        W x = widen(left), y = widen(right), slope, value, d = widen(gradient);
        if (gate == 0) {
            W s = gate_sigmoid<T>(x);
            value = x * s;
            slope = s * (W(1) + x * (W(1) - s));
        } else if (gate == 1) {
            value = gelu(x);
            slope = gelu_slope(x);
        } else {
            value = gelu_tanh(x);
            slope = gelu_tanh_slope(x);
        }
        of_left = narrow<T>(d * y * slope);
        of_right = narrow<T>(d * value);
    };
    bool aligned = is_aligned(of_a) && is_aligned(of_b) && is_aligned(a) && is_aligned(b) && is_aligned(g);
    for_packs<COUNT>(
        count, aligned,
        [&](uint64_t i) {
            Pack<T> x = load_pack(a + i, true), y = load_pack(b + i, true), d = load_pack(g + i, true), left, right;
#pragma unroll
            for (int j = 0; j < COUNT; j++) both(x.values[j], y.values[j], d.values[j], left.values[j], right.values[j]);
            store_pack(of_a + i, left, true);
            store_pack(of_b + i, right, true);
        },
        [&](uint64_t i) {
            T left, right;
            both(a[i], b[i], g[i], left, right);
            of_a[i] = left;
            of_b[i] = right;
        });
}

#define GATE(name, T)                                                                                          \
    extern "C" __global__ void gate_gradient_##name(T* of_a, T* of_b, const T* a, const T* b, const T* g,      \
                                                    uint64_t count, int gate) {                                \
        gate_gradient<T>(of_a, of_b, a, b, g, count, gate);                                                    \
    }
FOR_FLOATS(GATE)

// Sums of halves, kept in f32.
#define ADD_WIDE(name, T)                                                                                      \
    extern "C" __global__ void add_wide_##name(float* out, const T* a, const T* b, uint64_t count) {           \
        constexpr int COUNT = Pack<T>::COUNT;                                                                  \
        for_packs<COUNT>(                                                                                      \
            count, is_aligned(out) && is_aligned(a) && is_aligned(b),                                          \
            [&](uint64_t i) {                                                                                  \
                Pack<T> x = load_pack(a + i, true), y = load_pack(b + i, true);                                \
                Packs<float, COUNT> sum;                                                                       \
                for (int j = 0; j < COUNT; j++) sum.values[j] = widen(x.values[j]) + widen(y.values[j]);       \
                store_packs<COUNT>(out + i, sum);                                                              \
            },                                                                                                 \
            [&](uint64_t i) { out[i] = widen(a[i]) + widen(b[i]); });                                          \
    }
ADD_WIDE(bf16, bf16)
ADD_WIDE(f16, f16)
