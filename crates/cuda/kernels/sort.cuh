// Cumulative sums and a stable merge sort of rows.
#pragma once

#include "copy.cuh"

#define CUMSUM(name, T)                                                                                        \
    extern "C" __global__ void cumsum_##name(T* out, const T* x, uint64_t rows, uint64_t length, int reverse) { \
        FOR_EACH(row, rows) {                                                                                  \
            Wide<T> sum = 0;                                                                                   \
            for (uint64_t step = 0; step < length; step++) {                                                   \
                uint64_t i = row * length + (reverse ? length - 1 - step : step);                              \
                sum += widen(x[i]);                                                                            \
                out[i] = narrow<T>(sum);                                                                       \
            }                                                                                                  \
        }                                                                                                      \
    }
FOR_FLOATS(CUMSUM)

extern "C" __global__ void number_rows(int64_t* out, uint64_t rows, uint64_t length) {
    FOR_EACH(i, rows * length) out[i] = (int64_t)(i % length);
}

// Whether a is before b. NaN counts as the largest.
template <class T> __device__ inline bool before(T a, T b, int descending) {
    bool a_nan = a != a, b_nan = b != b;
    bool less = b_nan ? !a_nan : (a_nan ? false : a < b);
    bool more = a_nan ? !b_nan : (b_nan ? false : b < a);
    return descending ? more : less;
}

// One pass of a merge sort of the indices of every row: neighbouring sorted runs of `width` become one. An element's
// place is its place in its own run and the number of elements of the other run that come before it: for elements of
// the first run those strictly before, for elements of the second also equal ones, so that the sort is stable.
#define MERGE(name, T)                                                                                         \
    extern "C" __global__ void merge_##name(int64_t* out, const int64_t* in, const T* x, uint64_t rows,        \
                                            uint64_t length, uint64_t width, int descending) {                 \
        FOR_EACH(i, rows * length) {                                                                           \
            uint64_t row = i / length, at = i % length, pair = at / (2 * width) * (2 * width);                 \
            uint64_t middle = pair + width < length ? pair + width : length;                                   \
            uint64_t end = pair + 2 * width < length ? pair + 2 * width : length;                              \
            const T* values = x + row * length;                                                                \
            const int64_t* indices = in + row * length;                                                        \
            auto value = comparable(values[indices[at]]);                                                      \
            bool second = at >= middle;                                                                        \
            uint64_t low = second ? pair : middle, high = second ? middle : end, from = low;                   \
            while (low < high) {                                                                               \
                uint64_t probe = (low + high) / 2;                                                             \
                auto other = comparable(values[indices[probe]]);                                               \
                bool passes = second ? !before(value, other, descending) : before(other, value, descending);   \
                if (passes) low = probe + 1;                                                                   \
                else high = probe;                                                                             \
            }                                                                                                  \
            uint64_t own = second ? at - middle : at - pair;                                                   \
            out[row * length + pair + own + (low - from)] = indices[at];                                       \
        }                                                                                                      \
    }
FOR_ELEMENTS(MERGE)

// Elements of rows at indices within the row.
#define TAKE_ROWS(name, U)                                                                                     \
    extern "C" __global__ void take_rows_##name(U* out, const U* x, const int64_t* indices, uint64_t rows,     \
                                                uint64_t length) {                                             \
        FOR_EACH(i, rows * length) out[i] = x[i / length * length + (uint64_t)indices[i]];                     \
    }
FOR_SIZES(TAKE_ROWS)
