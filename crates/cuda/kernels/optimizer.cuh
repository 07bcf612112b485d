// Optimizer updates in one pass over parameter, gradient and states.
#pragma once

#include "packs.cuh"

struct AdamW {
    double beta1, beta2, eps, decay, size, root, scale;
};

// Outputs may be inputs.
template <class T, class G>
__device__ inline void adamw(T* new_parameter, T* new_mean, T* new_square, const T* parameter, const T* mean,
                             const T* square, const G* gradient, uint64_t count, const AdamW& step) {
    typedef Wide<T> W;
    constexpr int COUNT = Together<T, G>::COUNT;
    W scale = W(step.scale), beta1 = W(step.beta1), beta2 = W(step.beta2), rest1 = W(1 - step.beta1);
    W rest2 = W(1 - step.beta2), root = W(step.root), eps = W(step.eps), decay = W(step.decay), size = W(step.size);
    auto update = [&](T& p, T& m, T& s, G of) {
        W g = W(widen(of)) * scale;
        W mean = widen(m) * beta1 + g * rest1;
        W square = widen(s) * beta2 + g * g * rest2;
        W direction = mean / (sqrt(square) * root + eps);
        p = narrow<T>(widen(p) * decay - direction * size);
        m = narrow<T>(mean);
        s = narrow<T>(square);
    };
    bool aligned = is_aligned(new_parameter) && is_aligned(new_mean) && is_aligned(new_square) &&
                   is_aligned(parameter) && is_aligned(mean) && is_aligned(square) && is_aligned(gradient);
    for_packs<COUNT>(
        count, aligned,
        [&](uint64_t i) {
            Packs<T, COUNT> p = load_packs<COUNT>(parameter + i), m = load_packs<COUNT>(mean + i);
            Packs<T, COUNT> s = load_packs<COUNT>(square + i);
            Packs<G, COUNT> g = load_packs<COUNT>(gradient + i);
#pragma unroll
            for (int j = 0; j < COUNT; j++) update(p.values[j], m.values[j], s.values[j], g.values[j]);
            store_packs<COUNT>(new_parameter + i, p);
            store_packs<COUNT>(new_mean + i, m);
            store_packs<COUNT>(new_square + i, s);
        },
        [&](uint64_t i) {
            T p = parameter[i], m = mean[i], s = square[i];
            update(p, m, s, gradient[i]);
            new_parameter[i] = p;
            new_mean[i] = m;
            new_square[i] = s;
        });
}

#define ADAMW(name, T, G)                                                                                      \
    extern "C" __global__ void adamw_##name(T* new_parameter, T* new_mean, T* new_square, const T* parameter,  \
                                            const T* mean, const T* square, const G* gradient,                 \
                                            uint64_t count, AdamW step) {                                      \
        adamw<T, G>(new_parameter, new_mean, new_square, parameter, mean, square, gradient, count, step);      \
    }
ADAMW(f64_f64, double, double)
ADAMW(f32_f32, float, float)
ADAMW(f32_bf16, float, bf16)
ADAMW(f32_f16, float, f16)
ADAMW(bf16_bf16, bf16, bf16)
ADAMW(f16_f16, f16, f16)

struct Sgd {
    double learning_rate, momentum, weight_decay, scale;
};

// `buffer` and `new_buffer` may be null: no momentum.
#define SGD(name, T, G)                                                                                        \
    extern "C" __global__ void sgd_##name(T* new_parameter, T* new_buffer, const T* parameter, const T* buffer, \
                                          const G* gradient, uint64_t count, Sgd step) {                       \
        typedef Wide<T> W;                                                                                     \
        FOR_EACH(i, count) {                                                                                   \
            W p = widen(parameter[i]);                                                                         \
            W direction = W(widen(gradient[i])) * W(step.scale) + p * W(step.weight_decay);                    \
            if (buffer) {                                                                                      \
                direction = widen(buffer[i]) * W(step.momentum) + direction;                                   \
                new_buffer[i] = narrow<T>(direction);                                                          \
            }                                                                                                  \
            new_parameter[i] = narrow<T>(p - direction * W(step.learning_rate));                               \
        }                                                                                                      \
    }
SGD(f64_f64, double, double)
SGD(f32_f32, float, float)
SGD(f32_bf16, float, bf16)
SGD(f32_f16, float, f16)
SGD(bf16_bf16, bf16, bf16)
SGD(f16_f16, f16, f16)
