// Copying, casting, comparing and selecting.
#pragma once

#include "packs.cuh"

// Rows of sixteen-byte units. Strides count units.
extern "C" __global__ void copy_b16(uint4* out, const uint4* x, uint64_t count, Strides s) {
    FOR_EACH(i, count) {
        uint64_t at[2];
        offsets<2>(s, i, at);
        out[at[0]] = x[at[1]];
    }
}

#define COPY(name, U)                                                                                          \
    extern "C" __global__ void fill_##name(U* out, uint64_t count, uint64_t bits) {                            \
        FOR_EACH(i, count) out[i] = (U)bits;                                                                   \
    }                                                                                                          \
    extern "C" __global__ void copy_##name(U* out, const U* x, uint64_t count, Strides s) {                    \
        FOR_EACH(i, count) {                                                                                   \
            uint64_t at[2];                                                                                    \
            offsets<2>(s, i, at);                                                                              \
            out[at[0]] = x[at[1]];                                                                             \
        }                                                                                                      \
    }                                                                                                          \
    extern "C" __global__ void select_##name(U* out, const uint8_t* condition, const U* a, const U* b,         \
                                             uint64_t count, Strides s) {                                      \
        FOR_EACH(i, count) {                                                                                   \
            uint64_t at[3];                                                                                    \
            offsets<3>(s, i, at);                                                                              \
            out[i] = condition[at[0]] ? a[at[1]] : b[at[2]];                                                   \
        }                                                                                                      \
    }
FOR_SIZES(COPY)

// The numbers of comparisons are those of `Comparison` in Rust. With a NaN, only `ne` is true.
template <class T> __device__ inline bool holds(int op, T a, T b) {
    switch (op) {
        case 0: return a == b;
        case 1: return a != b;
        case 2: return a < b;
        case 3: return a <= b;
        case 4: return a > b;
        default: return a >= b;
    }
}

// The value that elements are compared by.
template <class T> __device__ inline T comparable(T x) { return x; }
__device__ inline float comparable(bf16 x) { return widen(x); }
__device__ inline float comparable(f16 x) { return widen(x); }

#define COMPARE(name, T)                                                                                       \
    extern "C" __global__ void compare_##name(uint8_t* out, const T* a, const T* b, uint64_t count, Strides s, \
                                              int op) {                                                        \
        FOR_EACH(i, count) {                                                                                   \
            uint64_t at[2];                                                                                    \
            offsets<2>(s, i, at);                                                                              \
            out[i] = holds(op, comparable(a[at[0]]), comparable(b[at[1]]));                                    \
        }                                                                                                      \
    }
#define FOR_ELEMENTS(DECLARE)                                                                                  \
    DECLARE(f64, double) DECLARE(f32, float) DECLARE(bf16, bf16) DECLARE(f16, f16) DECLARE(i64, int64_t)       \
    DECLARE(i32, int32_t) DECLARE(i16, int16_t) DECLARE(i8, int8_t) DECLARE(u64, uint64_t)                     \
    DECLARE(u32, uint32_t) DECLARE(u16, uint16_t) DECLARE(u8, uint8_t)
FOR_ELEMENTS(COMPARE)

// Casts follow Rust's `as`: to integers towards zero, saturating, with 0 for NaN; between integers by wrapping;
// to half and 8-bit floats through f32.
template <class I> struct Limits;
template <> struct Limits<int64_t> { static constexpr double low = -9223372036854775808.0, high = 9223372036854775808.0; static constexpr int64_t most = INT64_MAX, least = INT64_MIN; };
template <> struct Limits<uint64_t> { static constexpr double low = 0, high = 18446744073709551616.0; static constexpr uint64_t most = UINT64_MAX, least = 0; };
#define LIMITS(I, LEAST, MOST) \
    template <> struct Limits<I> { static constexpr double low = LEAST, high = (double)MOST + 1.0; static constexpr I most = MOST, least = LEAST; };
LIMITS(int32_t, INT32_MIN, INT32_MAX)
LIMITS(int16_t, INT16_MIN, INT16_MAX)
LIMITS(int8_t, INT8_MIN, INT8_MAX)
LIMITS(uint32_t, 0, UINT32_MAX)
LIMITS(uint16_t, 0, UINT16_MAX)
LIMITS(uint8_t, 0, UINT8_MAX)

template <class I> __device__ inline I to_integer(double x) {
    if (x != x) return 0;
    if (x <= Limits<I>::low) return Limits<I>::least;
    if (x >= Limits<I>::high) return Limits<I>::most;
    return (I)x;
}

// 8-bit floats: E4M3 has no infinities and one NaN, E5M2 is as IEEE's.
template <int EXPONENT, int MANTISSA, int BIAS> __device__ inline float from_8_bits(uint8_t bits) {
    int exponent = (bits >> MANTISSA) & ((1 << EXPONENT) - 1), mantissa = bits & ((1 << MANTISSA) - 1);
    float sign = bits & 0x80 ? -1.0f : 1.0f;
    bool last = exponent == (1 << EXPONENT) - 1;
    if (EXPONENT == 5 && last) return mantissa ? not_a_number<float>() : sign * infinity<float>();
    if (EXPONENT == 4 && last && mantissa == 7) return not_a_number<float>();
    if (exponent == 0) return sign * ldexpf((float)mantissa, 1 - BIAS - MANTISSA);
    return sign * ldexpf((float)(mantissa + (1 << MANTISSA)), exponent - BIAS - MANTISSA);
}

// The nearest code, ties to even. The code grows with the number, past the largest one too.
template <int MANTISSA, int LEAST, int LARGEST> __device__ inline uint8_t to_8_bits(float x) {
    uint8_t sign = (__float_as_uint(x) >> 24) & 0x80;
    if (x != x) return sign | 0x7f;
    float magnitude = fabsf(x);
    if (magnitude > 1e6f) return sign | LARGEST;
    int exponent = (int)(__float_as_uint(magnitude) >> 23) - 127;
    if (exponent < LEAST) exponent = LEAST;
    unsigned code = (unsigned)rintf(ldexpf(magnitude, MANTISSA - exponent)) + ((unsigned)(exponent - LEAST) << MANTISSA);
    return sign | (uint8_t)(code > LARGEST ? LARGEST : code);
}

// What an element is read as, as `as` does: floats widen, integers and bools stay.
template <class T> __device__ inline T primitive(T x) { return x; }
__device__ inline float primitive(bf16 x) { return widen(x); }
__device__ inline float primitive(f16 x) { return widen(x); }
__device__ inline float primitive(f8e4m3 x) { return from_8_bits<4, 3, 7>(x.bits); }
__device__ inline float primitive(f8e5m2 x) { return from_8_bits<5, 2, 15>(x.bits); }
__device__ inline uint8_t primitive(boolean x) { return x.byte; }

template <class I, class P> __device__ inline I as_integer(P x) { return (I)x; }
template <class I> __device__ inline I as_integer(float x) { return to_integer<I>((double)x); }
template <class I> __device__ inline I as_integer(double x) { return to_integer<I>(x); }

// The numbers of dtypes are those of `code` in Rust.
template <class P> __device__ inline void cast_to(void* out, uint64_t i, P x, int to) {
    switch (to) {
        case 0: ((double*)out)[i] = (double)x; break;
        case 1: ((float*)out)[i] = (float)x; break;
        case 2: ((bf16*)out)[i] = narrow<bf16>((float)x); break;
        case 3: ((f16*)out)[i] = narrow<f16>((float)x); break;
        case 4: ((uint8_t*)out)[i] = to_8_bits<3, -6, 0x7e>((float)x); break;
        case 5: ((uint8_t*)out)[i] = to_8_bits<2, -14, 0x7c>((float)x); break;
        case 6: ((int64_t*)out)[i] = as_integer<int64_t>(x); break;
        case 7: ((int32_t*)out)[i] = as_integer<int32_t>(x); break;
        case 8: ((int16_t*)out)[i] = as_integer<int16_t>(x); break;
        case 9: ((int8_t*)out)[i] = as_integer<int8_t>(x); break;
        case 10: ((uint64_t*)out)[i] = as_integer<uint64_t>(x); break;
        case 11: ((uint32_t*)out)[i] = as_integer<uint32_t>(x); break;
        case 12: ((uint16_t*)out)[i] = as_integer<uint16_t>(x); break;
        case 13: ((uint8_t*)out)[i] = as_integer<uint8_t>(x); break;
        default: ((uint8_t*)out)[i] = (double)x != 0.0; break;
    }
}

// Between floats that are computed with, many at a time.
#define CAST_FLOATS(name, From, To)                                                                            \
    extern "C" __global__ void cast_##name(To* out, const From* x, uint64_t count) {                           \
        constexpr int COUNT = Together<From, To>::COUNT;                                                       \
        for_packs<COUNT>(                                                                                      \
            count, is_aligned(out) && is_aligned(x),                                                           \
            [&](uint64_t i) {                                                                                  \
                Packs<From, COUNT> from = load_packs<COUNT>(x + i);                                            \
                Packs<To, COUNT> to;                                                                           \
                for (int j = 0; j < COUNT; j++) to.values[j] = narrow<To>(widen(from.values[j]));              \
                store_packs<COUNT>(out + i, to);                                                               \
            },                                                                                                 \
            [&](uint64_t i) { out[i] = narrow<To>(widen(x[i])); });                                            \
    }
CAST_FLOATS(f32_to_bf16, float, bf16)
CAST_FLOATS(f32_to_f16, float, f16)
CAST_FLOATS(bf16_to_f32, bf16, float)
CAST_FLOATS(f16_to_f32, f16, float)

#define CAST(name, T)                                                                         \
    extern "C" __global__ void cast_##name(void* out, const T* x, uint64_t count, int to) {   \
        FOR_EACH(i, count) cast_to(out, i, primitive(x[i]), to);                              \
    }
FOR_ELEMENTS(CAST)
CAST(f8_e4m3, f8e4m3)
CAST(f8_e5m2, f8e5m2)
CAST(bool, boolean)
