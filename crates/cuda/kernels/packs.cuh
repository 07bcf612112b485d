// Elements sixteen bytes at a time.
#pragma once

#include "number.cuh"

// Sixteen bytes of elements.
template <class T> struct Pack {
    static constexpr int COUNT = 16 / sizeof(T);
    T values[COUNT];
};

__device__ inline bool is_aligned(const void* at) { return (uint64_t)at % 16 == 0; }

// `at` is a multiple of 16 bytes, or elements are read one by one.
template <class T> __device__ inline Pack<T> load_pack(const T* at, bool aligned) {
    Pack<T> pack;
    if (aligned) {
        uint4 bytes = *(const uint4*)at;
        memcpy(&pack, &bytes, 16);
    } else {
#pragma unroll
        for (int i = 0; i < Pack<T>::COUNT; i++) pack.values[i] = at[i];
    }
    return pack;
}

template <class T> __device__ inline void store_pack(T* at, const Pack<T>& pack, bool aligned) {
    if (aligned) {
        uint4 bytes;
        memcpy(&bytes, &pack, 16);
        *(uint4*)at = bytes;
    } else {
#pragma unroll
        for (int i = 0; i < Pack<T>::COUNT; i++) at[i] = pack.values[i];
    }
}

// Elements of all operands at a time, so that the widest has sixteen bytes or more.
template <class A, class B> struct Together {
    static constexpr int COUNT = sizeof(A) < sizeof(B) ? 16 / sizeof(A) : 16 / sizeof(B);
};

// `COUNT` elements, a multiple of a pack.
template <class T, int COUNT> struct Packs {
    T values[COUNT];
};
template <int COUNT, class T> __device__ inline Packs<T, COUNT> load_packs(const T* at) {
    Packs<T, COUNT> all;
#pragma unroll
    for (int i = 0; i < COUNT; i += Pack<T>::COUNT) {
        uint4 bytes = *(const uint4*)(at + i);
        memcpy(all.values + i, &bytes, 16);
    }
    return all;
}
template <int COUNT, class T> __device__ inline void store_packs(T* at, const Packs<T, COUNT>& all) {
#pragma unroll
    for (int i = 0; i < COUNT; i += Pack<T>::COUNT) {
        uint4 bytes;
        memcpy(&bytes, all.values + i, 16);
        *(uint4*)(at + i) = bytes;
    }
}

// Calls `many(i)` for `COUNT` elements from `i` on where all addresses are aligned, and `one(i)` for the rest.
template <int COUNT, class Many, class One>
__device__ inline void for_packs(uint64_t count, bool aligned, Many many, One one) {
    uint64_t packs = aligned ? count / COUNT : 0;
    FOR_EACH(pack, packs) many(pack * COUNT);
    FOR_EACH(i, count - packs * COUNT) one(packs * COUNT + i);
}
