// Small positive definite systems A p = b by A = U'DU, U with a unit diagonal (Cholesky without roots).
//
// Rows are eliminated in order, four at a time, and the right side is one more column of A, so that
// the elimination solves U'D y = b on the way.
#pragma once

#include <algorithm>

#include "arrays.hpp"
#include "lanes.hpp"

namespace pursuit {

class Cholesky {
public:
    /// Memory for systems of at most `capacity` unknowns.
    explicit Cholesky(int capacity) : stride(padded(capacity + 1, PAD)), matrix(size()), factor(size()) {}

    /// Row i of A, to be written from the diagonal on; entry n is that of the right side b.
    double* row(int i) { return matrix.data() + i * stride; }

    /// Solve the first n rows; return false if A is not positive definite. A is overwritten.
    bool solve(int n, double* solution) {
        for (int top = 0; top < n; top += ROWS) {
            for (int j = top / WIDTH * WIDTH; j <= n; j += WIDTH) subtract_finished(top, j);
            for (int i = top; i < std::min(top + ROWS, n); i++)
                if (!eliminate(i, top, n)) return false;
        }
        for (int top = (n - 1) / ROWS * ROWS; top >= 0; top -= ROWS) substitute(top, n, solution);
        return true;
    }

private:
    static constexpr int ROWS = 4, REGISTERS = 2, WIDTH = REGISTERS * LANES<double>, PAD = std::max(8, WIDTH);

    const std::ptrdiff_t stride;
    AlignedVector<double> matrix;  // of finished rows: DU; left of the diagonal and beyond column n nothing
    AlignedVector<double> factor;  // U

    std::size_t size() const { return static_cast<std::size_t>(stride) * stride; }
    double* unit(int i) { return factor.data() + i * stride; }

    /// Subtract what all rows above `top` contribute to four rows, on the columns of some registers.
    void subtract_finished(int top, int j) {
        Pack<double> sums[ROWS][REGISTERS];
        PURSUIT_UNROLL
        for (int r = 0; r < ROWS; r++) {
            PURSUIT_UNROLL
            for (int v = 0; v < REGISTERS; v++) sums[r][v] = load(row(top + r) + j + v * LANES<double>);
        }
        const double* finished = matrix.data() + j;
        const double* factors = factor.data() + top;
        for (int k = 0; k < top; k++, finished += stride, factors += stride) {
            PURSUIT_UNROLL
            for (int v = 0; v < REGISTERS; v++) {
                const Pack<double> values = load(finished + v * LANES<double>);
                PURSUIT_UNROLL
                for (int r = 0; r < ROWS; r++) sums[r][v] -= factors[r] * values;
            }
        }
        PURSUIT_UNROLL
        for (int r = 0; r < ROWS; r++) {
            PURSUIT_UNROLL
            for (int v = 0; v < REGISTERS; v++) store<double>(row(top + r) + j + v * LANES<double>, sums[r][v]);
        }
    }

    /// Finish row i with the rows from `top` on; return false if its pivot is not positive.
    bool eliminate(int i, int top, int n) {
        const int first = i / LANES<double> * LANES<double>, length = padded(n + 1, LANES<double>) - first;
        double* current = row(i) + first;
        for (int k = top; k < i; k++) add_multiple(-unit(k)[i], row(k) + first, current, length);
        const double pivot = row(i)[i];
        if (!(pivot > 0)) return false;
        const double inverse = 1 / pivot;
        double* scaled = unit(i) + first;
        for (int j = 0; j < length; j += LANES<double>) store<double>(scaled + j, inverse * load(current + j));
        return true;
    }

    /// Solve U p = y on four rows, given p below them.
    void substitute(int top, int n, double* solution) {
        const int end = std::min(top + ROWS, n);
        const double* u = unit(top);
        Pack<double> sums[ROWS] = {};
        int j = top + ROWS;
        for (; j + LANES<double> <= n; j += LANES<double>) {
            const Pack<double> values = load(solution + j);
            PURSUIT_UNROLL
            for (int r = 0; r < ROWS; r++) sums[r] += values * load(u + r * stride + j);
        }
        double rest[ROWS];
        for (int r = 0; r < ROWS; r++) rest[r] = u[r * stride + n] - sum_of<double>(sums[r]);
        for (; j < n; j++)
            for (int r = 0; r < ROWS; r++) rest[r] -= u[r * stride + j] * solution[j];
        for (int i = end - 1; i >= top; i--) {
            double sum = rest[i - top];
            for (int j = i + 1; j < end; j++) sum -= unit(i)[j] * solution[j];
            solution[i] = sum;
        }
    }
};

}  // namespace pursuit
