// Indexing. Indices are checked before a launch.
#pragma once

#include "number.cuh"

#define INDEX(name, U)                                                                                         \
    /* `[outer, rows, inner]` at indices along the rows. */                                                    \
    extern "C" __global__ void index_select_##name(U* out, const U* x, const int64_t* indices, uint64_t outer, \
                                                   uint64_t rows, uint64_t inner, uint64_t count) {            \
        FOR_EACH(i, outer * count * inner) {                                                                   \
            uint64_t column = i % inner, at = i / inner % count, block = i / inner / count;                    \
            out[i] = x[(block * rows + (uint64_t)indices[at]) * inner + column];                               \
        }                                                                                                      \
    }                                                                                                          \
    /* Elements at offsets. */                                                                                 \
    extern "C" __global__ void take_##name(U* out, const U* x, const uint64_t* places, uint64_t count) {       \
        FOR_EACH(i, count) out[i] = x[places[i]];                                                              \
    }                                                                                                          \
    /* Writes elements at offsets, each of which is there once. */                                             \
    extern "C" __global__ void put_##name(U* out, const U* source, const uint64_t* places,                     \
                                          const uint64_t* sources, uint64_t count) {                           \
        FOR_EACH(i, count) out[places[i]] = source[sources[i]];                                                \
    }
FOR_SIZES(INDEX)

// The same in units of sixteen bytes.
extern "C" __global__ void index_select_b16(uint4* out, const uint4* x, const int64_t* indices, uint64_t outer,
                                            uint64_t rows, uint64_t inner, uint64_t count) {
    FOR_EACH(i, outer * count * inner) {
        uint64_t column = i % inner, at = i / inner % count, block = i / inner / count;
        out[i] = x[(block * rows + (uint64_t)indices[at]) * inner + column];
    }
}

// Sums in order: run r adds the slices `order[starts[r]] ... order[starts[r + 1] - 1]` to row `targets[r]` of `base`
// (or to zero, if that is null).
#define INDEX_ADD(name, T)                                                                                     \
    extern "C" __global__ void add_runs_##name(T* out, const T* base, const T* x, const uint64_t* targets,     \
                                               const uint64_t* starts, const uint64_t* order, uint64_t runs,   \
                                               uint64_t inner) {                                               \
        FOR_EACH(i, runs * inner) {                                                                            \
            uint64_t run = i / inner, column = i % inner, place = targets[run] * inner + column;               \
            Wide<T> sum = base ? widen(base[place]) : Wide<T>(0);                                              \
            for (uint64_t at = starts[run]; at < starts[run + 1]; at++) sum += widen(x[order[at] * inner + column]); \
            out[place] = narrow<T>(sum);                                                                       \
        }                                                                                                      \
    }
FOR_FLOATS(INDEX_ADD)
