// Rotary position embedding.
#pragma once

#include "number.cuh"

// A pair of elements for each step of the loop. Rows are `length` long; see `RopeKernel` in Rust for positions.
#define ROPE(name, T)                                                                                          \
    extern "C" __global__ void rope_##name(T* out, const T* x, const Wide<T>* cosines, const Wide<T>* sines,   \
                                           uint64_t rows, uint64_t length, uint64_t positions,                 \
                                           uint64_t rows_per_position, uint64_t rows_per_table,                \
                                           int interleaved, int inverse) {                                     \
        typedef Wide<T> W;                                                                                     \
        uint64_t half = length / 2;                                                                            \
        FOR_EACH(i, rows * half) {                                                                             \
            uint64_t row = i / half, pair = i % half;                                                          \
            uint64_t position = row / rows_per_table * positions + row / rows_per_position % positions;        \
            W c = cosines[position * half + pair], s = sines[position * half + pair];                          \
            if (inverse) s = -s;                                                                               \
            uint64_t first = row * length + (interleaved ? 2 * pair : pair);                                   \
            uint64_t second = interleaved ? first + 1 : first + half;                                          \
            W a = widen(x[first]), b = widen(x[second]);                                                       \
            out[first] = narrow<T>(a * c - b * s);                                                             \
            out[second] = narrow<T>(a * s + b * c);                                                            \
        }                                                                                                      \
    }
FOR_FLOATS(ROPE)
