// The operations of machine.cuh, lane by lane.
#pragma once

#define DYNAMIC_SHARED(name) unsigned char* name = emulated_shared()

template <class T> inline float half_of(uint32_t pair, int which) {
    uint16_t bits = (uint16_t)(pair >> (16 * which));
    T value;
    memcpy(&value, &bits, 2);
    return widen(value);
}

template <class T> inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], T) {
    struct Operands { uint32_t a[4], b[2]; } own;
    memcpy(own.a, a, sizeof(own.a));
    memcpy(own.b, b, sizeof(own.b));
    unsigned char* space = emulated_exchange();
    memcpy(space + emulated_lane() * 64, &own, sizeof(own));
    emulated_warp("multiply_add");
    unsigned group = emulated_lane() / 4, member = emulated_lane() % 4;
    for (unsigned place = 0; place < 4; place++) {
        unsigned row = group + place / 2 * 8, column = member * 2 + place % 2;
        double sum = c[place];
        for (unsigned k = 0; k < 16; k++) {
            Operands left, right;
            memcpy(&left, space + (row % 8 * 4 + k % 8 / 2) * 64, sizeof(left));
            memcpy(&right, space + (column * 4 + k % 8 / 2) * 64, sizeof(right));
            sum += (double)half_of<T>(left.a[row / 8 + k / 8 * 2], k % 2) * half_of<T>(right.b[k / 8], k % 2);
        }
        c[place] = (float)sum;
    }
    emulated_warp("multiply_add");
}

// A pair of elements of each of four matrices, whose rows the lanes name.
inline void emulated_matrices(uint32_t (&out)[4], const void* row, bool transposed) {
    unsigned char* space = emulated_exchange();
    memcpy(space + emulated_lane() * 64, &row, sizeof(row));
    emulated_warp("load_matrices");
    unsigned group = emulated_lane() / 4, member = emulated_lane() % 4;
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        out[matrix] = 0;
        for (unsigned which = 0; which < 2; which++) {
            unsigned at = transposed ? member * 2 + which : group, column = transposed ? group : member * 2 + which;
            const uint16_t* start;
            memcpy(&start, space + (matrix * 8 + at) * 64, sizeof(start));
            out[matrix] |= (uint32_t)start[column] << (16 * which);
        }
    }
    emulated_warp("load_matrices");
}
inline void load_matrices(uint32_t (&out)[4], const void* row) { emulated_matrices(out, row, false); }
inline void load_transposed(uint32_t (&out)[4], const void* row) { emulated_matrices(out, row, true); }

// Done at once, which is one of the orders that are allowed.
inline void start_copy(void* to, const void* from, bool inside) {
    if (inside) memcpy(to, from, 16);
    else memset(to, 0, 16);
}
inline void start_copy_of_word(void* to, const void* from, bool inside) {
    if (inside) memcpy(to, from, 4);
    else memset(to, 0, 4);
}
inline uint32_t shared_address(const void* at) { return (uint32_t)((const unsigned char*)at - emulated_shared()); }
inline void start_copy_at(uint32_t to, const void* from, bool inside) { start_copy(emulated_shared() + to, from, inside); }
inline void end_copies() {}
template <int LEFT> inline void wait_for_copies() {}

inline float power_of_two(float x) { return exp2f(x); }
