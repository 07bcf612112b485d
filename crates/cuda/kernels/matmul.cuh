// Matrix products.
//
// Every element is one chain of multiply-adds over the depth, so that a row's bits do not depend on its batch:
// f32 and f64 one fused multiply-add at a time, bf16 and f16 one mma.sync.m16n8k16 at a time, summed in f32.
#pragma once

#include "machine.cuh"

// A matrix in memory: strides of rows and columns.
struct Matrix {
    uint64_t row, column;
};

// The epilogue adds a bias to every row, then a residual; either may be null.
template <class T>
__device__ inline T finish(Wide<T> sum, const T* bias, const T* residual, uint64_t column, uint64_t place) {
    if (bias) sum += widen(bias[column]);
    if (residual) sum += widen(residual[place]);
    return narrow<T>(sum);
}

#define TILE 64
#define DEPTH 16

// f32 and f64: tiles of 64 x 64, 16 x 16 threads with 4 x 4 elements each.
template <class T>
__device__ inline void product(T* out, const T* a, const T* b, const T* bias, const T* residual, uint64_t rows,
                               uint64_t columns, uint64_t depth, Matrix of_a, Matrix of_b) {
    __shared__ T tile_a[DEPTH][TILE + 1], tile_b[DEPTH][TILE + 1];
    uint64_t first_row = (uint64_t)blockIdx.y * TILE, first_column = (uint64_t)blockIdx.x * TILE;
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
    T sums[4][4] = {};
    for (uint64_t start = 0; start < depth; start += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
            // Neighbouring threads read neighbouring memory.
            int k = of_a.column == 1 ? i % DEPTH : i / TILE, row = of_a.column == 1 ? i / DEPTH : i % TILE;
            bool inside = start + k < depth && first_row + row < rows;
            tile_a[k][row] = inside ? a[(first_row + row) * of_a.row + (start + k) * of_a.column] : T(0);
            k = of_b.row == 1 ? i % DEPTH : i / TILE;
            int column = of_b.row == 1 ? i / DEPTH : i % TILE;
            inside = start + k < depth && first_column + column < columns;
            tile_b[k][column] = inside ? b[(start + k) * of_b.row + (first_column + column) * of_b.column] : T(0);
        }
        __syncthreads();
        int steps = depth - start < DEPTH ? (int)(depth - start) : DEPTH;
        for (int k = 0; k < steps; k++) {
            T left[4], right[4];
            for (int i = 0; i < 4; i++) {
                left[i] = tile_a[k][y + 16 * i];
                right[i] = tile_b[k][x + 16 * i];
            }
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sums[i][j] = fma(left[i], right[j], sums[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            uint64_t row = first_row + y + 16 * i, column = first_column + x + 16 * j;
            if (row < rows && column < columns) {
                uint64_t place = row * columns + column;
                out[place] = finish<T>(sums[i][j], bias, residual, column, place);
            }
        }
}

#define HALF_DEPTH 32
#define HALF_STRIDE (HALF_DEPTH + 8)

// bf16 and f16: tiles of 64 x 64, 8 warps with 16 x 32 elements each. Beyond the edges there are zeros, which change
// no sum.
template <class T, class Out>
__device__ inline void half_product(Out* out, const T* a, const T* b, const Out* bias, const Out* residual, uint64_t rows,
                                    uint64_t columns, uint64_t depth, Matrix of_a, Matrix of_b) {
    // Rows of `a` and columns of `b`, with the depth innermost.
    __shared__ __align__(16) T tile_a[TILE][HALF_STRIDE];
    __shared__ __align__(16) T tile_b[TILE][HALF_STRIDE];
    uint64_t first_row = (uint64_t)blockIdx.y * TILE, first_column = (uint64_t)blockIdx.x * TILE;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    int warp_row = warp / 2 * 16, warp_column = warp % 2 * 32;
    float sums[4][4] = {};
    T zero = narrow<T>(0.0f);
    for (uint64_t start = 0; start < depth; start += HALF_DEPTH) {
        for (int i = threadIdx.x; i < TILE * HALF_DEPTH; i += 256) {
            int k = of_a.column == 1 ? i % HALF_DEPTH : i / TILE, row = of_a.column == 1 ? i / HALF_DEPTH : i % TILE;
            bool inside = start + k < depth && first_row + row < rows;
            tile_a[row][k] = inside ? a[(first_row + row) * of_a.row + (start + k) * of_a.column] : zero;
            k = of_b.row == 1 ? i % HALF_DEPTH : i / TILE;
            int column = of_b.row == 1 ? i / HALF_DEPTH : i % TILE;
            inside = start + k < depth && first_column + column < columns;
            tile_b[column][k] = inside ? b[(start + k) * of_b.row + (first_column + column) * of_b.column] : zero;
        }
        __syncthreads();
        for (int k = 0; k < HALF_DEPTH; k += 16) {
            // A chain ends with the depth: a product of zeros could turn -0 into 0.
            if (start + k >= depth) break;
            uint32_t left[4];
            for (int i = 0; i < 4; i++) {
                int row = warp_row + group + (i % 2) * 8, at = k + member * 2 + (i / 2) * 8;
                left[i] = *(const uint32_t*)&tile_a[row][at];
            }
            for (int j = 0; j < 4; j++) {
                uint32_t right[2];
                for (int i = 0; i < 2; i++)
                    right[i] = *(const uint32_t*)&tile_b[warp_column + j * 8 + group][k + member * 2 + i * 8];
                multiply_add(sums[j], left, right, zero);
            }
        }
        __syncthreads();
    }
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++) {
            uint64_t row = first_row + warp_row + group + (i / 2) * 8;
            uint64_t column = first_column + warp_column + j * 8 + member * 2 + i % 2;
            if (row < rows && column < columns) {
                uint64_t place = row * columns + column;
                out[place] = finish<Out>(sums[j][i], bias, residual, column, place);
            }
        }
}

template <class T> struct Product {
    static __device__ inline void run(T* out, const T* a, const T* b, const T* bias, const T* residual, uint64_t rows,
                                      uint64_t columns, uint64_t depth, Matrix of_a, Matrix of_b) {
        product<T>(out, a, b, bias, residual, rows, columns, depth, of_a, of_b);
    }
};
#define HALF_PRODUCT(T)                                                                                            \
    template <> struct Product<T> {                                                                                \
        static __device__ inline void run(T* out, const T* a, const T* b, const T* bias, const T* residual,        \
                                          uint64_t rows, uint64_t columns, uint64_t depth, Matrix of_a,            \
                                          Matrix of_b) {                                                           \
            half_product<T, T>(out, a, b, bias, residual, rows, columns, depth, of_a, of_b);                          \
        }                                                                                                          \
    };
HALF_PRODUCT(bf16)
HALF_PRODUCT(f16)

// One product for each batch: `starts` has the first elements of both matrices.
#define MATMUL(name, T)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
    matmul_##name(T* out, const T* a, const T* b, const T* bias, const T* residual, const uint64_t* starts,    \
                  uint64_t rows, uint64_t columns, uint64_t depth, Matrix of_a, Matrix of_b) {                 \
        uint64_t batch = blockIdx.z, size = rows * columns;                                                    \
        Product<T>::run(out + batch * size, a + starts[2 * batch], b + starts[2 * batch + 1], bias,            \
                        residual ? residual + batch * size : nullptr, rows, columns, depth, of_a, of_b);       \
    }
FOR_FLOATS(MATMUL)

// Sums of products of halves that are not rounded, added to others.
#define MATMUL_WIDE(name, T)                                                                                   \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
    matmul_wide_##name(float* out, const T* a, const T* b, const float* bias, const float* residual,           \
                       const uint64_t* starts, uint64_t rows, uint64_t columns, uint64_t depth, Matrix of_a,   \
                       Matrix of_b) {                                                                          \
        uint64_t batch = blockIdx.z, size = rows * columns;                                                    \
        half_product<T, float>(out + batch * size, a + starts[2 * batch], b + starts[2 * batch + 1], bias,     \
                               residual ? residual + batch * size : nullptr, rows, columns, depth, of_a,       \
                               of_b);                                                                          \
    }
MATMUL_WIDE(bf16, bf16)
MATMUL_WIDE(f16, f16)
