// What kernels need of CUDA's headers, for a compiler of the host: one thread of a block is one fiber.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

using std::cos, std::erf, std::exp, std::fabs, std::fma, std::isinf, std::log, std::pow, std::sin, std::sqrt, std::tanh;

#define WEIGHTLOOM_EMULATED 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
// One block runs at a time.
#define __shared__ static

struct Index { unsigned x, y, z; };
extern Index threadIdx, blockIdx, blockDim, gridDim;

// Dynamic shared memory of the block.
unsigned char* emulated_shared();

// Waits for all threads of the block.
void __syncthreads();

// Waits for all threads of the warp that are not done; `what` must be the same for all of them.
void emulated_warp(const char* what);
unsigned emulated_lane();
// Space of the warp for its collective operations: 64 bytes for each lane.
unsigned char* emulated_exchange();

inline void __syncwarp(unsigned = 0xffffffffu) { emulated_warp("syncwarp"); }

// The value of another lane.
template <class T> inline T emulated_read(T value, unsigned lane, const char* what) {
    static_assert(sizeof(T) <= 64, "an exchange holds 64 bytes for each lane");
    unsigned char* space = emulated_exchange();
    memcpy(space + emulated_lane() * 64, &value, sizeof(T));
    emulated_warp(what);
    T result;
    memcpy(&result, space + (lane % 32) * 64, sizeof(T));
    emulated_warp(what);
    return result;
}
template <class T> inline T __shfl_sync(unsigned, T value, int lane) {
    return emulated_read(value, (unsigned)lane, "shfl");
}
template <class T> inline T __shfl_xor_sync(unsigned, T value, int mask) {
    return emulated_read(value, emulated_lane() ^ (unsigned)mask, "shfl_xor");
}
template <class T> inline T __shfl_down_sync(unsigned, T value, unsigned by) {
    unsigned lane = emulated_lane() + by;
    return emulated_read(value, lane < 32 ? lane : emulated_lane(), "shfl_down");
}
inline unsigned __ballot_sync(unsigned, bool here) {
    unsigned char* space = emulated_exchange();
    space[emulated_lane() * 64] = here;
    emulated_warp("ballot");
    unsigned result = 0;
    for (unsigned lane = 0; lane < 32; lane++) result |= (unsigned)(space[lane * 64] != 0) << lane;
    emulated_warp("ballot");
    return result;
}
inline bool __any_sync(unsigned mask, bool here) { return __ballot_sync(mask, here) != 0; }
inline bool __all_sync(unsigned mask, bool here) { return __ballot_sync(mask, here) == 0xffffffffu; }

template <class To, class From> inline To emulated_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}
inline float __int_as_float(int x) { return emulated_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
template <class T> inline T __ldg(const T* at) { return *at; }

// As in CUDA, which has them without `std`.
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }

// Without their alignment, which the compiler would then assume of addresses that are not checked yet.
struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct float4 { float x, y, z, w; };
struct float2 { float x, y; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Half types: bits, rounded to nearest, ties to even.
struct __nv_bfloat16 { uint16_t bits; };
struct __half { uint16_t bits; };

inline float __bfloat162float(__nv_bfloat16 x) { return emulated_bits<float>((uint32_t)x.bits << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    uint32_t bits = emulated_bits<uint32_t>(x);
    if (x != x) return {0x7fff};
    return {(uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline float __half2float(__half x) {
    uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, exponent = (x.bits >> 10) & 31, mantissa = x.bits & 1023;
    if (exponent == 31) return emulated_bits<float>(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) {
        float value = ldexpf((float)mantissa, -24);
        return sign ? -value : value;
    }
    return emulated_bits<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}
inline __half __float2half_rn(float x) {
    uint16_t sign = (uint16_t)(emulated_bits<uint32_t>(x) >> 16 & 0x8000);
    if (x != x) return {0x7fff};
    double magnitude = fabs((double)x);
    if (magnitude >= 65520.0) return {(uint16_t)(sign | 0x7c00)};
    int exponent = -100;
    if (magnitude > 0) frexp(magnitude, &exponent);
    // Of a normal number, the last of 11 bits; below, 2^-24.
    int last = exponent - 11 < -24 ? -24 : exponent - 11;
    double steps = nearbyint(ldexp(magnitude, -last));
    if (last == -24) return {(uint16_t)(sign | (uint16_t)steps)};
    if (steps == 2048) { steps = 1024; last++; }
    return {(uint16_t)(sign | (uint16_t)((last + 25) << 10) | (uint16_t)((int)steps - 1024))};
}
