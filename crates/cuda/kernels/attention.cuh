// Scaled dot-product attention with an online softmax, a warp for each query.
//
// A query's result depends on its own keys alone, taken in blocks of 32 from the first key of its document: prefill and
// decoding give the same bits, and so do documents packed into one row and documents alone.
#pragma once

#include "number.cuh"

struct Geometry {
    uint64_t batch, heads, kv_heads, queries, keys, width;
    // Strides of batch, head and row of q, k, v, out and the gradient of out.
    uint64_t q[3], k[3], v[3], out[3], gradient[3];
    double scale, soft_cap;
    // 0 for none.
    uint64_t window;
    int causal, capped;
    // Whether the gradients' blocks are loaded one ahead: there is shared memory for two.
    int ahead, unused;
};

// The warp's sum or maximum, the same in all lanes.
template <class W> __device__ inline W warp_sum(W x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
template <class W> __device__ inline W warp_largest(W x) {
    for (int offset = 16; offset > 0; offset /= 2) {
        W other = __shfl_xor_sync(0xffffffffu, x, offset);
        x = other > x ? other : x;
    }
    return x;
}

// The keys `first .. last` that a query attends to, and the first key of its document. Without documents, the last
// query has the position of the last key.
struct Seen {
    uint64_t document, first, last;
};

__device__ inline Seen seen(const Geometry& g, const int64_t* documents, uint64_t batch, uint64_t query) {
    Seen result = {0, 0, g.keys};
    int64_t position = (int64_t)query + (int64_t)g.keys - (int64_t)g.queries;
    if (g.causal && position < 0) {
        result.last = 0;
        return result;
    }
    // With more queries than keys and no mask by position, the first queries count as being at 0.
    if (position < 0) position = 0;
    if (documents) {
        result.document = (uint64_t)documents[batch * g.keys + position];
        // A document reaches to the start of the next one.
        uint64_t end = position + 1;
        if (!g.causal)
            while (end < g.keys && (uint64_t)documents[batch * g.keys + end] == result.document) end++;
        result.last = end;
    }
    if (g.causal && (uint64_t)position + 1 < result.last) result.last = position + 1;
    result.first = result.document;
    if ((uint64_t)position + 1 - result.document > g.window) result.first = position + 1 - g.window;
    if (result.first > result.last) result.first = result.last;
    return result;
}

// The most elements of a head that one lane holds: heads of up to 512 elements.
#define LANE_WIDTH 16

template <class T, class W>
__device__ inline W dot(const T* a, const T* b, uint64_t width) {
    W sum = 0;
    for (uint64_t i = 0; i < width; i++) sum += W(widen(a[i])) * W(widen(b[i]));
    return sum;
}

template <class W> __device__ inline W capped_score(const Geometry& g, W score) {
    return g.capped ? W(g.soft_cap) * tanh(score / W(g.soft_cap)) : score;
}

// `mask` and `documents` may be null.
template <class T>
__device__ inline void attend(T* out, Wide<T>* logs, const T* q, const T* k, const T* v, const uint8_t* mask,
                              const int64_t* documents, const Geometry& g) {
    typedef Wide<T> W;
    uint64_t row = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (row >= g.batch * g.heads * g.queries) return;
    uint64_t query = row % g.queries, head = row / g.queries % g.heads, batch = row / g.queries / g.heads;
    uint64_t kv_head = head / (g.heads / g.kv_heads);
    const T* of_query = q + batch * g.q[0] + head * g.q[1] + query * g.q[2];
    const T* keys = k + batch * g.k[0] + kv_head * g.k[1];
    const T* values = v + batch * g.v[0] + kv_head * g.v[1];
    Seen range = seen(g, documents, batch, query);
    W most = -infinity<W>(), total = 0, sums[LANE_WIDTH] = {};
    // Blocks begin with the document, so that results do not depend on where it is packed.
    uint64_t start = range.document + (range.first - range.document) / 32 * 32;
    for (; start < range.last; start += 32) {
        uint64_t key = start + lane;
        bool visible = key >= range.first && key < range.last && (!mask || mask[batch * g.keys + key]);
        W score = -infinity<W>();
        if (visible) score = capped_score<W>(g, dot<T, W>(of_query, keys + key * g.k[2], g.width) * W(g.scale));
        W largest = warp_largest<W>(score);
        bool broken = __any_sync(0xffffffffu, score != score);
        W here = largest > most ? largest : most;
        if (broken) {
            total = not_a_number<W>();
            continue;
        }
        if (here == -infinity<W>()) continue;
        W weight = exp(score - here), shrink = exp(most - here);
        total = total * shrink + warp_sum<W>(weight);
        most = here;
        for (int n = 0; n < LANE_WIDTH; n++) sums[n] *= shrink;
        uint64_t count = range.last - start < 32 ? range.last - start : 32;
        for (uint64_t i = 0; i < count; i++) {
            W w = __shfl_sync(0xffffffffu, weight, (int)i);
            if (w == W(0)) continue;
            const T* value = values + (start + i) * g.v[2];
            for (int n = 0; n * 32 + lane < g.width; n++) sums[n] += w * W(widen(value[n * 32 + lane]));
        }
    }
    // A query without keys gets zeros.
    W scale = total > W(0) ? W(1) / total : W(0);
    T* result = out + batch * g.out[0] + head * g.out[1] + query * g.out[2];
    for (int n = 0; n * 32 + lane < g.width; n++)
        result[n * 32 + lane] = narrow<T>(total != total ? not_a_number<W>() : sums[n] * scale);
    if (lane == 0) logs[row] = total > W(0) ? most + log(total) : (total != total ? total : infinity<W>());
}

// The gradient of queries, a warp for each; also the dot products of results and their gradients.
template <class T>
__device__ inline void query_gradient(T* of_q, Wide<T>* dots, const T* q, const T* k, const T* v, const T* out,
                                      const T* gradient, const Wide<T>* logs, const uint8_t* mask,
                                      const int64_t* documents, const Geometry& g) {
    typedef Wide<T> W;
    uint64_t row = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (row >= g.batch * g.heads * g.queries) return;
    uint64_t query = row % g.queries, head = row / g.queries % g.heads, batch = row / g.queries / g.heads;
    uint64_t kv_head = head / (g.heads / g.kv_heads);
    const T* of_query = q + batch * g.q[0] + head * g.q[1] + query * g.q[2];
    const T* keys = k + batch * g.k[0] + kv_head * g.k[1];
    const T* values = v + batch * g.v[0] + kv_head * g.v[1];
    const T* result = out + batch * g.out[0] + head * g.out[1] + query * g.out[2];
    const T* d = gradient + batch * g.gradient[0] + head * g.gradient[1] + query * g.gradient[2];
    W share = 0;
    for (uint64_t i = lane; i < g.width; i += 32) share += W(widen(result[i])) * W(widen(d[i]));
    W of_row = warp_sum<W>(share), log_sum = logs[row], sums[LANE_WIDTH] = {};
    if (lane == 0) dots[row] = of_row;
    Seen range = seen(g, documents, batch, query);
    uint64_t start = range.document + (range.first - range.document) / 32 * 32;
    for (; start < range.last; start += 32) {
        uint64_t key = start + lane;
        bool visible = key >= range.first && key < range.last && (!mask || mask[batch * g.keys + key]);
        W slope = 0;
        if (visible) {
            W score = capped_score<W>(g, dot<T, W>(of_query, keys + key * g.k[2], g.width) * W(g.scale));
            W weight = exp(score - log_sum);
            W steep = g.capped ? W(1) - (score / W(g.soft_cap)) * (score / W(g.soft_cap)) : W(1);
            slope = weight * (dot<T, W>(d, values + key * g.v[2], g.width) - of_row) * W(g.scale) * steep;
        }
        uint64_t count = range.last - start < 32 ? range.last - start : 32;
        for (uint64_t i = 0; i < count; i++) {
            W s = __shfl_sync(0xffffffffu, slope, (int)i);
            if (s == W(0)) continue;
            const T* key_row = keys + (start + i) * g.k[2];
            for (int n = 0; n * 32 + lane < g.width; n++) sums[n] += s * W(widen(key_row[n * 32 + lane]));
        }
    }
    // Stored as `[batch, queries, heads, width]`.
    T* target = of_q + ((batch * g.queries + query) * g.heads + head) * g.width;
    for (int n = 0; n * 32 + lane < g.width; n++) target[n * 32 + lane] = narrow<T>(sums[n]);
}

// The gradients of keys and values, a warp for each key: over the heads that share it, then over its queries, in order.
template <class T>
__device__ inline void key_gradient(T* of_k, T* of_v, const T* q, const T* k, const T* v, const T* gradient,
                                    const Wide<T>* logs, const Wide<T>* dots, const uint8_t* mask,
                                    const int64_t* documents, const Geometry& g) {
    typedef Wide<T> W;
    uint64_t row = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (row >= g.batch * g.kv_heads * g.keys) return;
    uint64_t key = row % g.keys, kv_head = row / g.keys % g.kv_heads, batch = row / g.keys / g.kv_heads;
    uint64_t group = g.heads / g.kv_heads;
    const T* key_row = k + batch * g.k[0] + kv_head * g.k[1] + key * g.k[2];
    const T* value_row = v + batch * g.v[0] + kv_head * g.v[1] + key * g.v[2];
    bool hidden = mask && !mask[batch * g.keys + key];
    W keys[LANE_WIDTH] = {}, values[LANE_WIDTH] = {};
    for (uint64_t member = 0; !hidden && member < group; member++) {
        uint64_t head = kv_head * group + member;
        for (uint64_t start = 0; start < g.queries; start += 32) {
            uint64_t query = start + lane;
            W weight = 0, slope = 0;
            if (query < g.queries) {
                Seen range = seen(g, documents, batch, query);
                if (key >= range.first && key < range.last) {
                    uint64_t number = (batch * g.heads + head) * g.queries + query;
                    const T* of_query = q + batch * g.q[0] + head * g.q[1] + query * g.q[2];
                    const T* d = gradient + batch * g.gradient[0] + head * g.gradient[1] + query * g.gradient[2];
                    W score = capped_score<W>(g, dot<T, W>(of_query, key_row, g.width) * W(g.scale));
                    W steep = g.capped ? W(1) - (score / W(g.soft_cap)) * (score / W(g.soft_cap)) : W(1);
                    weight = exp(score - logs[number]);
                    slope = weight * (dot<T, W>(d, value_row, g.width) - dots[number]) * W(g.scale) * steep;
                }
            }
            if (!__any_sync(0xffffffffu, weight != W(0))) continue;
            uint64_t count = g.queries - start < 32 ? g.queries - start : 32;
            for (uint64_t i = 0; i < count; i++) {
                W w = __shfl_sync(0xffffffffu, weight, (int)i), s = __shfl_sync(0xffffffffu, slope, (int)i);
                if (w == W(0)) continue;
                const T* of_query = q + batch * g.q[0] + head * g.q[1] + (start + i) * g.q[2];
                const T* d = gradient + batch * g.gradient[0] + head * g.gradient[1] + (start + i) * g.gradient[2];
                for (int n = 0; n * 32 + lane < g.width; n++) {
                    keys[n] += s * W(widen(of_query[n * 32 + lane]));
                    values[n] += w * W(widen(d[n * 32 + lane]));
                }
            }
        }
    }
    // Stored as `[batch, keys, heads, width]`.
    uint64_t target = ((batch * g.keys + key) * g.kv_heads + kv_head) * g.width;
    for (int n = 0; n * 32 + lane < g.width; n++) {
        of_k[target + n * 32 + lane] = narrow<T>(keys[n]);
        of_v[target + n * 32 + lane] = narrow<T>(values[n]);
    }
}

#define ATTENTION(name, T)                                                                                     \
    extern "C" __global__ void attention_##name(T* out, Wide<T>* logs, const T* q, const T* k, const T* v,     \
                                                const uint8_t* mask, const int64_t* documents, Geometry g) {   \
        attend<T>(out, logs, q, k, v, mask, documents, g);                                                     \
    }                                                                                                          \
    extern "C" __global__ void attention_query_gradient_##name(                                                \
        T* of_q, Wide<T>* dots, const T* q, const T* k, const T* v, const T* out, const T* gradient,           \
        const Wide<T>* logs, const uint8_t* mask, const int64_t* documents, Geometry g) {                      \
        query_gradient<T>(of_q, dots, q, k, v, out, gradient, logs, mask, documents, g);                       \
    }                                                                                                          \
    extern "C" __global__ void attention_key_gradient_##name(                                                  \
        T* of_k, T* of_v, const T* q, const T* k, const T* v, const T* gradient, const Wide<T>* logs,          \
        const Wide<T>* dots, const uint8_t* mask, const int64_t* documents, Geometry g) {                      \
        key_gradient<T>(of_k, of_v, q, k, v, gradient, logs, dots, mask, documents, g);                        \
    }
FOR_FLOATS(ATTENTION)
