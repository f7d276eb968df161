// Products of matrices, block by block: the sums of a block stay in registers.
#pragma once

#include <algorithm>
#include <cstddef>

#include "arrays.hpp"
#include "simd.hpp"

namespace pursuit {

/// Rows and columns of a block: its sums, two vectors of the second factor and one value of the first
/// fill sixteen registers.
constexpr int BLOCK_ROWS = 6;
template <class T>
constexpr int BLOCK_COLUMNS = 2 * LANES<T>;

/// Copy a fixed number of values, through registers.
template <int COUNT, class T>
inline void copy(const T* source, T* target) {
    PURSUIT_SIMD
    for (int j = 0; j < COUNT; j++) target[j] = source[j];
}

/// Set a fixed number of values to zero.
template <int COUNT, class T>
inline void clear(T* target) {
    PURSUIT_SIMD
    for (int j = 0; j < COUNT; j++) target[j] = 0;
}

/// sums += A B for one block, where A has `inner` columns and B has `inner` rows.
template <int ROWS, int COLUMNS, class T>
inline void add_block(int inner, const T* PURSUIT_RESTRICT a, std::ptrdiff_t a_stride,
                      const T* PURSUIT_RESTRICT b, std::ptrdiff_t b_stride, T (&sums)[ROWS][COLUMNS]) {
    for (int k = 0; k < inner; k++, b += b_stride) {
        for (int i = 0; i < ROWS; i++) {
            const T factor = a[i * a_stride + k];
            PURSUIT_SIMD
            for (int j = 0; j < COLUMNS; j++) sums[i][j] += factor * b[j];
        }
    }
}

/// The inner product of two vectors.
template <class T>
inline T inner_product(int length, const T* PURSUIT_RESTRICT a, const T* PURSUIT_RESTRICT b) {
    T sum = 0;
    PURSUIT_SIMD_REDUCE(+ : sum)
    for (int j = 0; j < length; j++) sum += a[j] * b[j];
    return sum;
}

/// The inner products of four rows of a matrix with two vectors.
template <class T>
inline void inner_products(int length, const T* a, std::ptrdiff_t a_stride, const T* PURSUIT_RESTRICT v,
                           const T* PURSUIT_RESTRICT w, T (&with_v)[4], T (&with_w)[4]) {
    const T* PURSUIT_RESTRICT a0 = a;
    const T* PURSUIT_RESTRICT a1 = a0 + a_stride;
    const T* PURSUIT_RESTRICT a2 = a1 + a_stride;
    const T* PURSUIT_RESTRICT a3 = a2 + a_stride;
    T v0 = 0, v1 = 0, v2 = 0, v3 = 0, w0 = 0, w1 = 0, w2 = 0, w3 = 0;
    PURSUIT_SIMD_REDUCE(+ : v0, v1, v2, v3, w0, w1, w2, w3)
    for (int j = 0; j < length; j++) {
        v0 += a0[j] * v[j];
        v1 += a1[j] * v[j];
        v2 += a2[j] * v[j];
        v3 += a3[j] * v[j];
        w0 += a0[j] * w[j];
        w1 += a1[j] * w[j];
        w2 += a2[j] * w[j];
        w3 += a3[j] * w[j];
    }
    with_v[0] = v0, with_v[1] = v1, with_v[2] = v2, with_v[3] = v3;
    with_w[0] = w0, with_w[1] = w1, with_w[2] = w2, with_w[3] = w3;
}

/// out = C + sign * A B for matrices with long rows; `out` may be C, and does not overlap with A and B.
///
/// Two rows are summed at a time, from four rows of B: long rows are best read one after the other.
template <class T>
class ProductSum {
public:
    ProductSum(Matrix<const T> c, T sign, Matrix<const T> a, Matrix<const T> b, Matrix<T> out)
        : c(c), a(a), b(b), out(out), sign(sign) {
        for (int i = 0; b.rows == 0 && i < c.rows; i++) std::copy_n(c.row(i), c.columns, out.row(i));
        for (int k = 0; k < b.rows; k += INNER) add<INNER>(k);
    }

private:
    static constexpr int INNER = 4;

    Matrix<const T> c;
    const Matrix<const T> a, b;
    const Matrix<T> out;
    const T sign;

    /// Add the products with COUNT rows of B, or with those that are left.
    template <int COUNT>
    void add(int k) {
        if constexpr (COUNT > 1) {
            if (b.rows - k < COUNT) return add<COUNT - 1>(k);
        }
        int i = 0;
        for (; i + 2 <= c.rows; i += 2) add_to_rows<2, COUNT>(i, k);
        if (i < c.rows) add_to_rows<1, COUNT>(i, k);
        c = {out.data, out.rows, out.columns, out.stride};
    }

    template <int ROWS, int COUNT>
    void add_to_rows(int row, int k) const {
        T factors[ROWS][COUNT];
        for (int i = 0; i < ROWS; i++) {
            for (int p = 0; p < COUNT; p++) factors[i][p] = sign * a(row + i, k + p);
        }
        const T *start = c.row(row), *values = b.row(k);
        T* sums = out.row(row);
        PURSUIT_SIMD
        for (int j = 0; j < out.columns; j++) {
            for (int i = 0; i < ROWS; i++) {
                T sum = start[i * c.stride + j];
                for (int p = 0; p < COUNT; p++) sum += factors[i][p] * values[p * b.stride + j];
                sums[i * out.stride + j] = sum;
            }
        }
    }
};

}  // namespace pursuit
