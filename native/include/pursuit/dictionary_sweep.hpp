// Sweeps of the dictionary update: every atom in turn, the others fixed.
//
//     d_j <- P(d_j + (B_j - A_j D - r_j d_j) / (A_jj + r_j))
//
// A (q, q) and B (q, m) are the statistics, r_j a ridge, and P the projection onto the constraints of
// the atom: non-negative entries, a norm of at most one, both or none.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "arrays.hpp"
#include "product.hpp"

namespace pursuit {

/// What is given, with the constraints of each atom, (q,).
template <class T>
struct DictionaryStatistics {
    Matrix<const T> a;  // (q, q)
    Matrix<const T> b;  // (q, m)
    Vector<const T> ridge;
    Vector<const bool> ball;
    Vector<const bool> nonnegative;
    double smallest;  // atoms with A_jj <= smallest are not changed
};

template <class T>
class DictionarySweep {
public:
    DictionarySweep(const DictionaryStatistics<T>& statistics, Matrix<T> atoms)
        : s(statistics),
          atoms(atoms),
          m(atoms.columns),
          block(sizeof(T) * atoms.rows * m > LARGE ? 4 * BLOCK_ROWS : BLOCK_ROWS),
          slopes(static_cast<std::size_t>(std::min(block, atoms.rows)) * m),
          change(m) {}

    void run(std::int64_t sweeps) {
        for (std::int64_t sweep = 0; sweep < sweeps; sweep++) {
            for (int start = 0; start < atoms.rows; start += block) {
                update_block(start, std::min(start + block, atoms.rows));
            }
        }
    }

private:
    // a dictionary of more bytes does not stay in the cache, where it is read once for each block
    static constexpr std::size_t LARGE = 1 << 19;

    const DictionaryStatistics<T> s;
    const Matrix<T> atoms;
    const int m;
    const int block;        // atoms that are updated between two products with all atoms
    std::vector<T> slopes;  // rows of B - A D
    std::vector<T> change;

    T* slope(int row) { return slopes.data() + static_cast<std::size_t>(row) * m; }

    void update_block(int start, int stop) {
        find_slopes(start, stop - start);
        for (int j = start; j < stop; j++) {
            const T curvature = s.a(j, j) + s.ridge[j];
            // the reciprocal of a subnormal number may be infinite
            if (s.a(j, j) <= s.smallest || curvature < std::numeric_limits<T>::min()) continue;
            update(j, slope(j - start), 1 / curvature);
            // the slopes of the block's remaining atoms depend on this one
            for (int k = j + 1; k < stop; k++) {
                T* PURSUIT_RESTRICT target = slope(k - start);
                const T* PURSUIT_RESTRICT moved = change.data();
                const T weight = s.a(k, j);
                PURSUIT_SIMD
                for (int i = 0; i < m; i++) target[i] -= weight * moved[i];
            }
        }
    }

    /// slopes = B - A D for some atoms.
    void find_slopes(int start, int count) {
        int column = find_columns<BLOCK_COLUMNS<T>>(start, count, 0);
        column = find_columns<LANES<T>>(start, count, column);
        find_columns<1>(start, count, column);
    }

    /// As many columns of the slopes as possible; return the first that is left.
    template <int COLUMNS>
    int find_columns(int start, int count, int column) {
        for (; column + COLUMNS <= m; column += COLUMNS) {
            for (int row = 0; row < count; row += BLOCK_ROWS) {
                find_block<BLOCK_ROWS, COLUMNS>(start, row, count, column);
            }
        }
        return column;
    }

    /// ROWS rows of some columns, or those that are left.
    template <int ROWS, int COLUMNS>
    void find_block(int start, int row, int count, int column) {
        if constexpr (ROWS > 1) {
            if (count - row < ROWS) return find_block<ROWS - 1, COLUMNS>(start, row, count, column);
        }
        T sums[ROWS][COLUMNS];
        for (auto& sum : sums) clear<COLUMNS>(sum);
        add_block(atoms.rows, s.a.row(start + row), s.a.stride, atoms.data + column, atoms.stride, sums);
        for (int i = 0; i < ROWS; i++) {
            const T* PURSUIT_RESTRICT b = s.b.row(start + row + i) + column;
            T* PURSUIT_RESTRICT target = slope(row + i) + column;
            PURSUIT_SIMD
            for (int j = 0; j < COLUMNS; j++) target[j] = b[j] - sums[i][j];
        }
    }

    /// Update one atom from its row of B - A D, and write by how much it changed.
    void update(int j, const T* PURSUIT_RESTRICT slope, T inverse) {
        T* PURSUIT_RESTRICT atom = atoms.row(j);
        T* PURSUIT_RESTRICT moved = change.data();
        const T ridge = s.ridge[j];
        PURSUIT_SIMD
        for (int i = 0; i < m; i++) moved[i] = atom[i] + (slope[i] - ridge * atom[i]) * inverse;
        if (s.nonnegative[j]) {
            PURSUIT_SIMD
            for (int i = 0; i < m; i++) moved[i] = moved[i] < 0 ? T(0) : moved[i];
        }
        T factor = 1;
        if (s.ball[j]) {
            double square = 0;
            PURSUIT_SIMD_REDUCE(+ : square)
            for (int i = 0; i < m; i++) square += static_cast<double>(moved[i]) * moved[i];
            if (square > 1) factor = static_cast<T>(1 / std::sqrt(square));
        }
        PURSUIT_SIMD
        for (int i = 0; i < m; i++) {
            const T value = factor * moved[i];
            moved[i] = value - atom[i];
            atom[i] = value;
        }
    }
};

}  // namespace pursuit
