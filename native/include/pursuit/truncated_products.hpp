// Products with truncated residuals, in one pass over the data.
//
// T are the residuals R = X - L M', truncated: clipped to [lower, upper] or, with limits by row and
// column, set to zero where they exceed both of their limits. NaN becomes zero. The products T V' and
// U' T are summed tile by tile, so that T is never stored.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "product.hpp"

namespace pursuit {

template <class T>
struct TruncatedResiduals {
    Matrix<const T> x;          // (n, m)
    Matrix<const T> left;       // L, (n, k)
    Matrix<const T> right;      // M', (k, m)
    double lower, upper;        // without limits
    bool rejects;               // whether there are limits
    Vector<const T> by_row;     // (n,)
    Vector<const T> by_column;  // (m,)
};

template <class T>
struct TruncatedFactors {
    Matrix<const T> vectors;  // V, (p, m)
    Matrix<const T> basis;    // U, (n, s)
    Matrix<T> along_rows;     // T V' is added to it, (n, p)
    Matrix<T> along_columns;  // U' T is added to it, (s, m)
};

template <class T>
class TruncatedProducts {
public:
    TruncatedProducts(const TruncatedResiduals<T>& residuals, const TruncatedFactors<T>& factors)
        : r(residuals),
          f(factors),
          stride(std::min(COLUMNS, residuals.x.columns) + PADDING),
          tile(static_cast<std::size_t>(ROWS) * stride),
          transposed(static_cast<std::size_t>(ROWS) * factors.basis.columns) {}

    /// Return ||T||_F^2 and, if residuals are clipped, sum |R - T| over the entries that are not NaN.
    std::pair<double, double> run() {
        for (start = 0; start < r.x.columns; start += COLUMNS) {
            length = std::min(COLUMNS, r.x.columns - start);
            int row = 0;
            for (; row + ROWS <= r.x.rows; row += ROWS) some_rows<ROWS>(row);
            for (; row < r.x.rows; row++) some_rows<1>(row);
        }
        return {energy, excess};
    }

private:
    // columns of a tile: its parts of all factors stay in the second-level cache
    static constexpr int COLUMNS = 2048;
    // rows that share the loads of the factors
    static constexpr int ROWS = 4;
    // rows whose distance is a power of two would compete for the same lines of the cache
    static constexpr int PADDING = 24;

    const TruncatedResiduals<T> r;
    const TruncatedFactors<T> f;
    const int stride;
    std::vector<T> tile;        // truncated residuals, (ROWS, stride)
    std::vector<T> transposed;  // some rows of U, (s, ROWS)
    int start = 0, length = 0;
    double energy = 0, excess = 0;

    T* tile_row(int i) { return tile.data() + static_cast<std::size_t>(i) * stride; }

    template <int COUNT>
    void some_rows(int row) {
        ProductSum<T>({r.x.row(row) + start, COUNT, length, r.x.stride}, -1,
                      {r.left.row(row), COUNT, r.left.columns, r.left.stride},
                      {r.right.data + start, r.right.rows, length, r.right.stride},
                      {tile.data(), COUNT, length, stride});
        for (int i = 0; i < COUNT; i++) {
            if (r.rejects) {
                reject(tile_row(i), r.by_row[row + i]);
            } else {
                clip(tile_row(i));
            }
        }
        times<COUNT>(row);
        transposed_times<COUNT>(row);
    }

    void clip(T* PURSUIT_RESTRICT values) {
        const T low = static_cast<T>(r.lower), high = static_cast<T>(r.upper);
        T square = 0, removed = 0;
        PURSUIT_SIMD_REDUCE(+ : square, removed)
        for (int j = 0; j < length; j++) {
            const T given = values[j] == values[j] ? values[j] : T(0);
            const T raised = given > low ? given : low;
            const T value = raised < high ? raised : high;
            values[j] = value;
            square += value * value;
            removed += std::abs(given - value);
        }
        energy += square;
        excess += removed;
    }

    void reject(T* PURSUIT_RESTRICT values, T limit) {
        const T* PURSUIT_RESTRICT limits = r.by_column.data + start;
        T square = 0;
        PURSUIT_SIMD_REDUCE(+ : square)
        for (int j = 0; j < length; j++) {
            const T most = limits[j] > limit ? limits[j] : limit;
            const T value = std::abs(values[j]) <= most ? values[j] : T(0);
            values[j] = value;
            square += value * value;
        }
        energy += square;
    }

    /// Add the products of one row, or of four, with all vectors, two at a time.
    template <int COUNT>
    void times(int row) {
        for (int p = 0; p < f.vectors.rows; p += COUNT == 4 ? 2 : 1) {
            const T* v = f.vectors.row(p) + start;
            if constexpr (COUNT == 4) {
                const int other = std::min(p + 1, f.vectors.rows - 1);
                T sums[4], others[4];
                inner_products(length, tile.data(), stride, v, f.vectors.row(other) + start, sums, others);
                for (int i = 0; i < 4; i++) {
                    f.along_rows(row + i, p) += sums[i];
                    if (other > p) f.along_rows(row + i, other) += others[i];
                }
            } else {
                f.along_rows(row, p) += inner_product(length, tile.data(), v);
            }
        }
    }

    /// Add the products of the basis, transposed, with some rows.
    template <int COUNT>
    void transposed_times(int row) {
        const int size = f.basis.columns;
        for (int p = 0; p < size; p++) {
            for (int i = 0; i < COUNT; i++)
                transposed[static_cast<std::size_t>(p) * COUNT + i] = f.basis(row + i, p);
        }
        const Matrix<T> target{f.along_columns.data + start, size, length, f.along_columns.stride};
        ProductSum<T>({target.data, size, length, target.stride}, 1, {transposed.data(), size, COUNT},
                      {tile.data(), COUNT, length, stride}, target);
    }
};

}  // namespace pursuit
