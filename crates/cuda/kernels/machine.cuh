// What only the machine has instructions for: products of tiles by a warp, and loads of their operands.
//
// An `m16n8k16` product takes a 16 x 16 matrix `a` by rows, a 16 x 8 matrix `b` by columns, and adds to a 16 x 8 matrix
// `c`. With `group = lane / 4` and `member = lane % 4`, a lane holds
//   a: rows group and group + 8, columns 2 * member + {0, 1}, then the same of columns + 8;
//   b: rows 2 * member + {0, 1} of column group, then the same of rows + 8;
//   c: columns 2 * member + {0, 1} of row group, then of row group + 8.
#pragma once

#include "number.cuh"

#ifdef WEIGHTLOOM_EMULATED
#include "machine.h"
#else

#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], f16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline uint32_t shared_address(const void* at) { return (uint32_t)__cvta_generic_to_shared(at); }

// Four 8 x 8 matrices of halves: lane 8 * i + j names row j of matrix i, and gets elements 2 * member + {0, 1} of row
// group of each.
__device__ inline void load_matrices(uint32_t (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row)));
}

// The same, transposed: rows 2 * member + {0, 1} of column group.
__device__ inline void load_transposed(uint32_t (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row)));
}

// Starts a copy of 16 bytes to an address of shared memory; zeros if it is not `inside`.
__device__ inline void start_copy_at(uint32_t to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0));
}

__device__ inline void start_copy(void* to, const void* from, bool inside) {
    start_copy_at(shared_address(to), from, inside);
}

// The same of 4 bytes.
__device__ inline void start_copy_of_word(void* to, const void* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(inside ? 4 : 0));
}

// Ends a group of copies that are waited for together.
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;"); }

// Waits for all groups of this thread but the last few.
template <int LEFT> __device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT)); }

// 2 to the power of x, to the last few bits.
__device__ inline float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

#endif

// Two halves in one register.
template <class T> __device__ inline uint32_t two_halves(float low, float high) {
    T a = narrow<T>(low), b = narrow<T>(high);
    uint16_t first, second;
    memcpy(&first, &a, 2);
    memcpy(&second, &b, 2);
    return (uint32_t)first | (uint32_t)second << 16;
}
