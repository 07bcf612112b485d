// Optimizer updates in one pass over parameter, gradient and states.
#pragma once

#include "number.cuh"

struct AdamW {
    double beta1, beta2, eps, decay, size, root, scale;
};

// Outputs may be inputs.
#define ADAMW(name, T, G)                                                                                      \
    extern "C" __global__ void adamw_##name(T* new_parameter, T* new_mean, T* new_square, const T* parameter,  \
                                            const T* mean, const T* square, const G* gradient,                 \
                                            uint64_t count, AdamW step) {                                      \
        typedef Wide<T> W;                                                                                     \
        FOR_EACH(i, count) {                                                                                   \
            W g = W(widen(gradient[i])) * W(step.scale);                                                       \
            W m = widen(mean[i]) * W(step.beta1) + g * W(1 - step.beta1);                                      \
            W s = widen(square[i]) * W(step.beta2) + g * g * W(1 - step.beta2);                                \
            W direction = m / (sqrt(s) * W(step.root) + W(step.eps));                                          \
            new_parameter[i] = narrow<T>(widen(parameter[i]) * W(step.decay) - direction * W(step.size));      \
            new_mean[i] = narrow<T>(m);                                                                        \
            new_square[i] = narrow<T>(s);                                                                      \
        }                                                                                                      \
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
