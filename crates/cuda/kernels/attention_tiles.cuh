// Attention of bf16 and f16 by tensor cores: a block of threads for a tile of queries, or of keys.
//
// Scores exist for one block of 64 keys at a time. Blocks are counted from the first key of a document, and 16 of them
// are a segment: an online softmax runs over the blocks of a segment, and segments are merged in order. Blocks in which
// a query sees nothing change none of its bits, so its result depends on its own keys alone: not on the queries beside
// it, on where its document is packed, or on how many of its keys are in a cache.
#pragma once

#include "attention.cuh"
#include "machine.cuh"

// Keys of a block, and blocks of a segment.
#define BLOCK_KEYS 64
#define SEGMENT_BLOCKS 16

// Queries (or keys) `first ..` of a document, which has the positions `start .. end` of a row of the batch.
struct Tile {
    uint32_t batch, start, end, first;
};

// The tile and the head of this block of threads. Blocks are numbered by tile, sequence, and head: the heads of the last
// tiles, which see the most keys, come first if they are `reversed`, so that short work is left for the end. Without a
// list, all rows of the batch are documents of `length` positions, of which the tiles have `rows`.
struct Place {
    Tile tile;
    uint64_t head;
};

__device__ inline Place place_here(const Tile* tiles, const Geometry& g, uint64_t heads, uint64_t length, int rows,
                                   bool reversed) {
    uint64_t number = reversed ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    uint64_t head = number % heads, sequence = number / heads;
    if (tiles) return {tiles[sequence], head};
    uint64_t tile = sequence / g.batch;
    return {{(uint32_t)(sequence % g.batch), 0, (uint32_t)length, (uint32_t)(tile * rows)}, head};
}

// What a query of a document sees: keys `first .. last`.
struct Keys {
    int first, last;
};

__device__ inline Keys keys_of(const Geometry& g, int start, int end, int query) {
    int position = query + (int)g.keys - (int)g.queries;
    if (g.causal && position < 0) return {0, 0};
    if (position < 0) position = 0;
    int last = g.causal && position + 1 < end ? position + 1 : end;
    int first = start;
    if ((uint64_t)(position + 1 - start) > g.window) first = position + 1 - (int)g.window;
    return {first < last ? first : last, last};
}

// Starts copies of rows of a head to a tile in shared memory, whose rows are `WIDTH + 8` apart: so eight rows lie in
// different banks. What is not there is zero.
template <int WIDTH, int THREADS_, int ROWS, class T>
__device__ inline void start_rows(T* tile, const T* rows, uint64_t stride, int there, int width) {
    constexpr int CHUNKS = WIDTH / 8;
    if constexpr (THREADS_ % CHUNKS == 0) {
        // Each thread has one column, in every `STEP`th row.
        constexpr int STEP = THREADS_ / CHUNKS;
        int row = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS * 8;
        const T* from = rows + row * stride + column;
        uint32_t to = shared_address(tile + row * (WIDTH + 8) + column);
        uint64_t step = STEP * stride;
        int left = column < width ? there - row : 0;
#pragma unroll
        for (int k = 0; k < (ROWS + STEP - 1) / STEP; k++) {
            if (ROWS % STEP == 0 || row + k * STEP < ROWS)
                start_copy_at(to + k * STEP * (WIDTH + 8) * (uint32_t)sizeof(T), left > k * STEP ? from : rows,
                              left > k * STEP);
            from += step;
        }
    } else {
        for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS_) {
            int row = i / CHUNKS, column = i % CHUNKS * 8;
            bool inside = row < there && column < width;
            start_copy(tile + row * (WIDTH + 8) + column, inside ? rows + row * stride + column : rows, inside);
        }
    }
}

// The score's final value, where it is not the product times a positive number.
__device__ inline float final_score(const Geometry& g, float product) {
    return capped_score<float>(g, product * (float)g.scale);
}

// The final value of a score, and its effect on the slope of its weight: the product of slope and weight is taken
// later, after the dot product has been subtracted.
__device__ inline void cap_slope(const Geometry& g, float& score, float& slope, float dot_product) {
    score = final_score(g, score);
    if (!g.capped) return;
    float share = score / (float)g.soft_cap;
    slope = (slope - dot_product) * (1.0f - share * share) + dot_product;
}

// Base-2 exponents of scores: the product times `factor`. Scores of soft caps are computed in place first.
struct Scaling {
    bool in_place;
    float factor;
};

__device__ inline Scaling scaling_of(const Geometry& g) {
    const float log2e = 1.44269504088896341f;
    bool in_place = g.capped || !(g.scale > 0);
    return {in_place, in_place ? log2e : (float)g.scale * log2e};
}

// Rows of a warp in a tile, as operands `a` of products.
template <int M, int WIDTH, class T>
__device__ inline void load_rows(uint32_t (&out)[M][4], const T* tile, int first, int column) {
    int lane = threadIdx.x % 32;
    for (int m = 0; m < M; m++)
        load_matrices(out[m], tile + (first + m * 16 + lane % 16) * (WIDTH + 8) + column + lane / 16 * 8);
}

// Adds products with 16 columns, which are sums `2 * n` and `2 * n + 1`.
template <int M, int N, class T>
__device__ inline void multiply_sixteen(float (&sums)[M][N][4], const uint32_t (&a)[M][4], const uint32_t (&b)[4], int n,
                                        T kind) {
    uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
    for (int m = 0; m < M; m++) {
        multiply_add(sums[m][2 * n], a[m], low, kind);
        multiply_add(sums[m][2 * n + 1], a[m], high, kind);
    }
}

// Products of a warp's rows with rows of another tile, `N` groups of 16 from `first` on: `sums[m][n]` has 16 x 8.
template <int M, int N, int WIDTH, class T>
__device__ inline void multiply_rows(float (&sums)[M][2 * N][4], const uint32_t (&a)[M][4], const T* tile, int first,
                                     int column, T kind) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint32_t b[4];
        load_matrices(b, tile + (first + n * 16 + lane / 16 * 8 + lane % 8) * (WIDTH + 8) + column + lane / 8 % 2 * 8);
        multiply_sixteen(sums, a, b, n, kind);
    }
}

// Adds products of weights, `M x 16` by 16, and 16 rows of a tile.
template <int M, int WIDTH, class T>
__device__ inline void add_weighted(float (&sums)[M][WIDTH / 8][4], const uint32_t (&weights)[M][4], const T* tile,
                                    int first, T kind) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < WIDTH / 16; n++) {
        uint32_t b[4];
        load_transposed(b, tile + (first + lane % 16) * (WIDTH + 8) + n * 16 + lane / 16 * 8);
        multiply_sixteen(sums, weights, b, n, kind);
    }
}

// Two neighbouring groups of eight columns of results, as operands of a further product.
template <class T, int M, int N>
__device__ inline void as_operand(uint32_t (&out)[M][4], const float (&x)[M][N][4], int column) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            out[m][2 * half] = two_halves<T>(x[m][column + half][0], x[m][column + half][1]);
            out[m][2 * half + 1] = two_halves<T>(x[m][column + half][2], x[m][column + half][3]);
        }
}

// Writes a warp's rows of results through its rows of a tile, so that 16 bytes are written at a time.
template <int M, int WIDTH, class T>
__device__ inline void write_rows(T* out, uint64_t stride, const float (&x)[M][WIDTH / 8][4], const float (&scale)[M][2],
                                  T* tile, int first, int there, int width) {
    int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    __syncwarp();
    for (int m = 0; m < M; m++)
        for (int n = 0; n < WIDTH / 8; n++)
            for (int half = 0; half < 2; half++) {
                // A sum that underflowed may be -0, depending on blocks that add nothing.
                float low = x[m][n][2 * half] * scale[m][half] + 0.0f;
                float high = x[m][n][2 * half + 1] * scale[m][half] + 0.0f;
                T* at = tile + (first + m * 16 + half * 8 + group) * (WIDTH + 8) + n * 8 + member * 2;
                *(uint32_t*)at = two_halves<T>(low, high);
            }
    __syncwarp();
    constexpr int CHUNKS = WIDTH / 8;
    for (int i = lane; i < M * 16 * CHUNKS; i += 32) {
        int row = i / CHUNKS, column = i % CHUNKS * 8;
        if (first + row < there && column < width)
            *(uint4*)(out + (first + row) * stride + column) = *(const uint4*)(tile + (first + row) * (WIDTH + 8) + column);
    }
}

// The running softmax of a warp's rows: largest score, this lane's part of the sum of weights, and weighted values.
template <int M, int WIDTH> struct Running {
    float most[M][2], total[M][2], sums[M][WIDTH / 8][4];

    __device__ inline void clear() {
        for (int m = 0; m < M; m++) {
            for (int half = 0; half < 2; half++) most[m][half] = -infinity<float>(), total[m][half] = 0;
            for (int n = 0; n < WIDTH / 8; n++)
                for (int i = 0; i < 4; i++) sums[m][n][i] = 0;
        }
    }

    // Merges an earlier part, kept in memory of which each thread has one element in `THREADS_`.
    template <int THREADS_> __device__ inline void merge(const float* kept, float factor) {
        const float* at = kept + threadIdx.x;
        for (int m = 0; m < M; m++)
            for (int half = 0; half < 2; half++) {
                float before = *at, before_total = at[THREADS_];
                at += 2 * THREADS_;
                float here = fmaxf(most[m][half], before);
                float base = here == -infinity<float>() ? 0.0f : here * factor;
                float keep = power_of_two(before * factor - base), own = power_of_two(most[m][half] * factor - base);
                most[m][half] = here;
                total[m][half] = before_total * keep + total[m][half] * own;
                for (int n = 0; n < WIDTH / 8; n++)
                    for (int i = 0; i < 2; i++) {
                        float& sum = sums[m][n][2 * half + i];
                        sum = *at * keep + sum * own;
                        at += THREADS_;
                    }
            }
    }

    template <int THREADS_> __device__ inline void keep(float* kept) const {
        float* at = kept + threadIdx.x;
        for (int m = 0; m < M; m++)
            for (int half = 0; half < 2; half++) {
                *at = most[m][half];
                at[THREADS_] = total[m][half];
                at += 2 * THREADS_;
                for (int n = 0; n < WIDTH / 8; n++)
                    for (int i = 0; i < 2; i++) {
                        *at = sums[m][n][2 * half + i];
                        at += THREADS_;
                    }
            }
    }
};

// Shared memory: a tile of queries, a block of keys and one of values, and what is kept between segments.
template <class T, int WIDTH, int M, int WARPS>
__device__ inline void attend_tile(T* out, float* logs, const T* q, const T* k, const T* v, const uint8_t* mask,
                                   const Tile* tiles, const Geometry& g) {
    constexpr int ROWS = 16 * M * WARPS, ALL = 32 * WARPS, STRIDE = WIDTH + 8;
    // Operands of queries stay in registers if they are few.
    constexpr bool HELD = M * WIDTH <= 128;
    DYNAMIC_SHARED(shared);
    T *queries = (T*)shared, *keys = queries + ROWS * STRIDE, *values = keys + BLOCK_KEYS * STRIDE;
    float* kept = (float*)(values + BLOCK_KEYS * STRIDE);
    T kind = narrow<T>(0.0f);
    int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4, own = threadIdx.x / 32 * 16 * M;
    Place here = place_here(tiles, g, g.heads, g.queries, ROWS, g.causal);
    const Tile& tile = here.tile;
    uint64_t batch = tile.batch, head = here.head, kv_head = head / (g.heads / g.kv_heads);
    int start = (int)tile.start, first = (int)tile.first, end = tiles ? (int)tile.end : (int)g.keys;
    int there = (int)tile.end - first < ROWS ? (int)tile.end - first : ROWS;
    const T* of_keys = k + batch * g.k[0] + kv_head * g.k[1];
    const T* of_values = v + batch * g.v[0] + kv_head * g.v[1];
    start_rows<WIDTH, ALL, ROWS>(queries, q + batch * g.q[0] + head * g.q[1] + first * g.q[2], g.q[2], there, (int)g.width);
    end_copies();

    Keys of_row[M][2];
    for (int m = 0; m < M; m++)
        for (int half = 0; half < 2; half++) {
            int row = own + m * 16 + half * 8 + group;
            of_row[m][half] = row < there ? keys_of(g, start, end, first + row) : Keys{0, 0};
        }
    // What all queries of the tile see together.
    Keys low = keys_of(g, start, end, first), high = keys_of(g, start, end, first + there - 1);
    int from = (low.last > low.first ? low.first : start) - start, until = high.last - start;
    int block = from / BLOCK_KEYS, blocks = (until + BLOCK_KEYS - 1) / BLOCK_KEYS;
    // Blocks that all of them see whole.
    int whole_from = high.first, whole_until = low.last;

    Scaling scaling = scaling_of(g);
    Running<M, WIDTH> running;
    running.clear();
    bool has_kept = false;
    auto load = [&](T* to, const T* of, uint64_t stride, int number) {
        int at = start + number * BLOCK_KEYS;
        start_rows<WIDTH, ALL, BLOCK_KEYS>(to, of + at * stride, stride, end - at, (int)g.width);
        end_copies();
    };
    if (block < blocks) load(keys, of_keys, g.k[2], block);
    uint32_t held[HELD ? WIDTH / 16 : 1][M][4];
    if (HELD) {
        wait_for_copies<1>();
        if (block >= blocks) wait_for_copies<0>();
        __syncthreads();
        for (int step = 0; step < WIDTH / 16; step++) load_rows<M, WIDTH>(held[HELD ? step : 0], queries, own, step * 16);
    }
    // What the warp's queries see together.
    int warp_until = 0, warp_last = own + 16 * M < there ? own + 16 * M : there;
    if (own < there) warp_until = keys_of(g, start, end, first + warp_last - 1).last;
    for (; block < blocks; block++) {
        wait_for_copies<0>();
        __syncthreads();
        load(values, of_values, g.v[2], block);
        int at = start + block * BLOCK_KEYS;
        if (at >= warp_until) {
            // Nothing: only the copies go on.
            wait_for_copies<0>();
            __syncthreads();
            if (block + 1 < blocks) load(keys, of_keys, g.k[2], block + 1);
            continue;
        }
        float scores[M][8][4] = {};
#pragma unroll
        for (int step = 0; step < WIDTH / 16; step++) {
            if (HELD) {
                multiply_rows<M, 4, WIDTH>(scores, held[HELD ? step : 0], keys, 0, step * 16, kind);
            } else {
                uint32_t a[M][4];
                load_rows<M, WIDTH>(a, queries, own, step * 16);
                multiply_rows<M, 4, WIDTH>(scores, a, keys, 0, step * 16, kind);
            }
        }
        if (scaling.in_place)
            for (int m = 0; m < M; m++)
                for (int n = 0; n < 8; n++)
                    for (int i = 0; i < 4; i++) scores[m][n][i] = final_score(g, scores[m][n][i]);
        if (mask || at < whole_from || at + BLOCK_KEYS > whole_until)
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int key = at + n * 8 + member * 2 + i % 2;
                        const Keys& seen = of_row[m][i / 2];
                        bool visible = key >= seen.first && key < seen.last && (!mask || mask[batch * g.keys + key]);
                        if (!visible) scores[m][n][i] = -infinity<float>();
                    }
        if (block % SEGMENT_BLOCKS == 0 && block * BLOCK_KEYS > from) {
            if (has_kept) running.template merge<ALL>(kept, scaling.factor);
            running.template keep<ALL>(kept);
            has_kept = true;
            running.clear();
        }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float most = running.most[m][half];
#pragma unroll
                for (int n = 0; n < 8; n++)
                    most = fmaxf(most, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
                float base = most == -infinity<float>() ? 0.0f : most * scaling.factor;
                float shrink = power_of_two(running.most[m][half] * scaling.factor - base);
                running.most[m][half] = most;
                float total = 0;
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float& score = scores[m][n][2 * half + i];
                        score = power_of_two(fmaf(score, scaling.factor, -base));
                        total += score;
                    }
                running.total[m][half] = running.total[m][half] * shrink + total;
                // Mostly no row of the warp has a larger score than before.
                if (__any_sync(0xffffffffu, shrink != 1.0f))
#pragma unroll
                    for (int n = 0; n < WIDTH / 8; n++) {
                        running.sums[m][n][2 * half] *= shrink;
                        running.sums[m][n][2 * half + 1] *= shrink;
                    }
            }
        wait_for_copies<0>();
        __syncthreads();
        if (block + 1 < blocks) load(keys, of_keys, g.k[2], block + 1);
#pragma unroll
        for (int step = 0; step < BLOCK_KEYS / 16; step++) {
            uint32_t weights[M][4];
            as_operand<T>(weights, scores, 2 * step);
            add_weighted<M, WIDTH>(running.sums, weights, values, step * 16, kind);
        }
    }
    if (has_kept) running.template merge<ALL>(kept, scaling.factor);

    float scale[M][2];
    for (int m = 0; m < M; m++)
        for (int half = 0; half < 2; half++) {
            float total = running.total[m][half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            // A query without keys gets zeros.
            bool empty = total == 0;
            scale[m][half] = empty ? 0.0f : 1.0f / total;
            int row = own + m * 16 + half * 8 + group;
            if (row < there && member == 0) {
                const float ln2 = 0.693147180559945309f;
                float log_sum = running.most[m][half] * scaling.factor * ln2 + logf(total);
                logs[(batch * g.heads + head) * g.queries + first + row] = empty ? infinity<float>() : log_sum;
            }
        }
    write_rows<M, WIDTH>(out + batch * g.out[0] + head * g.out[1] + first * g.out[2], g.out[2], running.sums, scale,
                         queries, own, there, (int)g.width);
}

// The gradient of queries; also the dot products of results and their gradients. `M` is 1 where registers are few.
template <class T, int WIDTH, int M, int WARPS>
__device__ inline void query_gradient_tile(T* of_q, float* dots, const T* q, const T* k, const T* v, const T* out,
                                           const T* gradient, const float* logs, const uint8_t* mask,
                                           const Tile* tiles, const Geometry& g) {
    constexpr int ROWS = 16 * M * WARPS, ALL = 32 * WARPS, STRIDE = WIDTH + 8;
    constexpr bool HELD = M * WIDTH <= 128;
    // Keys whose scores are in registers at a time.
    constexpr int PART = 32;
    DYNAMIC_SHARED(shared);
    T *queries = (T*)shared, *gradients = queries + ROWS * STRIDE;
    // Of keys and of values, once or twice.
    T* blocks_of_keys = gradients + ROWS * STRIDE;
    T kind = narrow<T>(0.0f);
    int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4, own = threadIdx.x / 32 * 16 * M;
    Place here = place_here(tiles, g, g.heads, g.queries, ROWS, g.causal);
    const Tile& tile = here.tile;
    uint64_t batch = tile.batch, head = here.head, kv_head = head / (g.heads / g.kv_heads);
    int start = (int)tile.start, first = (int)tile.first, end = tiles ? (int)tile.end : (int)g.keys;
    int there = (int)tile.end - first < ROWS ? (int)tile.end - first : ROWS;
    const T* of_keys = k + batch * g.k[0] + kv_head * g.k[1];
    const T* of_values = v + batch * g.v[0] + kv_head * g.v[1];
    const T* of_gradients = gradient + batch * g.gradient[0] + head * g.gradient[1] + first * g.gradient[2];
    start_rows<WIDTH, ALL, ROWS>(queries, q + batch * g.q[0] + head * g.q[1] + first * g.q[2], g.q[2], there, (int)g.width);
    start_rows<WIDTH, ALL, ROWS>(gradients, of_gradients, g.gradient[2], there, (int)g.width);
    end_copies();
    Keys low = keys_of(g, start, end, first), high = keys_of(g, start, end, first + there - 1);
    int from = (low.last > low.first ? low.first : start) - start, until = high.last - start;
    int block = from / BLOCK_KEYS, blocks = (until + BLOCK_KEYS - 1) / BLOCK_KEYS;
    int whole_from = high.first, whole_until = low.last;
    auto place = [&](int number) { return blocks_of_keys + (g.ahead ? number % 2 * 2 * BLOCK_KEYS * STRIDE : 0); };
    auto load = [&](int number) {
        int at = start + number * BLOCK_KEYS;
        T* to = place(number);
        start_rows<WIDTH, ALL, BLOCK_KEYS>(to, of_keys + at * g.k[2], g.k[2], end - at, (int)g.width);
        start_rows<WIDTH, ALL, BLOCK_KEYS>(to + BLOCK_KEYS * STRIDE, of_values + at * g.v[2], g.v[2], end - at, (int)g.width);
        end_copies();
    };
    wait_for_copies<0>();
    __syncthreads();
    if (block < blocks) load(block);

    const float log2e = 1.44269504088896341f;
    Scaling scaling = scaling_of(g);
    uint64_t number = (batch * g.heads + head) * g.queries + first;
    const T* of_results = out + batch * g.out[0] + head * g.out[1] + first * g.out[2];
    float log_sums[M][2], dot_products[M][2];
    for (int m = 0; m < M; m++)
        for (int half = 0; half < 2; half++) {
            int row = own + m * 16 + half * 8 + group;
            log_sums[m][half] = row < there ? logs[number + row] * log2e : infinity<float>();
            // Four lanes have a row.
            float sum = 0;
            if (row < there)
                for (int i = member * 8; i < (int)g.width; i += 32) {
                    uint4 packed = *(const uint4*)(of_results + row * g.out[2] + i);
                    T some[8];
                    memcpy(some, &packed, 16);
                    for (int j = 0; j < 8; j++) sum += widen(some[j]) * widen(gradients[row * STRIDE + i + j]);
                }
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            dot_products[m][half] = sum;
            if (row < there && member == 0) dots[number + row] = sum;
        }
    uint32_t held[2][HELD ? WIDTH / 16 : 1][M][4];
    if (HELD)
        for (int step = 0; step < WIDTH / 16; step++) {
            load_rows<M, WIDTH>(held[0][HELD ? step : 0], queries, own, step * 16);
            load_rows<M, WIDTH>(held[1][HELD ? step : 0], gradients, own, step * 16);
        }
    float sums[M][WIDTH / 8][4] = {};
    int warp_until = 0, warp_last = own + 16 * M < there ? own + 16 * M : there;
    if (own < there) warp_until = keys_of(g, start, end, first + warp_last - 1).last;
    for (; block < blocks; block++) {
        wait_for_copies<0>();
        __syncthreads();
        if (g.ahead && block + 1 < blocks) load(block + 1);
        const T *keys = place(block), *values = keys + BLOCK_KEYS * STRIDE;
        int at = start + block * BLOCK_KEYS;
        bool partly = mask || at < whole_from || at + BLOCK_KEYS > whole_until;
#pragma unroll 1
        for (int part = 0; part < BLOCK_KEYS && at + part < warp_until; part += PART) {
            float scores[M][PART / 8][4] = {}, slopes[M][PART / 8][4] = {};
#pragma unroll
            for (int step = 0; step < WIDTH / 16; step++) {
                if (HELD) {
                    multiply_rows<M, PART / 16, WIDTH>(scores, held[0][HELD ? step : 0], keys, part, step * 16, kind);
                    multiply_rows<M, PART / 16, WIDTH>(slopes, held[1][HELD ? step : 0], values, part, step * 16, kind);
                } else {
                    uint32_t a[M][4];
                    load_rows<M, WIDTH>(a, queries, own, step * 16);
                    multiply_rows<M, PART / 16, WIDTH>(scores, a, keys, part, step * 16, kind);
                    load_rows<M, WIDTH>(a, gradients, own, step * 16);
                    multiply_rows<M, PART / 16, WIDTH>(slopes, a, values, part, step * 16, kind);
                }
            }
            if (scaling.in_place)
                for (int m = 0; m < M; m++)
                    for (int n = 0; n < PART / 8; n++)
                        for (int i = 0; i < 4; i++)
                            cap_slope(g, scores[m][n][i], slopes[m][n][i], dot_products[m][i / 2]);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < PART / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float weight = power_of_two(fmaf(scores[m][n][i], scaling.factor, -log_sums[m][i / 2]));
                        slopes[m][n][i] = weight * (slopes[m][n][i] - dot_products[m][i / 2]);
                    }
            if (partly)
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        // Few blocks: what a row sees is not worth registers. Rows beyond the tile have no weights.
                        Keys seen = keys_of(g, start, end, first + own + m * 16 + half * 8 + group);
#pragma unroll
                        for (int n = 0; n < PART / 8; n++)
#pragma unroll
                            for (int which = 0; which < 2; which++) {
                                int key = at + part + n * 8 + member * 2 + which;
                                if (key < seen.first || key >= seen.last || (mask && !mask[batch * g.keys + key]))
                                    slopes[m][n][half * 2 + which] = 0;
                            }
                    }
#pragma unroll
            for (int step = 0; step < PART / 16; step++) {
                uint32_t weights[M][4];
                as_operand<T>(weights, slopes, 2 * step);
                add_weighted<M, WIDTH>(sums, weights, keys, part + step * 16, kind);
            }
        }
        if (!g.ahead) {
            __syncthreads();
            if (block + 1 < blocks) load(block + 1);
        }
    }
    float scale[M][2];
    for (int m = 0; m < M; m++) scale[m][0] = scale[m][1] = (float)g.scale;
    // Stored as `[batch, queries, heads, width]`.
    uint64_t stride = g.heads * g.width;
    write_rows<M, WIDTH>(of_q + ((batch * g.queries + first) * g.heads + head) * g.width, stride, sums, scale, queries,
                         own, there, (int)g.width);
}

// What a launch computes: wide heads have too many sums for both.
enum Wanted { BOTH, OF_KEYS, OF_VALUES };

// The gradients of keys and values: over the heads that share them, then over blocks of queries, in order. Rows of
// scores are keys here, and columns queries.
template <class T, int WIDTH, int M, int WARPS, int QUERIES, Wanted WANTED>
__device__ inline void key_gradient_tile(T* of_k, T* of_v, const T* q, const T* k, const T* v, const T* gradient,
                                         const float* logs, const float* dots, const uint8_t* mask,
                                         const Tile* tiles, const Geometry& g) {
    constexpr int ROWS = 16 * M * WARPS, ALL = 32 * WARPS, STRIDE = WIDTH + 8;
    // Queries whose scores are in registers at a time.
    constexpr int PART = QUERIES < 32 ? QUERIES : 32;
    DYNAMIC_SHARED(shared);
    T *keys = (T*)shared, *values = keys + ROWS * STRIDE;
    // Of queries and of gradients, once or twice.
    T* blocks_of_queries = values + ROWS * STRIDE;
    // Of each query the logarithm of its sum of weights and the dot product, twice: for this block and the next.
    float* of_queries = (float*)(blocks_of_queries + (g.ahead ? 4 : 2) * QUERIES * STRIDE);
    T kind = narrow<T>(0.0f);
    int lane = threadIdx.x % 32, group = lane / 4, member = lane % 4, own = threadIdx.x / 32 * 16 * M;
    Place here = place_here(tiles, g, g.kv_heads, g.keys, ROWS, false);
    const Tile& tile = here.tile;
    uint64_t batch = tile.batch, kv_head = here.head, heads = g.heads / g.kv_heads;
    int start = (int)tile.start, first = (int)tile.first, end = (int)tile.end;
    int there = end - first < ROWS ? end - first : ROWS;
    // Queries of the document; positions are ahead of them by the keys of a cache.
    int ahead = (int)g.keys - (int)g.queries, query_end = tiles ? end : (int)g.queries;
    start_rows<WIDTH, ALL, ROWS>(keys, k + batch * g.k[0] + kv_head * g.k[1] + first * g.k[2], g.k[2], there, (int)g.width);
    start_rows<WIDTH, ALL, ROWS>(values, v + batch * g.v[0] + kv_head * g.v[1] + first * g.v[2], g.v[2], there, (int)g.width);
    end_copies();
    int from = start, until = query_end;
    if (g.causal && first - ahead > from) from = first - ahead;
    // The last query that sees the last key of the tile, within a window.
    if (g.window < (uint64_t)(first + there + query_end)) {
        int64_t after = (int64_t)first + there - 1 + (int64_t)g.window - ahead;
        if (after < until) until = (int)(after < from ? from : after);
    }
    // Not causal: queries before the first position count as being there.
    if (!g.causal && ahead < 0 && first < (int)g.window && until < -ahead) until = -ahead < query_end ? -ahead : query_end;
    int block = (from - start) / QUERIES, blocks = (until - start + QUERIES - 1) / QUERIES;
    int total = blocks > block ? (blocks - block) * (int)heads : 0;

    const float log2e = 1.44269504088896341f;
    Scaling scaling = scaling_of(g);
    bool all_keys = there == ROWS && !mask;
    auto place = [&](int turn) { return blocks_of_queries + (g.ahead ? turn % 2 * 2 * QUERIES * STRIDE : 0); };
    // The head and the first query of the turn that is loaded next, and of this turn.
    uint64_t next_head = kv_head * heads;
    int next_at = start + block * QUERIES, at = 0;
    auto load = [&](int turn) {
        T *queries = place(turn), *gradients = queries + QUERIES * STRIDE;
        uint64_t head = next_head;
        int at = next_at, left = query_end - at;
        next_at += QUERIES;
        if (next_at >= until) {
            next_at = start + block * QUERIES;
            next_head++;
        }
        start_rows<WIDTH, ALL, QUERIES>(queries, q + batch * g.q[0] + head * g.q[1] + at * g.q[2], g.q[2], left, (int)g.width);
        start_rows<WIDTH, ALL, QUERIES>(gradients, gradient + batch * g.gradient[0] + head * g.gradient[1] + at * g.gradient[2], g.gradient[2], left, (int)g.width);
        float* of_query = of_queries + turn % 2 * 2 * QUERIES;
        uint64_t number = (batch * g.heads + head) * g.queries + at;
        for (int i = threadIdx.x; i < 2 * QUERIES; i += ALL) {
            int query = i % QUERIES;
            const float* from = (i < QUERIES ? logs : dots) + number + query;
            start_copy_of_word(of_query + i, query < left ? from : logs, query < left);
        }
        end_copies();
    };
    float of_keys[M][WANTED == OF_VALUES ? 1 : WIDTH / 8][4] = {};
    float of_values[M][WANTED == OF_KEYS ? 1 : WIDTH / 8][4] = {};
    if (total > 0) load(0);
    for (int turn = 0; turn < total; turn++) {
        wait_for_copies<0>();
        __syncthreads();
        if (g.ahead && turn + 1 < total) load(turn + 1);
        const T *queries = place(turn), *gradients = queries + QUERIES * STRIDE;
        at = at + QUERIES < until && turn > 0 ? at + QUERIES : start + block * QUERIES;
        const float* of_query = of_queries + turn % 2 * 2 * QUERIES;
        // All queries of the block see all keys of the tile.
        Keys low = keys_of(g, start, end, at), high = keys_of(g, start, end, at + QUERIES - 1);
        bool whole = all_keys && at + QUERIES <= query_end && high.first <= first && low.last >= first + ROWS;
#pragma unroll 1
        for (int part = 0; part < QUERIES; part += PART) {
            // Queries that are before all keys of the warp.
            if (g.causal && at + part + PART + ahead <= first + own) continue;
            float scores[M][PART / 8][4] = {}, slopes[M][PART / 8][4] = {};
#pragma unroll
            for (int step = 0; step < WIDTH / 16; step++) {
                uint32_t a[M][4];
                load_rows<M, WIDTH>(a, keys, own, step * 16);
                multiply_rows<M, PART / 16, WIDTH>(scores, a, queries, part, step * 16, kind);
                if (WANTED != OF_VALUES) {
                    load_rows<M, WIDTH>(a, values, own, step * 16);
                    multiply_rows<M, PART / 16, WIDTH>(slopes, a, gradients, part, step * 16, kind);
                }
            }
            if (scaling.in_place)
                for (int m = 0; m < M; m++)
                    for (int n = 0; n < PART / 8; n++)
                        for (int i = 0; i < 4; i++)
                            cap_slope(g, scores[m][n][i], slopes[m][n][i],
                                      of_query[QUERIES + part + n * 8 + member * 2 + i % 2]);
#pragma unroll
            for (int n = 0; n < PART / 8; n++) {
                const float* columns = of_query + part + n * 8 + member * 2;
                float2 log_sums = *(const float2*)columns, dot_products = *(const float2*)(columns + QUERIES);
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float log_sum = (i % 2 ? log_sums.y : log_sums.x) * log2e;
                        float dot_product = i % 2 ? dot_products.y : dot_products.x;
                        float weight = power_of_two(fmaf(scores[m][n][i], scaling.factor, -log_sum));
                        scores[m][n][i] = weight;
                        slopes[m][n][i] = weight * (slopes[m][n][i] - dot_product);
                    }
            }
            if (!whole)
#pragma unroll
                for (int n = 0; n < PART / 8; n++)
#pragma unroll
                    for (int which = 0; which < 2; which++) {
                        int query = at + part + n * 8 + member * 2 + which;
                        Keys seen = {0, 0};
                        if (query < query_end) seen = keys_of(g, start, end, query);
#pragma unroll
                        for (int m = 0; m < M; m++)
#pragma unroll
                            for (int half = 0; half < 2; half++) {
                                int i = half * 2 + which, row = own + m * 16 + half * 8 + group, key = first + row;
                                bool visible = row < there && key >= seen.first && key < seen.last;
                                if (visible && mask) visible = mask[batch * g.keys + key];
                                if (!visible) scores[m][n][i] = slopes[m][n][i] = 0;
                            }
                    }
#pragma unroll
            for (int step = 0; step < PART / 16; step++) {
                uint32_t weights[M][4];
                if constexpr (WANTED != OF_KEYS) {
                    as_operand<T>(weights, scores, 2 * step);
                    add_weighted<M, WIDTH>(of_values, weights, gradients, part + step * 16, kind);
                }
                if constexpr (WANTED != OF_VALUES) {
                    as_operand<T>(weights, slopes, 2 * step);
                    add_weighted<M, WIDTH>(of_keys, weights, queries, part + step * 16, kind);
                }
            }
        }
        if (!g.ahead) {
            __syncthreads();
            if (turn + 1 < total) load(turn + 1);
        }
    }
    wait_for_copies<0>();
    __syncthreads();
    // Stored as `[batch, keys, kv_heads, width]`.
    uint64_t stride = g.kv_heads * g.width, target = ((batch * g.keys + first) * g.kv_heads + kv_head) * g.width;
    float scale[M][2];
    for (int m = 0; m < M; m++) scale[m][0] = scale[m][1] = (float)g.scale;
    if constexpr (WANTED != OF_VALUES)
        write_rows<M, WIDTH>(of_k + target, stride, of_keys, scale, keys, own, there, (int)g.width);
    for (int m = 0; m < M; m++) scale[m][0] = scale[m][1] = 1.0f;
    if constexpr (WANTED != OF_KEYS)
        write_rows<M, WIDTH>(of_v + target, stride, of_values, scale, values, own, there, (int)g.width);
}

// `tiles` may be null. Tiles of queries have 16 * M * WARPS rows; `attend_row_...` is for few queries.
#define ATTEND_TILES(prefix, name, T, WIDTH, M, WARPS)                                                         \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                   \
    prefix##_##name##_##WIDTH(T* out, float* logs, const T* q, const T* k, const T* v, const uint8_t* mask,    \
                              const Tile* tiles, Geometry g) {                                                 \
        attend_tile<T, WIDTH, M, WARPS>(out, logs, q, k, v, mask, tiles, g);                                   \
    }
#define QUERY_GRADIENT_TILES(name, T, WIDTH, M, WARPS)                                                         \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                   \
    query_gradient_tiles_##name##_##WIDTH(T* of_q, float* dots, const T* q, const T* k, const T* v,            \
                                          const T* out, const T* gradient, const float* logs,                  \
                                          const uint8_t* mask, const Tile* tiles, Geometry g) {                \
        query_gradient_tile<T, WIDTH, M, WARPS>(of_q, dots, q, k, v, out, gradient, logs, mask, tiles, g);     \
    }
#define KEY_GRADIENT_TILES(prefix, name, T, WIDTH, M, WARPS, QUERIES, WANTED)                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                   \
    prefix##_##name##_##WIDTH(T* of_k, T* of_v, const T* q, const T* k, const T* v, const T* gradient,         \
                              const float* logs, const float* dots, const uint8_t* mask, const Tile* tiles,    \
                              Geometry g) {                                                                    \
        key_gradient_tile<T, WIDTH, M, WARPS, QUERIES, WANTED>(of_k, of_v, q, k, v, gradient, logs, dots,      \
                                                               mask, tiles, g);                                \
    }
#define ATTENTION_TILES(name, T)                                                                               \
    ATTEND_TILES(attend_tiles, name, T, 64, 2, 4)                                                              \
    ATTEND_TILES(attend_tiles, name, T, 96, 1, 4)                                                              \
    ATTEND_TILES(attend_tiles, name, T, 128, 1, 4)                                                             \
    ATTEND_TILES(attend_tiles, name, T, 256, 1, 2)                                                             \
    ATTEND_TILES(attend_row, name, T, 64, 1, 1)                                                                \
    ATTEND_TILES(attend_row, name, T, 96, 1, 1)                                                                \
    ATTEND_TILES(attend_row, name, T, 128, 1, 1)                                                               \
    ATTEND_TILES(attend_row, name, T, 256, 1, 1)                                                               \
    QUERY_GRADIENT_TILES(name, T, 64, 2, 4)                                                                    \
    QUERY_GRADIENT_TILES(name, T, 96, 1, 4)                                                                    \
    QUERY_GRADIENT_TILES(name, T, 128, 1, 4)                                                                   \
    QUERY_GRADIENT_TILES(name, T, 256, 1, 2)                                                                   \
    KEY_GRADIENT_TILES(key_gradient_tiles, name, T, 64, 2, 4, 64, BOTH)                                        \
    KEY_GRADIENT_TILES(key_gradient_tiles, name, T, 96, 1, 4, 32, BOTH)                                        \
    KEY_GRADIENT_TILES(key_gradient_tiles, name, T, 128, 1, 4, 32, BOTH)                                       \
    KEY_GRADIENT_TILES(key_only_gradient_tiles, name, T, 256, 1, 2, 16, OF_KEYS)                               \
    KEY_GRADIENT_TILES(value_only_gradient_tiles, name, T, 256, 1, 2, 16, OF_VALUES)
ATTENTION_TILES(bf16, bf16)
ATTENTION_TILES(f16, f16)
