// Rotary position embedding.
#pragma once

#include "packs.cuh"

// Where a row's angles are; see `RopeKernel` in Rust.
struct Positions {
    uint64_t count, rows_per_position, rows_per_table;
};

template <class T, class I>
__device__ inline void rope(T* out, const T* x, const Wide<T>* cosines, const Wide<T>* sines, uint64_t rows,
                            uint64_t length, Positions positions, int interleaved, int inverse) {
    typedef Wide<T> W;
    constexpr int COUNT = Pack<T>::COUNT;
    I half = (I)(length / 2);
    auto table_of = [&](I row) {
        return row / (I)positions.rows_per_table * (I)positions.count +
               row / (I)positions.rows_per_position % (I)positions.count;
    };
    auto rotate = [&](T& first, T& second, W c, W s) {
        if (inverse) s = -s;
        W a = widen(first), b = widen(second);
        first = narrow<T>(a * c - b * s);
        second = narrow<T>(a * s + b * c);
    };
    if (!interleaved && half % COUNT == 0 && is_aligned(out) && is_aligned(x)) {
        I packs = half / COUNT;
        FOR_EACH(i, rows * packs) {
            I row = (I)i / packs, pair = (I)i % packs * COUNT;
            uint64_t first = (uint64_t)row * length + pair, angles = (uint64_t)table_of(row) * half + pair;
            Pack<T> a = load_pack(x + first, true), b = load_pack(x + first + half, true);
#pragma unroll
            for (int j = 0; j < COUNT; j++) rotate(a.values[j], b.values[j], cosines[angles + j], sines[angles + j]);
            store_pack(out + first, a, true);
            store_pack(out + first + half, b, true);
        }
        return;
    }
    FOR_EACH(i, rows * half) {
        I row = (I)i / half, pair = (I)i % half;
        uint64_t angle = (uint64_t)table_of(row) * half + pair;
        uint64_t first = (uint64_t)row * length + (interleaved ? 2 * pair : pair);
        uint64_t second = interleaved ? first + 1 : first + half;
        T a = x[first], b = x[second];
        rotate(a, b, cosines[angle], sines[angle]);
        out[first] = a;
        out[second] = b;
    }
}

#define ROPE(name, T)                                                                                          \
    extern "C" __global__ void rope_##name(T* out, const T* x, const Wide<T>* cosines, const Wide<T>* sines,   \
                                           uint64_t rows, uint64_t length, uint64_t positions,                 \
                                           uint64_t rows_per_position, uint64_t rows_per_table,                \
                                           int interleaved, int inverse) {                                     \
        Positions all = {positions, rows_per_position, rows_per_table};                                        \
        if (rows * length < (1ull << 31) && rows_per_table < (1ull << 31) && rows_per_position < (1ull << 31)) \
            rope<T, uint32_t>(out, x, cosines, sines, rows, length, all, interleaved, inverse);                \
        else                                                                                                   \
            rope<T, uint64_t>(out, x, cosines, sines, rows, length, all, interleaved, inverse);                \
    }
FOR_FLOATS(ROPE)
