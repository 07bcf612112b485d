// Dropout with the random numbers of the CPU: Philox 4x32-10 by the index of an element.
#pragma once

#include "number.cuh"

__device__ inline uint32_t philox_word(uint64_t index, uint64_t seed, uint64_t number) {
    uint64_t block = index / 4;
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = (uint32_t)number, d = (uint32_t)(number >> 32);
    uint32_t k = (uint32_t)seed, l = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t first = (uint64_t)0xD2511F53u * a, second = (uint64_t)0xCD9E8D57u * c;
        uint32_t na = (uint32_t)(second >> 32) ^ b ^ k, nc = (uint32_t)(first >> 32) ^ d ^ l;
        b = (uint32_t)second;
        d = (uint32_t)first;
        a = na;
        c = nc;
        k += 0x9E3779B9u;
        l += 0xBB67AE85u;
    }
    switch (index % 4) {
        case 0: return a;
        case 1: return b;
        case 2: return c;
        default: return d;
    }
}

// The index of an element: `start` plus its offset by the first strides.
#define DROPOUT(name, T)                                                                                       \
    extern "C" __global__ void dropout_##name(T* out, const T* x, uint64_t count, double probability,          \
                                              double factor, uint64_t seed, uint64_t number, uint64_t start,   \
                                              Strides s) {                                                     \
        FOR_EACH(i, count) {                                                                                   \
            uint64_t at[1];                                                                                    \
            offsets<1>(s, i, at);                                                                              \
            float drawn = (float)(philox_word(start + at[0], seed, number) >> 8) / 16777216.0f;                \
            out[i] = narrow<T>((double)drawn >= probability ? widen(x[i]) * Wide<T>(factor) : Wide<T>(0));     \
        }                                                                                                      \
    }
FOR_FLOATS(DROPOUT)
