// Correlations of signals with atoms, X D', on the calling thread.
#pragma once

#include <algorithm>
#include <vector>

#include "arrays.hpp"
#include "product.hpp"

namespace pursuit {

template <class T>
class Correlator {
public:
    Correlator(Matrix<const T> x, Matrix<const T> atoms, Matrix<T> out) : x(x), atoms(atoms), out(out) {}

    void run() {
        if (x.rows < FEW) {
            for (int row = 0; row < x.rows; row += 2) without_packing(row, std::min(row + 1, x.rows - 1));
            return;
        }
        panel.resize(static_cast<std::size_t>(atoms.columns) * COLUMNS);
        for (int first = 0; first < atoms.rows; first += COLUMNS) {
            const int count = std::min(COLUMNS, atoms.rows - first);
            pack(first, count);
            int row = 0;
            for (; row + BLOCK_ROWS <= x.rows; row += BLOCK_ROWS) block<BLOCK_ROWS>(row, first, count);
            last_rows<BLOCK_ROWS - 1>(row, first, count);
        }
    }

private:
    static constexpr int COLUMNS = BLOCK_COLUMNS<T>;
    // below this number of signals, packing the atoms takes longer than it saves
    static constexpr int FEW = 12;

    const Matrix<const T> x, atoms;
    const Matrix<T> out;
    std::vector<T> panel;  // some atoms transposed, (m, COLUMNS)

    /// Two signals, four atoms at a time; an odd last signal is given twice.
    void without_packing(int row, int other) {
        const T *signal = x.row(row), *second = x.row(other);
        int i = 0;
        for (; i + 4 <= atoms.rows; i += 4) {
            T sums[4], others[4];
            inner_products(x.columns, atoms.row(i), atoms.stride, signal, second, sums, others);
            copy<4>(sums, &out(row, i));
            copy<4>(others, &out(other, i));
        }
        for (; i < atoms.rows; i++) {
            out(row, i) = inner_product(x.columns, atoms.row(i), signal);
            out(other, i) = inner_product(x.columns, atoms.row(i), second);
        }
    }

    /// Transpose some atoms, with zeros where there are fewer than a panel holds.
    void pack(int first, int count) {
        if (count < COLUMNS) std::fill(panel.begin(), panel.end(), T(0));
        for (int i = 0; i < count; i++) {
            const T* PURSUIT_RESTRICT atom = atoms.row(first + i);
            T* PURSUIT_RESTRICT column = panel.data() + i;
            for (int j = 0; j < atoms.columns; j++) column[j * COLUMNS] = atom[j];
        }
    }

    template <int ROWS>
    void block(int row, int first, int count) {
        T sums[ROWS][COLUMNS];
        for (auto& sum : sums) clear<COLUMNS>(sum);
        add_block(x.columns, x.row(row), x.stride, panel.data(), COLUMNS, sums);
        for (int i = 0; i < ROWS; i++) {
            T* target = out.row(row + i) + first;
            if (count == COLUMNS) {
                copy<COLUMNS>(sums[i], target);
            } else {
                for (int j = 0; j < count; j++) target[j] = sums[i][j];
            }
        }
    }

    /// The last signals, fewer than a full block of them.
    template <int ROWS>
    void last_rows(int row, int first, int count) {
        if constexpr (ROWS > 0) {
            if (x.rows - row == ROWS) {
                block<ROWS>(row, first, count);
            } else {
                last_rows<ROWS - 1>(row, first, count);
            }
        }
    }
};

/// out = X D', with signals x (n, m), atoms (q, m) and out (n, q).
template <class T>
void correlate(Matrix<const T> x, Matrix<const T> atoms, Matrix<T> out) {
    Correlator<T>(x, atoms, out).run();
}

}  // namespace pursuit
