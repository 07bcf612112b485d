// Element types, and the types they are computed in.
//
// f64 and f32 are computed as they are, half types in f32 with one rounding at the end.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;
typedef __half f16;

// 8-bit floats: only casts know them.
struct f8e4m3 { uint8_t bits; };
struct f8e5m2 { uint8_t bits; };

// A bool is a byte that is 0 or 1.
struct boolean { uint8_t byte; };

template <class T> struct WideOf { typedef float type; };
template <> struct WideOf<double> { typedef double type; };
template <class T> using Wide = typename WideOf<T>::type;

__device__ inline double widen(double x) { return x; }
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __bfloat162float(x); }
__device__ inline float widen(f16 x) { return __half2float(x); }

template <class T> __device__ inline T narrow(Wide<T> x);
template <> __device__ inline double narrow<double>(double x) { return x; }
template <> __device__ inline float narrow<float>(float x) { return x; }
template <> __device__ inline bf16 narrow<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ inline f16 narrow<f16>(float x) { return __float2half_rn(x); }

template <class W> __device__ inline W infinity();
template <> __device__ inline float infinity<float>() { return __int_as_float(0x7f800000); }
template <> __device__ inline double infinity<double>() { return __longlong_as_double(0x7ff0000000000000LL); }
template <class W> __device__ inline W not_a_number();
template <> __device__ inline float not_a_number<float>() { return __int_as_float(0x7fffffff); }
template <> __device__ inline double not_a_number<double>() { return __longlong_as_double(0x7fffffffffffffffLL); }

// Declares a kernel for every floating-point dtype: DECLARE(name, type).
#define FOR_FLOATS(DECLARE) DECLARE(f64, double) DECLARE(f32, float) DECLARE(bf16, bf16) DECLARE(f16, f16)

// For kernels that only move elements, by their size in bytes.
#define FOR_SIZES(DECLARE) DECLARE(b1, uint8_t) DECLARE(b2, uint16_t) DECLARE(b4, uint32_t) DECLARE(b8, uint64_t)

// Every element of the grid's loop.
#define FOR_EACH(i, count) \
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < (count); i += (uint64_t)gridDim.x * blockDim.x)

// Dims and strides of up to three operands of one shape, innermost dim last.
struct Strides {
    uint64_t ndim;
    uint64_t dims[32];
    uint64_t strides[3][32];
};

// The offsets of N operands for an element in row-major order.
template <int N> __device__ inline void offsets(const Strides& s, uint64_t element, uint64_t (&out)[N]) {
    for (int n = 0; n < N; n++) out[n] = 0;
    for (int dim = (int)s.ndim - 1; dim > 0; dim--) {
        uint64_t size = s.dims[dim], at = element % size;
        element /= size;
        for (int n = 0; n < N; n++) out[n] += at * s.strides[n][dim];
    }
    for (int n = 0; n < N; n++) out[n] += element * s.strides[n][0];
}
