// Codes of the group Lasso and HiLasso: greedy descent over blocks, and Newton steps on the support.
//
// For each row, with correlations c = D x, Gram matrix G and energy ||x||^2, minimise over z
//
//     1/2 z'Gz - c'z + 1/2 energy + sum_i w_i |z_i| + sum_r v_r ||z_r||,
//
// optionally with z >= 0. Greedy descent over blocks finds the support, Newton steps on that support
// converge, and a duality gap certifies the result, from the residual x - z D, because the sums above
// cancel where it is small. Tests are written so that NaN ends an iteration.
// Infinities keep their meaning: the subdifferential at zero of a non-negative code begins at -inf.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "product.hpp"

namespace pursuit {

/// What all rows share. The coefficients of a block are adjacent.
struct BlockProblem {
    Matrix<const double> atoms;         // D, (q, m)
    Matrix<const double> gram;          // D D' + diag(ridge), (q, q)
    Vector<const double> ridge;         // (q,), non-negative
    Vector<const std::int64_t> starts;  // block r holds starts[r] <= i < starts[r + 1], (R + 1,)
    Vector<const double> w;             // weights of the coefficients, (q,), non-negative
    Vector<const double> v;             // weights of the blocks, (R,), non-negative
    Vector<const double> constants;     // bounds of the eigenvalues of the diagonal blocks, (R,)
    bool nonnegative;
    double tol;             // a row is done when gap <= tol * objective ...
    std::int64_t max_iter;  // ... or after this number of iterations; 0 evaluates the start
    double rounding;        // relative rounding of a sum over atoms and features, see `finish`
    bool single;            // whether codes are rounded to float
};

/// The rows of a tile, and what is written for them.
struct BlockRows {
    Matrix<const double> x;       // (n, m)
    Matrix<const double> c;       // (n, q)
    Vector<const double> energy;  // (n,)
    Matrix<double> codes;         // the start on entry, (n, q)
    Vector<double> objective;
    Vector<double> gap;
    Vector<std::int64_t> iterations;
};

class BlockSolver {
public:
    explicit BlockSolver(const BlockProblem& problem)
        : p(problem),
          gram(problem.gram),
          q(problem.w.size),
          m(problem.atoms.columns),
          blocks(problem.v.size),
          nonnegative(problem.nonnegative),
          tol(problem.tol),
          max_iter(problem.max_iter),
          starts(problem.starts.begin(), problem.starts.end()),
          w(problem.w.begin(), problem.w.end()),
          v(problem.v.begin(), problem.v.end()),
          floor(q),
          inverse_constants(blocks),
          z(q),
          u(q),
          low(q),
          high(q),
          norms(blocks),
          a(q),
          b(q),
          direction(q),
          trial(q),
          trial_u(q),
          support(q),
          seen(blocks),
          residual(m),
          lost(m),
          atom_norms(q),
          hessian(new double[static_cast<std::size_t>(q) * (q + 1 + PIECE)]) {
        for (int r = 0; r < blocks; r++) {
            inverse_constants[r] = 1 / std::max(problem.constants[r], TINY);
            if (starts[r + 1] - starts[r] != 1) continue;
            // in a block of one coefficient the norm is an absolute value
            w[starts[r]] += v[r];
            v[r] = 0;
        }
        for (int i = 0; i < q; i++) {
            floor[i] = nonnegative ? -UNBOUNDED : -w[i];
            atom_norms[i] = std::sqrt(product(p.atoms.row(i), p.atoms.row(i)));
        }
    }

    /// Solve every row. Objective and gap are those of the codes as stored.
    void solve(const BlockRows& rows) {
        for (int k = 0; k < rows.c.rows; k++) {
            c = rows.c.row(k);
            energy = rows.energy[k];
            double* code = rows.codes.row(k);
            begin(code);
            rows.iterations[k] = max_iter > 0 ? solve_row() : 0;
            finish(rows.x.row(k), code, rows.objective[k], rows.gap[k]);
            if (rows.objective[k] <= 0.5 * energy || max_iter == 0) continue;
            clear();  // rounding has made the codes worse than zero
            finish(rows.x.row(k), code, rows.objective[k], rows.gap[k]);
        }
    }

private:
    static constexpr double TINY = std::numeric_limits<double>::min();
    static constexpr double UNBOUNDED = std::numeric_limits<double>::infinity();
    // a pivot below this fraction of its diagonal entry counts as zero ...
    static constexpr double PIVOT = 1e-12;
    // ... and is replaced by this fraction
    static constexpr double FLAT = 1e-10;
    // the longest step of a line search
    static constexpr double FAR_AWAY = 1e12;
    // a full Newton step is accepted at this fraction of the predicted decrease
    static constexpr double SUFFICIENT = 0.1;
    // a line search tries to drop blocks that it shortens below this fraction
    static constexpr double COLLAPSED = 0.1;
    // a greedy sweep ends when the best block promises this fraction of the first
    static constexpr double WORTHWHILE = 1e-2;
    // rounds without progress after which rounding is assumed to be the limit
    static constexpr int PATIENCE = 6;
    // rows of the Hessian are factorised together, in pieces of this length, which stay in registers
    static constexpr int TOGETHER = 4;
    static constexpr int PIECE = 2 * LANES<double>;

    const BlockProblem p;
    const Matrix<const double> gram;
    const int q, m, blocks;
    const bool nonnegative;
    const double tol;
    const std::int64_t max_iter;
    std::vector<int> starts;
    std::vector<double> w, v;
    std::vector<double> floor;  // lower end of the subdifferential of w|z| at zero: -w, or -inf
    std::vector<double> inverse_constants;

    // The iterate: codes z, u = c - G z, and the subdifferential of the penalty at z. In an active block
    // that is the box low <= s <= high, where low = high at non-zero codes; in a block of zeros it is
    // that box plus a ball of radius v_r.
    std::vector<double> z, u, low, high;
    std::vector<double> norms;

    std::vector<double> a;  // factors of rows of the Gram matrix, or a block's correlations at zero
    std::vector<double> b;  // in Newton steps: where the codes cross zero
    std::vector<double> direction, trial, trial_u;
    std::vector<int> support;
    std::vector<std::int64_t> seen;     // the iteration in which a block was last descended
    std::vector<double> residual;       // x - z D
    std::vector<double> lost;           // the part of the signal that is lost by storing the codes
    std::vector<double> atom_norms;     // ||D_i||
    int count = 0;                      // the size of the support
    std::ptrdiff_t stride = 0;          // of the Hessian
    std::unique_ptr<double[]> hessian;  // as large as the largest support, but only touched where used

    // The row in hand.
    const double* c = nullptr;
    double energy = 0;

    double one_sided(double value) const { return nonnegative ? value : std::abs(value); }

    /// x - clip(x, low, high), the soft threshold if low = -high.
    static double excess(double x, double low, double high) {
        const double raised = x > low ? x : low;
        const double clipped = raised < high ? raised : high;
        return x - clipped;
    }

    /// target -= sum_p factors[p] gram[support[p]] for some columns, four rows at a time.
    void subtract_rows(double* PURSUIT_RESTRICT target, const double* factors, int number, int first,
                       int size) const {
        int p = 0;
        for (; p + 4 <= number; p += 4) {
            const double* PURSUIT_RESTRICT g0 = gram.row(support[p]) + first;
            const double* PURSUIT_RESTRICT g1 = gram.row(support[p + 1]) + first;
            const double* PURSUIT_RESTRICT g2 = gram.row(support[p + 2]) + first;
            const double* PURSUIT_RESTRICT g3 = gram.row(support[p + 3]) + first;
            const double f0 = factors[p], f1 = factors[p + 1], f2 = factors[p + 2], f3 = factors[p + 3];
            PURSUIT_SIMD
            for (int j = 0; j < size; j++) target[j] -= (f0 * g0[j] + f1 * g1[j]) + (f2 * g2[j] + f3 * g3[j]);
        }
        for (; p < number; p++) {
            const double* PURSUIT_RESTRICT g = gram.row(support[p]) + first;
            const double f = factors[p];
            PURSUIT_SIMD
            for (int j = 0; j < size; j++) target[j] -= f * g[j];
        }
    }

    /// List the coordinates of the non-zero codes, without branches.
    int gather_support() {
        int number = 0;
        for (int i = 0; i < q; i++) {
            support[number] = i;
            number += z[i] != 0;
        }
        return number;
    }

    // Rows ----------------------------------------------------------------------------------------

    /// Set the codes to zero.
    void clear() {
        std::fill(z.begin(), z.end(), 0.0);
        std::fill(norms.begin(), norms.end(), 0.0);
        std::copy_n(c, q, u.data());
        low = floor;
        high = w;
    }

    /// Read the codes and compute u and the subdifferential.
    void begin(const double* code) {
        clear();
        std::fill(seen.begin(), seen.end(), 0);
        bool warm = false;
        for (int j = 0; j < q; j++) {
            z[j] = code[j] > 0 || !nonnegative ? code[j] : 0.0;
            warm = warm || z[j] != 0;
        }
        if (!warm) return;
        for (int r = 0; r < blocks; r++) refresh(r);
        const int number = gather_support();
        for (int p = 0; p < number; p++) a[p] = z[support[p]];
        subtract_rows(u.data(), a.data(), number, 0, q);
    }

    /// Repeat a greedy sweep and a Newton step until the gap is small; return how often.
    std::int64_t solve_row() {
        double objective, gap;
        certify(objective, gap);
        if (objective > 0.5 * energy) {
            clear();  // the start is worse than zero
            certify(objective, gap);
        }
        double best_objective = objective, best_gap = gap;
        int idle = 0;
        std::int64_t iteration = 0;
        while (gap > tol * std::max(objective, TINY) && iteration < max_iter && idle < PATIENCE) {
            iteration++;
            const double promise = greedy_sweep(iteration);
            // early supports are provisional: shrinking them completely does not pay
            newton(std::int64_t(1) << std::min<std::int64_t>(iteration, 30));
            // Without a finite gap, stop at a small promised decrease. It is of second order in the
            // violation of optimality, the gap of first order; hence the square.
            if (promise == 0 || (gap == UNBOUNDED && promise <= tol * tol * objective)) break;
            certify(objective, gap);
            if (gap < 0.9 * best_gap || objective < (1 - 1e-13) * best_objective) {
                best_objective = std::min(objective, best_objective);
                best_gap = std::min(gap, best_gap);
                idle = 0;
            } else {
                idle++;
            }
        }
        return iteration;
    }

    // Certificate ---------------------------------------------------------------------------------

    /// Objective and duality gap of the codes, with u the correlations of the residual:
    ///
    ///     gap = 1/2 (1 - k)^2 ||x - D z||^2 + (penalty(z) - k z'u),  k = 1 / max(1, gauge(u)).
    void certify(double& objective, double& gap) const {
        double penalty = 0, zu = 0, zc = 0;
        const double* PURSUIT_RESTRICT code = z.data();
        PURSUIT_SIMD_REDUCE(+ : penalty, zu, zc)
        for (int i = 0; i < q; i++) {
            penalty += w[i] * std::abs(code[i]);
            zu += code[i] * u[i];
            zc += code[i] * c[i];
        }
        for (int r = 0; r < blocks; r++) penalty += v[r] * norms[r];
        double square = energy - zc - zu;
        square = square < 0 ? 0 : square;  // not std::max, which may swallow a NaN
        objective = 0.5 * square + penalty;
        const double theta = gauge();
        gap = UNBOUNDED;
        if (theta == UNBOUNDED) return;
        const double k = 1 / theta, slack = k * (theta - 1);
        gap = 0.5 * slack * slack * square + (penalty - k * zu);
        gap = gap < 0 ? 0 : gap;
    }

    /// Write the codes and compute objective and gap of what was written.
    ///
    /// The dual point is the residual r of z before it is rounded to the stored code, scaled by
    /// k = 1 / max(1, gauge(u)), u = D r. With the residual s of the code,
    ///
    ///     gap = 1/2 ||s - k r||^2 + (penalty(code) - k code'u),
    ///
    /// where a ridge counts as a further entry -sqrt(ridge) z of a residual. u_i is wrong by
    /// e (||D_i|| ||r|| + ridge_i |z_i|) at most, e = `rounding`, which is added before the gauge is
    /// computed; the gap receives e (a sqrt(2 F) + e a^2 + F), a = ||x|| + sum_i |z_i| ||D_i||.
    void finish(const double* x, double* code, double& objective, double& gap) {
        std::copy_n(x, m, residual.data());
        std::fill(lost.begin(), lost.end(), 0.0);
        double magnitude = std::sqrt(energy), extra = 0, penalty = 0;
        for (int i = 0; i < q; i++) {
            code[i] = p.single ? static_cast<double>(static_cast<float>(z[i])) : z[i];
            magnitude += atom_norms[i] * std::abs(code[i]);
            penalty += w[i] * std::abs(code[i]);
            extra += p.ridge[i] * code[i] * code[i];
            if (z[i] != 0) add_multiple(-z[i], p.atoms.row(i), residual.data());
            if (z[i] != code[i]) add_multiple(z[i] - code[i], p.atoms.row(i), lost.data());
        }
        for (int r = 0; r < blocks; r++) penalty += v[r] * norm_of(code, r);
        const double length = std::sqrt(product(residual.data(), residual.data()));
        double pull = 0;
        for (int i = 0; i < q; i++) {
            u[i] = product(p.atoms.row(i), residual.data()) - p.ridge[i] * z[i];
            pull += code[i] * u[i];
            const double error = p.rounding * (atom_norms[i] * length + p.ridge[i] * std::abs(z[i]));
            u[i] += nonnegative || u[i] > 0 ? error : -error;
        }
        const double k = 1 / gauge();
        double fit = 0, miss = 0;
        PURSUIT_SIMD_REDUCE(+ : fit, miss)
        for (int j = 0; j < m; j++) {
            const double s = residual[j] + lost[j], off = s - k * residual[j];
            fit += s * s;
            miss += off * off;
        }
        for (int i = 0; i < q; i++) {
            const double off = code[i] - k * z[i];
            miss += p.ridge[i] * off * off;
        }
        objective = 0.5 * (fit + extra) + penalty;
        gap = 0.5 * miss + (penalty - k * pull);
        gap = gap < 0 ? 0 : gap;
        gap = gap < objective ? gap : objective;  // zero is a dual point too
        gap +=
            p.rounding * (magnitude * std::sqrt(2 * objective) + p.rounding * magnitude * magnitude + objective);
    }

    /// target += factor * values, of length m.
    void add_multiple(double factor, const double* PURSUIT_RESTRICT values,
                      double* PURSUIT_RESTRICT target) const {
        PURSUIT_SIMD
        for (int j = 0; j < m; j++) target[j] += factor * values[j];
    }

    /// The product of two vectors of length m.
    double product(const double* a, const double* b) const {
        double sum = 0;
        PURSUIT_SIMD_REDUCE(+ : sum)
        for (int j = 0; j < m; j++) sum += a[j] * b[j];
        return sum;
    }

    /// The norm of block r of a code.
    double norm_of(const double* code, int r) const {
        double square = 0;
        for (int i = starts[r]; i < starts[r + 1]; i++) square += code[i] * code[i];
        return std::sqrt(square);
    }

    /// max(1, max_r theta_r), where theta_r scales block r of u into the dual feasible set.
    double gauge() const {
        double theta = 1;
        for (int r = 0; r < blocks; r++) {
            double square, slope;
            threshold(r, theta, square, slope);
            const double radius = theta * v[r];
            if (square > radius * radius) theta = raise_gauge(r, theta);
        }
        return theta;
    }

    /// ||s||^2 and w_r's for s = soft(u_r, theta w_r).
    void threshold(int r, double theta, double& square, double& slope) const {
        if (nonnegative) {
            threshold(r, theta, square, slope, [](double value) { return value; });
        } else {
            threshold(r, theta, square, slope, [](double value) { return std::abs(value); });
        }
    }

    template <class Size>
    void threshold(int r, double theta, double& square, double& slope, Size size) const {
        const double* PURSUIT_RESTRICT value = u.data();
        const double* PURSUIT_RESTRICT weight = w.data();
        double sum_of_squares = 0, product = 0;
        PURSUIT_SIMD_REDUCE(+ : sum_of_squares, product)
        for (int i = starts[r]; i < starts[r + 1]; i++) {
            const double x = size(value[i]) - theta * weight[i];
            const double s = x > 0 ? x : 0.0;
            sum_of_squares += s * s;
            product += s * weight[i];
        }
        square = sum_of_squares;
        slope = product;
    }

    /// Smallest theta' >= theta with ||soft(u_r, theta' w_r)|| <= theta' v_r, from above.
    ///
    /// phi(theta) = ||soft(u_r, theta w_r)|| - theta v_r is convex and decreasing, so that Newton's
    /// steps from the left do not pass the root; growing increments then move theta past it.
    double raise_gauge(int r, double theta) const {
        if (v[r] <= 0) return largest_ratio(r, theta);
        double nudge = 1e-16;
        for (int step = 0; step < 200; step++) {
            double square, slope;
            threshold(r, theta, square, slope);
            const double norm = std::sqrt(square), phi = norm - theta * v[r];
            if (!(phi > 0)) return theta;
            theta += phi / (v[r] + slope / norm);
            if (step > 2) {
                theta *= 1 + nudge;
                nudge *= 2;
            }
        }
        return UNBOUNDED;
    }

    /// Gauge of a block without group norm: max(theta, max_i |u_i| / w_i).
    double largest_ratio(int r, double theta) const {
        for (int i = starts[r]; i < starts[r + 1]; i++) {
            const double x = one_sided(u[i]);
            if (!(x > theta * w[i])) continue;
            if (w[i] <= 0) return UNBOUNDED;
            theta = x / w[i];
            while (x > theta * w[i]) theta *= 1 + 1e-15;
        }
        return theta;
    }

    // Block descent -------------------------------------------------------------------------------

    /// Descend block after block, the most promising first; return the first promise.
    ///
    /// A block that is chosen again ends the sweep, since from there on Newton's step is faster, unless
    /// the support is so large that the k^3 operations of that step cost more than a few blocks.
    double greedy_sweep(std::int64_t iteration) {
        double first, promise;
        int r = most_violated_block(first);
        promise = first;
        double again = 0;
        while (r >= 0 && promise > WORTHWHILE * first) {
            if (seen[r] == iteration) {
                again++;
                const double size = static_cast<double>(q - std::count(z.begin(), z.end(), 0.0));
                if (8.0 * q * again > size * size) break;
            }
            seen[r] = iteration;
            descend(r);
            r = most_violated_block(promise);
        }
        return first;
    }

    /// The block with the largest promise ||e_r||^2 / L_r, e_r the distance of u_r to optimality; or -1.
    int most_violated_block(double& promise) {
        double* PURSUIT_RESTRICT squares = a.data();
        PURSUIT_SIMD
        for (int i = 0; i < q; i++) {
            const double e = excess(u[i], low[i], high[i]);
            squares[i] = e * e;
        }
        int best = -1;
        double most = 0;
        for (int r = 0; r < blocks; r++) {
            double square = 0;
            int i = starts[r];
            for (; i + 4 <= starts[r + 1]; i += 4) {
                square += (squares[i] + squares[i + 1]) + (squares[i + 2] + squares[i + 3]);
            }
            for (; i < starts[r + 1]; i++) square += squares[i];
            if (norms[r] == 0) {
                if (square <= v[r] * v[r]) continue;
                const double beyond = std::sqrt(square) - v[r];
                square = beyond * beyond;
            }
            square *= inverse_constants[r];
            if (square > most) {
                best = r;
                most = square;
            }
        }
        promise = most;
        return best;
    }

    /// Decrease the objective over block r: set it to zero where that is optimal, or sweep it.
    ///
    /// `a` receives the block's correlations at zero, `b` those at its new codes `direction`.
    void descend(int r) {
        const int first = starts[r], size = starts[r + 1] - first;
        double *full = a.data(), *local_u = b.data(), *local_z = direction.data();
        std::copy_n(u.data() + first, size, full);
        std::copy_n(u.data() + first, size, local_u);
        std::copy_n(z.data() + first, size, local_z);
        const bool active = norms[r] > 0;
        if (active) subtract_image(r, local_z, -1, full);
        double square = 0;
        PURSUIT_SIMD_REDUCE(+ : square)
        for (int t = 0; t < size; t++) {
            const double e = excess(full[t], floor[first + t], w[first + t]);
            square += e * e;
        }
        if (square <= v[r] * v[r]) {
            std::fill_n(local_z, size, 0.0);
        } else {
            if (!(active && rescale(r, full, local_u, local_z))) {
                // restart from zero, along the thresholded correlations
                for (int t = 0; t < size; t++) local_z[t] = excess(full[t], floor[first + t], w[first + t]);
                std::copy_n(full, size, local_u);
                subtract_image(r, local_z, 1, local_u);
                rescale(r, full, local_u, local_z);
            }
            sweep(r, local_u, local_z);
            if (v[r] > 0) rescale(r, full, local_u, local_z);
        }
        store(r, local_z);
    }

    /// target -= sign * G_rr z, all local to block r.
    void subtract_image(int r, const double* code, double sign, double* target) {
        const int first = starts[r], size = starts[r + 1] - first;
        int number = 0;
        for (int t = 0; t < size; t++) {
            support[number] = first + t;
            trial[number] = sign * code[t];
            number += code[t] != 0;
        }
        subtract_rows(target, trial.data(), number, first, size);
    }

    /// Minimise over the length of z, which a sweep on the majoriser changes too little.
    ///
    /// The minimiser of t -> objective(t z) is (z'full - w'|z| - v ||z||) / z'Gz, with `full` the
    /// correlations of the block at z = 0. Return false, without a change, if t = 0 is the best.
    bool rescale(int r, const double* PURSUIT_RESTRICT full, double* PURSUIT_RESTRICT local_u,
                 double* PURSUIT_RESTRICT code) const {
        const int first = starts[r], size = starts[r + 1] - first;
        const double* PURSUIT_RESTRICT weight = w.data() + first;
        double square = 0, linear = 0, curvature = 0;
        PURSUIT_SIMD_REDUCE(+ : square, linear, curvature)
        for (int t = 0; t < size; t++) {
            square += code[t] * code[t];
            linear += code[t] * full[t] - weight[t] * std::abs(code[t]);
            curvature += code[t] * (full[t] - local_u[t]);
        }
        linear -= v[r] * std::sqrt(square);
        if (!(linear > 0 && curvature > 0)) return false;
        const double scale = linear / curvature;
        PURSUIT_SIMD
        for (int t = 0; t < size; t++) {
            code[t] *= scale;
            local_u[t] = full[t] + scale * (local_u[t] - full[t]);
        }
        return true;
    }

    /// Coordinate descent over block r, where v ||z|| <= v/2 (||z||^2 / norm + norm).
    ///
    /// The norm is that of z before the sweep. Both arguments are local to the block, and updated.
    void sweep(int r, double* PURSUIT_RESTRICT local_u, double* PURSUIT_RESTRICT code) {
        const int first = starts[r], size = starts[r + 1] - first;
        double ridge = 0;
        if (v[r] > 0) {
            double square = 0;
            PURSUIT_SIMD_REDUCE(+ : square)
            for (int t = 0; t < size; t++) square += code[t] * code[t];
            ridge = v[r] / std::sqrt(square);
        }
        double* PURSUIT_RESTRICT inverse = trial.data();
        for (int t = 0; t < size; t++) {
            const double curvature = gram(first + t, first + t) + ridge;
            // without curvature the atom is zero, and the best code as well
            inverse[t] = curvature >= TINY ? 1 / curvature : 0.0;
        }
        for (int t = 0; t < size; t++) {
            const int i = first + t;
            const double* PURSUIT_RESTRICT row = gram.row(i) + first;
            const double pull = excess(local_u[t] + row[t] * code[t], floor[i], w[i]);
            if (pull == 0 && code[t] == 0) continue;
            const double value = pull * inverse[t], change = value - code[t];
            code[t] = value;
            PURSUIT_SIMD
            for (int s = 0; s < size; s++) local_u[s] -= change * row[s];
        }
    }

    /// Replace the codes of block r, and update u and the subdifferential.
    void store(int r, const double* code) {
        const int first = starts[r], size = starts[r + 1] - first;
        int number = 0;
        for (int t = 0; t < size; t++) {
            const double change = code[t] - z[first + t];
            z[first + t] = code[t];
            support[number] = first + t;
            b[number] = change;
            number += change != 0;
        }
        subtract_rows(u.data(), b.data(), number, 0, q);
        refresh(r);
    }

    /// Norm and subdifferential of block r after its codes changed.
    ///
    /// At z_i != 0 the subdifferential is the point w_i sign(z_i) + v_r z_i / ||z_r||.
    void refresh(int r) {
        double square = 0;
        PURSUIT_SIMD_REDUCE(+ : square)
        for (int i = starts[r]; i < starts[r + 1]; i++) square += z[i] * z[i];
        const double norm = square > 0 ? std::sqrt(square) : 0.0;  // zero instead of NaN, as the codes
        norms[r] = norm;
        const double pull = norm > 0 ? v[r] / norm : 0.0;
        PURSUIT_SIMD
        for (int i = starts[r]; i < starts[r + 1]; i++) {
            const double value = norm > 0 ? z[i] : 0.0;  // also if the square underflows
            z[i] = value;
            const double top = pull * value + w[i], bottom = pull * value + floor[i];
            low[i] = value > 0 ? top : bottom;
            high[i] = value < 0 ? bottom : top;
        }
    }

    // Newton steps on the support -----------------------------------------------------------------

    /// Take a Newton step over the support, accepted only if the objective decreases.
    ///
    /// Where the full step fails, a line search replaces it, and if that achieves little, a second one
    /// along the direction of the majoriser. If a code reaches zero, the step is repeated on the
    /// remaining support, so that a support that is too large shrinks here.
    void newton(std::int64_t repeats) {
        count = gather_support();
        for (; count > 0 && repeats > 0; repeats--) {
            double promise;
            const bool flat = find_direction(true, promise);
            if (!flat && try_step(1, true, 0) < -SUFFICIENT * promise) return accept();
            const int before = count;
            const double change = search();
            count = gather_support();
            if (count < before) continue;
            if (change < -SUFFICIENT * promise) return;
            double majorised;
            find_direction(false, majorised);
            search();
            count = gather_support();
            if (count == before) return;
        }
    }

    /// Compute Newton's direction, exact or of the majoriser, see `solve_normal`. `b` receives the steps
    /// at which the codes cross zero. Return whether the Hessian is singular.
    bool find_direction(bool exact, double& promise) {
        assemble(exact);
        const bool flat = solve_normal(promise);
        for (int p = 0; p < count; p++) {
            const double value = z[support[p]], d = direction[p];
            b[p] = value * d < 0 ? -value / d : UNBOUNDED;
        }
        return flat;
    }

    /// Call `work(r, begin, end)` for every active block, whose codes have these places in the support.
    template <class Work>
    void for_active_blocks(Work work) const {
        int p = 0;
        for (int r = 0; r < blocks; r++) {
            if (norms[r] == 0) continue;
            const int begin = p;
            while (p < count && support[p] < starts[r + 1]) p++;
            work(r, begin, p);
        }
    }

    double* hessian_row(int p) const { return hessian.get() + p * stride; }

    /// Upper triangle of the Hessian on the support, with the negative gradient as its last column.
    ///
    /// H = G_AA + sum_r v_r (I / ||z_r|| - z_r z_r' / ||z_r||^3). Unless `exact`, the last term is
    /// omitted; H then belongs to a quadratic function that majorises the objective.
    void assemble(bool exact) {
        stride = (count + PIECE) / PIECE * PIECE;
        for (int p = 0; p < count; p++) {
            const int i = support[p];
            const double* PURSUIT_RESTRICT row = gram.row(i);
            double* PURSUIT_RESTRICT target = hessian_row(p);
            for (int s = p / PIECE * PIECE; s < count; s++) target[s] = row[support[s]];
            target[count] = u[i] - low[i];
            std::fill(target + count + 1, target + stride, 0.0);
        }
        double* unit = a.data();
        for_active_blocks([&](int r, int begin, int end) {
            for (int p = begin; p < end; p++) unit[p] = z[support[p]] / norms[r];
            const double ridge = v[r] / norms[r];
            if (!(ridge > 0)) return;
            for (int p = begin; p < end; p++) {
                double* PURSUIT_RESTRICT row = hessian_row(p);
                row[p] += ridge;
                if (!exact) continue;
                const double factor = ridge * unit[p];
                PURSUIT_SIMD
                for (int s = p; s < end; s++) row[s] -= factor * unit[s];
            }
        });
    }

    /// direction = H^-1 g by Cholesky, H the upper triangle and g the last column of `hessian`.
    ///
    /// Directions without curvature get a little of it. `promise` is 1/2 g'd, the decrease of a
    /// quadratic objective. Return whether H is singular.
    bool solve_normal(double& promise) {
        bool flat = false;
        int p = 0;
        for (; p + TOGETHER <= count; p += TOGETHER) flat |= factorise<TOGETHER>(p);
        for (; p < count; p++) flat |= factorise<1>(p);
        promise = 0;
        double* PURSUIT_RESTRICT d = direction.data();
        for (p = count - 1; p >= 0; p--) {
            const double* PURSUIT_RESTRICT row = hessian_row(p);
            double rest = row[count];
            promise += 0.5 * rest * rest;
            PURSUIT_SIMD_REDUCE(+ : rest)
            for (int j = p + 1; j < count; j++) rest -= row[j] * d[j];
            d[p] = rest * row[p];
        }
        return flat;
    }

    /// Compute ROWS rows of the factor, from p on; return whether one has no pivot.
    template <int ROWS>
    bool factorise(int p) {
        double diagonal[ROWS];
        for (int i = 0; i < ROWS; i++) diagonal[i] = hessian_row(p + i)[p + i];
        for (int j = p / PIECE * PIECE; j < stride; j += PIECE) eliminate<ROWS>(p, j);
        bool flat = false;
        for (int i = 0; i < ROWS; i++) {
            double* PURSUIT_RESTRICT row = hessian_row(p + i);
            for (int k = 0; k < i; k++) {
                const double* PURSUIT_RESTRICT above = hessian_row(p + k);
                const double factor = above[p + i];
                PURSUIT_SIMD
                for (int j = p + i; j <= count; j++) row[j] -= factor * above[j];
            }
            flat |= divide_by_pivot(p + i, diagonal[i]);
        }
        return flat;
    }

    /// Subtract from a piece of ROWS rows what all rows above p explain. What it computes left of the
    /// diagonal is not used.
    template <int ROWS>
    void eliminate(int p, int start) {
        double sums[ROWS][PIECE];
        for (int i = 0; i < ROWS; i++) copy<PIECE>(hessian_row(p + i) + start, sums[i]);
        const double* PURSUIT_RESTRICT above = hessian_row(0);
        for (int t = 0; t < p; t++, above += stride) {
            for (int i = 0; i < ROWS; i++) {
                const double factor = above[p + i];
                PURSUIT_SIMD
                for (int j = 0; j < PIECE; j++) sums[i][j] -= factor * above[start + j];
            }
        }
        for (int i = 0; i < ROWS; i++) copy<PIECE>(sums[i], hessian_row(p + i) + start);
    }

    /// Divide row p of the factor by the root of its pivot, whose inverse is stored on the diagonal.
    ///
    /// Return whether there is no curvature, compared with the entry before the elimination.
    bool divide_by_pivot(int p, double diagonal) {
        double* PURSUIT_RESTRICT row = hessian_row(p);
        double pivot = row[p];
        const bool flat = !(pivot > PIVOT * diagonal);
        if (flat) {
            pivot = FLAT * diagonal;
            // a row without a pivot holds only rounding errors, which must not be magnified
            std::fill(row + p + 1, row + count, 0.0);
        }
        const double inverse = pivot > 0 ? 1 / std::sqrt(pivot) : 0.0;
        PURSUIT_SIMD
        for (int j = p; j <= count; j++) row[j] *= inverse;
        row[p] = inverse;
        return flat;
    }

    /// Step along the direction to the minimum of the objective; return its change.
    double search() {
        const double step = line_search();
        double change = try_step(step, false, COLLAPSED);
        if (!(change < 0)) change = try_step(step, false, -UNBOUNDED);
        if (change < 0) accept();
        return change;
    }

    /// The step to the minimum of the objective along the direction, across sign changes.
    ///
    /// Often a code is zero there: the objective has a kink where a code crosses zero, and is infinite
    /// beyond it if codes may not be negative.
    double line_search() const {
        double slope = 0, curvature = 0;
        smooth_slope(slope, curvature);
        double step = 0, reach = 1, following = 0;
        while (reach < FAR_AWAY) {
            following = reach;
            for (int p = 0; p < count; p++) {
                if (step < b[p] && b[p] < following) following = b[p];
            }
            const double smooth = slope + following * curvature;
            if (smooth + penalty_slope(following, false) >= 0) break;
            step = following;
            if (step == reach) {
                reach *= 8;
            } else if (nonnegative || smooth + penalty_slope(step, true) >= 0) {
                return step;
            }
        }
        // the minimum lies inside the bracket; the objective decreases up to its lower end
        for (int halving = 0; halving < 60; halving++) {
            const double middle = 0.5 * (step + following);
            if (slope + middle * curvature + penalty_slope(middle, false) < 0) {
                step = middle;
            } else {
                following = middle;
            }
            if (following - step <= 1e-3 * step) break;
        }
        return step;
    }

    /// First and second derivative of the quadratic term along the direction: -u'd and d'Gd.
    void smooth_slope(double& slope, double& curvature) const {
        for (int p = 0; p < count; p++) {
            const double* PURSUIT_RESTRICT row = gram.row(support[p]);
            double image = 0;
            for (int s = 0; s < count; s++) image += row[support[s]] * direction[s];
            slope -= u[support[p]] * direction[p];
            curvature += image * direction[p];
        }
    }

    /// Derivative of the penalty along z + step d, just before or after `step`.
    double penalty_slope(double step, bool after) const {
        double slope = 0;
        for_active_blocks([&](int r, int begin, int end) {
            double square = 0, growth = 0;
            for (int p = begin; p < end; p++) {
                const double value = z[support[p]], d = direction[p], moved = value + step * d;
                const bool flipped = b[p] < step || (after && b[p] == step);
                slope += w[support[p]] * d * ((value > 0) != flipped ? 1 : -1);
                square += moved * moved;
                growth += moved * d;
            }
            if (square > 0) slope += v[r] * growth / std::sqrt(square);
        });
        return slope;
    }

    /// Set the trial codes z' and return the change of the objective from z to z', rounding included.
    ///
    /// It is summed from differences, -(z' - z)'(u + u')/2 + penalty(z') - penalty(z), and is therefore
    /// accurate even when it is far below the rounding of the objective. What rounding can have added,
    /// e (sum_i |z'_i - z_i| ||D_i|| (||x|| + sum_i |z'_i| ||D_i||) + sum_i ridge_i |z'_i - z_i| |z'_i|), counts as an increase: without it the
    /// Gram matrix of dependent atoms may seem to have a negative eigenvalue, along which codes grow.
    double try_step(double step, bool clip, double collapse) {
        set_trial(step, clip, collapse);
        std::copy_n(c, q, trial_u.data());
        subtract_rows(trial_u.data(), trial.data(), count, 0, q);
        double change = 0, moved = 0, reach = std::sqrt(energy), own = 0;
        for_active_blocks([&](int r, int begin, int end) {
            double square = 0, growth = 0;
            for (int p = begin; p < end; p++) {
                const int i = support[p];
                const double before = z[i], after = trial[p];
                square += after * after;
                growth += (after - before) * (after + before);
                change += w[i] * (std::abs(after) - std::abs(before));
                change -= 0.5 * (after - before) * (u[i] + trial_u[i]);
                moved += std::abs(after - before) * atom_norms[i];
                reach += std::abs(after) * atom_norms[i];
                own += this->p.ridge[i] * std::abs((after - before) * after);
            }
            change += v[r] * growth / (norms[r] + std::sqrt(square));
        });
        return change + p.rounding * (moved * reach + own);
    }

    /// Set the trial codes to z + step d.
    ///
    /// Codes that are zero at `step` become exactly zero, with `clip` also those that would change
    /// sign. A whole block is set to zero if at most the fraction `collapse` of its length remains in
    /// its old direction: like a sign, the direction of a block may not be reversed.
    void set_trial(double step, bool clip, double collapse) {
        for_active_blocks([&](int r, int begin, int end) {
            double radial = 0;
            for (int p = begin; p < end; p++) {
                const double value = z[support[p]], moved = value + step * direction[p];
                const bool zero = clip ? b[p] <= step : b[p] == step;
                // rounding may step past a crossing that lies just ahead
                trial[p] = zero || (nonnegative && moved < 0) ? 0.0 : moved;
                radial += trial[p] * value;
            }
            if (v[r] > 0 && radial <= collapse * norms[r] * norms[r]) {
                std::fill(trial.data() + begin, trial.data() + end, 0.0);
            }
        });
    }

    /// Accept the trial codes.
    void accept() {
        for (int p = 0; p < count; p++) z[support[p]] = trial[p];
        std::swap(u, trial_u);
        for (int r = 0; r < blocks; r++) {
            if (norms[r] > 0) refresh(r);
        }
    }
};

}  // namespace pursuit
