// Cholesky factorisation of small matrices: A = U'U, row by row over the upper triangle of A.
//
// Rows have a stride of full registers, and there are as many rows as a multiple of four; what is
// left of the diagonal and beyond n has no meaning, but is overwritten.
#pragma once

#include <algorithm>
#include <cmath>

#include "arrays.hpp"
#include "lanes.hpp"

namespace pursuit {

class Cholesky {
public:
    explicit Cholesky(int capacity)
        : stride(padded(capacity, PAD)), memory(static_cast<std::size_t>(stride) * stride) {}

    double* row(int i) { return memory.data() + static_cast<std::size_t>(i) * stride; }

    /// Replace A by U with its diagonal inverted; return false if A is not positive definite.
    bool factorise(int n) {
        for (int top = 0; top < n; top += ROWS) {
            for (int j = top / WIDTH * WIDTH; j < n; j += WIDTH) subtract_finished(top, j);
            for (int i = top; i < std::min(top + ROWS, n); i++) {
                const int first = i / LANES<double> * LANES<double>, length = padded(n, LANES<double>) - first;
                double* current = row(i);
                for (int k = top; k < i; k++) add_multiple(-row(k)[i], row(k) + first, current + first, length);
                const double pivot = current[i];
                if (!(pivot > 0)) return false;
                const double inverse = 1 / std::sqrt(pivot);
                PURSUIT_SIMD
                for (int j = i + 1; j < n; j++) current[j] *= inverse;
                current[i] = inverse;
            }
        }
        return true;
    }

    /// Solve U'U p = target in place.
    void substitute(int n, double* PURSUIT_RESTRICT target) {
        for (int i = 0; i < n; i++) {
            const double* PURSUIT_RESTRICT current = row(i);
            const double value = target[i] * current[i];
            target[i] = value;
            PURSUIT_SIMD
            for (int j = i + 1; j < n; j++) target[j] -= value * current[j];
        }
        for (int i = n - 1; i >= 0; i--) {
            const double* PURSUIT_RESTRICT current = row(i);
            double sum = target[i];
            PURSUIT_SIMD_REDUCE(+ : sum)
            for (int j = i + 1; j < n; j++) sum -= current[j] * target[j];
            target[i] = sum * current[i];
        }
    }

private:
    static constexpr int ROWS = 4, REGISTERS = 2, WIDTH = REGISTERS * LANES<double>, PAD = 8;

    const int stride;
    Lines<double> memory;

    /// Subtract the products of all rows above `top` from four rows, on the columns of two registers.
    void subtract_finished(int top, int j) {
        Lanes<double> sums[ROWS][REGISTERS];
        PURSUIT_UNROLL
        for (int r = 0; r < ROWS; r++)
            PURSUIT_UNROLL
            for (int v = 0; v < REGISTERS; v++) sums[r][v] = load(row(top + r) + j + v * LANES<double>);
        for (int k = 0; k < top; k++) {
            const double* finished = row(k);
            PURSUIT_UNROLL
            for (int v = 0; v < REGISTERS; v++) {
                const Lanes<double> values = load(finished + j + v * LANES<double>);
                PURSUIT_UNROLL
                for (int r = 0; r < ROWS; r++) sums[r][v] -= finished[top + r] * values;
            }
        }
        PURSUIT_UNROLL
        for (int r = 0; r < ROWS; r++)
            PURSUIT_UNROLL
            for (int v = 0; v < REGISTERS; v++) store<double>(sums[r][v], row(top + r) + j + v * LANES<double>);
    }
};

}  // namespace pursuit
