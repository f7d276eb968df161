// Exact codes of robust PCA and robust NMF: what the methods share.
//
// A row minimises, over the scores s (q,) and the outliers o (m,), both non-negative for robust NMF,
//
//     1/2 ||x - s D0 - o||^2 + lam_star/2 ||s||^2 + sum_i lam_i |o_i|.
//
// For given scores the best outliers are known, and eliminating them leaves a smooth Huber problem
// in s. A descent (`HuberNewton`, `HuberFista`) improves the scores from a start; `HuberSolver` is
// the driver around it, with one precision after the other and the certificate.
//
// NaN and infinity keep their meaning, and every test is written so that they end an iteration.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "arrays.hpp"
#include "lanes.hpp"

namespace pursuit {

/// D0 in one precision, by rows and by columns, padded with zeros to full registers.
template <class T>
struct HuberDictionary {
    Matrix<const T> atoms;     // (q, m padded to PADDED)
    Matrix<const T> features;  // the transpose, (m, q padded to PADDED)

    static constexpr int PADDED = 16;
};

/// What all rows share.
struct HuberProblem {
    HuberDictionary<float> single;  // takes half the time of a pass
    HuberDictionary<double> exact;
    Matrix<const double> gram;   // D0 D0', (q, q padded)
    Matrix<const double> ridge;  // (D0 D0' + lam_star I)^-1, (q, q padded)
    Vector<const double> lam;    // weights of the outliers, (m,)
    double lam_star;
    double step_constant;  // ||D0||^2 + lam_star
    bool nonnegative;
    double tol;  // a row is done when gap <= tol * objective, or after `max_iter` steps
    std::int64_t max_iter;
    double rounding;  // relative rounding of a sum over atoms and features, see `finish`

    int q() const { return exact.atoms.rows; }
    int m() const { return lam.size; }
    int depth() const { return exact.features.columns; }  // q, padded

    template <class T>
    const HuberDictionary<T>& dictionary() const {
        if constexpr (std::is_same_v<T, float>)
            return single;
        else
            return exact;
    }
};

/// The rows of a tile; `codes` holds the start on entry.
template <class X>
struct HuberRows {
    Matrix<const X> x;  // (n, m)
    Matrix<X> codes;    // (n, q + m): scores, then outliers
    Vector<double> objective;
    Vector<double> gap;
    Vector<std::int64_t> iterations;
};

/// clip(r, -lam, lam), by values, which the compiler vectorises more readily than references.
template <class T>
inline T clamp(T r, T lam) {
    const T top = r > lam ? lam : r;
    return top < -lam ? -lam : top;
}

/// f(s) + f*(u) - s u of one score, f = lam_star/2 s^2 (on s >= 0), as positive terms; u is taken as
/// far from lam_star s as its error allows.
inline double score_gap(double s, double u, double lam_star, bool nonnegative, double error = 0) {
    const double top = nonnegative ? std::max(u, 0.0) : u;
    const double miss = std::abs(top - lam_star * s) + error;
    return miss * miss * (0.5 / lam_star) + s * (top - u);
}

/// One signal in one precision, and the passes over D0.
///
/// A pass reads some atoms side by side; passes that follow each other share a block of features, so
/// that it comes from memory once.
template <class T>
class HuberPasses {
public:
    explicit HuberPasses(const HuberProblem& problem)
        : p(problem),
          atoms(problem.dictionary<T>().atoms),
          q(atoms.rows),
          width(atoms.columns),
          x(width),
          residual(width),
          dual(width),
          thresholds(width, T(1)),
          correlation(q),
          block(block_of(q)),
          used(q + 1),
          factors(q + 1),
          sums(static_cast<std::size_t>(q) * LANES<T>) {
        for (int i = 0; i < p.m(); i++) thresholds[i] = static_cast<T>(p.lam[i]);
    }

    const HuberProblem& p;
    const Matrix<const T> atoms;
    const int q, width;
    AlignedVector<T> x;            // the signal
    AlignedVector<T> residual;     // r = x - s D0
    AlignedVector<T> dual;         // nu = clip(r, -lam, lam), or min(r, lam) if non-negative
    AlignedVector<T> thresholds;   // lam, 1 in the padding
    AlignedVector<T> correlation;  // u = D0 nu

    /// r = x - s D0, nu and u; return the Huber value sum_i nu_i (r_i - nu_i/2).
    double renew(const double* scores) {
        list(scores);
        clear_sums();
        double value = 0;
        for (int i = 0; i < width; i += block) {
            const int end = std::min(i + block, width);
            std::copy(x.data() + i, x.data() + end, residual.data() + i);
            subtract(i, end, residual.data());
            value += clip(i, end);
            correlate(i, end, dual.data());
        }
        reduce();
        return value;
    }

    /// nu and u of the residual as it is; return the Huber value.
    double refresh() {
        clear_sums();
        const double value = clip(0, width);
        correlate(0, width, dual.data());
        reduce();
        return value;
    }

    /// u = D0 x.
    void correlate_signal() {
        clear_sums();
        correlate(0, width, x.data());
        reduce();
    }

    /// out -= coefficients D0.
    void subtract_atoms(const double* coefficients, T* out) {
        list(coefficients);
        subtract(0, width, out);
    }

    /// Gradient lam_star s - u and gap of the Huber problem; return the gap and complete the value.
    double judge(const double* scores, double* gradient, double& value) const {
        const double lam_star = p.lam_star;
        const bool nonnegative = p.nonnegative;
        double gap = 0, square = 0;
        for (int j = 0; j < q; j++) {
            const double s = scores[j], u = correlation[j];
            gradient[j] = lam_star * s - u;
            square += s * s;
            gap += score_gap(s, u, lam_star, nonnegative);
        }
        value += 0.5 * lam_star * square;
        return gap;
    }

private:
    static constexpr int GROUP = 8;  // atoms that are read side by side

    const int block;  // features whose part of D0 stays in the first cache
    int uses = 0;     // coefficients that are not zero: their atoms and values
    std::vector<int> used;
    std::vector<T> factors;
    AlignedVector<T> sums;  // of every atom one register

    static int block_of(int atoms) {
        const int fitting = 16384 / (static_cast<int>(sizeof(T)) * std::max(atoms, 1));
        return padded(std::max(fitting, 64), HuberDictionary<T>::PADDED);
    }

    /// Visit `count` atoms in groups of similar size, which is a constant of the visitor.
    template <class F>
    static void in_groups(int count, F&& visit) {
        int first = 0;
        for (int groups = (count + GROUP - 1) / GROUP; groups > 0; groups--) {
            const int size = (count - first) / groups;
            switch (size) {
                case 1:
                    visit(std::integral_constant<int, 1>(), first);
                    break;
                case 2:
                    visit(std::integral_constant<int, 2>(), first);
                    break;
                case 3:
                    visit(std::integral_constant<int, 3>(), first);
                    break;
                case 4:
                    visit(std::integral_constant<int, 4>(), first);
                    break;
                case 5:
                    visit(std::integral_constant<int, 5>(), first);
                    break;
                case 6:
                    visit(std::integral_constant<int, 6>(), first);
                    break;
                case 7:
                    visit(std::integral_constant<int, 7>(), first);
                    break;
                default:
                    visit(std::integral_constant<int, 8>(), first);
            }
            first += size;
        }
    }

    void list(const double* coefficients) {
        uses = 0;
        for (int j = 0; j < q; j++) {
            used[uses] = j;
            factors[uses] = static_cast<T>(coefficients[j]);
            uses += factors[uses] != 0;
        }
    }

    void clear_sums() { std::fill(sums.begin(), sums.end(), T(0)); }

    void reduce() {
        for (int j = 0; j < q; j++) correlation[j] = sum_of<T>(load(sums.data() + j * LANES<T>));
    }

    /// out -= factors D0 on the features i to end.
    void subtract(int i, int end, T* out) const {
        in_groups(uses, [&](auto size, int first) { subtract_group<size()>(first, i, end, out); });
    }

    template <int SIZE>
    void subtract_group(int first, int i, int end, T* out) const {
        const T* rows[SIZE];
        T values[SIZE];
        PURSUIT_UNROLL
        for (int k = 0; k < SIZE; k++) {
            rows[k] = atoms.row(used[first + k]);
            values[k] = factors[first + k];
        }
        for (; i < end; i += LANES<T>) {
            Pack<T> rest = load(out + i);
            PURSUIT_UNROLL
            for (int k = 0; k < SIZE; k++) rest -= values[k] * load(rows[k] + i);
            store<T>(out + i, rest);
        }
    }

    /// Add the products of all atoms and `vector` on the features i to end.
    void correlate(int i, int end, const T* vector) {
        in_groups(q, [&](auto size, int first) { correlate_group<size()>(first, i, end, vector); });
    }

    template <int SIZE>
    void correlate_group(int first, int i, int end, const T* vector) {
        const T* rows[SIZE];
        Pack<T> totals[SIZE];
        T* memory = sums.data() + first * LANES<T>;
        PURSUIT_UNROLL
        for (int k = 0; k < SIZE; k++) {
            rows[k] = atoms.row(first + k);
            totals[k] = load(memory + k * LANES<T>);
        }
        for (; i < end; i += LANES<T>) {
            const Pack<T> values = load(vector + i);
            PURSUIT_UNROLL
            for (int k = 0; k < SIZE; k++) totals[k] += values * load(rows[k] + i);
        }
        PURSUIT_UNROLL
        for (int k = 0; k < SIZE; k++) store<T>(memory + k * LANES<T>, totals[k]);
    }

    /// nu on the features i to end; return their Huber value.
    T clip(int i, int end) {
        const T* PURSUIT_RESTRICT r = residual.data();
        const T* PURSUIT_RESTRICT lam = thresholds.data();
        T* PURSUIT_RESTRICT nu = dual.data();
        T value = 0;
        if (p.nonnegative) {
            PURSUIT_SIMD_REDUCE(+ : value)
            for (int k = i; k < end; k++) {
                nu[k] = r[k] > lam[k] ? lam[k] : r[k];
                value += nu[k] * (r[k] - T(0.5) * nu[k]);
            }
        } else {
            PURSUIT_SIMD_REDUCE(+ : value)
            for (int k = i; k < end; k++) {
                nu[k] = clamp(r[k], lam[k]);
                value += nu[k] * (r[k] - T(0.5) * nu[k]);
            }
        }
        return value;
    }
};

/// out = -values A on SIZE registers of columns from i on.
template <int SIZE>
inline void negative_product(const double* values, const Matrix<const double>& a, int i, double* out) {
    Pack<double> sums[SIZE] = {};
    for (int j = 0; j < a.rows; j++) {
        const double* row = a.row(j) + i;
        PURSUIT_UNROLL
        for (int v = 0; v < SIZE; v++) sums[v] -= values[j] * load(row + v * LANES<double>);
    }
    PURSUIT_UNROLL
    for (int v = 0; v < SIZE; v++) store<double>(out + i + v * LANES<double>, sums[v]);
}

/// p = -(D0 D0' + lam_star I)^-1 g: an alternating minimisation, q^2 multiplications.
inline void ridge_step(const HuberProblem& p, const double* gradient, double* step) {
    constexpr int LONG = 8 * LANES<double>, SHORT = 2 * LANES<double>;
    int i = 0;
    for (; i + LONG <= p.depth(); i += LONG) negative_product<8>(gradient, p.ridge, i, step);
    for (; i < p.depth(); i += SHORT) negative_product<2>(gradient, p.ridge, i, step);
}

/// The driver. A `Descent<T>` has, in the precision T of its passes,
///
///     std::int64_t descend(double* code, double tol, std::int64_t max_iter, bool warm)
///
/// which improves the scores `code` until gap <= tol * value and returns the number of its steps;
/// `warm` is false if they come from `start`. Its tolerance is a share of that of the problem:
/// SINGLE_SHARE in float, DOUBLE_SHARE in double, a quarter of the one before in each of the
/// ATTEMPTS.
template <class X, template <class> class Descent>
class HuberSolver {
public:
    explicit HuberSolver(const HuberProblem& problem)
        : p(problem),
          q(p.q()),
          m(p.m()),
          single(p),
          exact(p),
          coarse(p, single),
          fine(p, exact),
          memory(p.depth()),
          slope(p.depth()),
          inverse(q),
          norms(q) {
        for (int j = 0; j < q; j++) {
            inverse[j] = 1 / (p.gram(j, j) + p.lam_star);
            norms[j] = std::sqrt(p.gram(j, j));
        }
    }

    /// Descend in float, certify, and descend in double where that misses `tol`.
    void solve(const HuberRows<X>& rows) {
        for (int k = 0; k < rows.x.rows; k++) solve(rows, k);
    }

private:
    static constexpr int SWEEPS = 8;  // of coordinate descent in `start`

    const HuberProblem p;
    const int q, m;
    HuberPasses<float> single;
    HuberPasses<double> exact;
    Descent<float> coarse;
    Descent<double> fine;
    AlignedVector<double> memory;  // the scores in double
    AlignedVector<double> slope;   // a gradient, or a difference of scores
    std::vector<double> inverse;   // 1 / (G_jj + lam_star)
    std::vector<double> norms;     // of the atoms
    X* scores = nullptr;
    X* outliers = nullptr;

    void solve(const HuberRows<X>& rows, int k) {
        double* code = memory.data();
        scores = rows.codes.row(k);
        outliers = scores + q;
        bool warm = read();
        std::int64_t done = 0;
        if (take(rows.x.row(k))) {
            if (!warm) start(single);
            done = coarse.descend(code, Descent<float>::SINGLE_SHARE * p.tol, p.max_iter, warm);
            warm = round();
        }
        if (!warm) start(exact);
        double objective, gap;
        finish(objective, gap);
        double tol = Descent<double>::DOUBLE_SHARE * p.tol;
        std::int64_t attempt = 0;
        const auto missed = [&] { return gap > p.tol * std::max(objective, 1e-300); };  // false for NaN
        while (missed() && attempt < Descent<double>::ATTEMPTS && done < p.max_iter) {
            done += fine.descend(code, tol, p.max_iter - done, warm);
            finish(objective, gap);
            tol *= 0.25;
            attempt++;
        }
        rows.objective[k] = objective;
        rows.gap[k] = gap;
        rows.iterations[k] = done;
    }

    /// Copy the start; return false for zeros, since the start without outliers is better.
    bool read() {
        bool warm = false;
        for (int j = 0; j < q; j++) {
            const double value = scores[j];
            memory[j] = p.nonnegative ? std::max(value, 0.0) : value;
            warm = warm || memory[j] != 0;
        }
        return warm;
    }

    /// Copy a signal in both precisions; return false if squares of its numbers could leave float.
    bool take(const X* x) {
        double energy = 0;
        PURSUIT_SIMD_REDUCE(+ : energy)
        for (int i = 0; i < m; i++) {
            const double value = x[i];
            exact.x[i] = value;
            energy += value * value;
        }
        // Smaller numbers are below the rounding, and their subnormal products are slow.
        const double floor = 1e-10 * std::sqrt(energy / m);
        PURSUIT_SIMD
        for (int i = 0; i < m; i++) {
            const double value = exact.x[i];
            single.x[i] = std::abs(value) > floor ? static_cast<float>(value) : 0.0f;
        }
        return energy > 1e-16 && energy < 1e16 && p.step_constant > 1e-8 && p.step_constant < 1e8;
    }

    /// Round the scores to the stored precision; return false if they are not finite.
    bool round() {
        double total = 0;
        for (int j = 0; j < q; j++) {
            memory[j] = static_cast<X>(memory[j]);
            total += std::abs(memory[j]);
        }
        return total < std::numeric_limits<double>::infinity();
    }

    /// Scores without outliers: ridge regression, for robust NMF a few sweeps with s >= 0.
    template <class T>
    void start(HuberPasses<T>& passes) {
        double* code = memory.data();
        double* gradient = slope.data();
        passes.correlate_signal();
        for (int j = 0; j < q; j++) gradient[j] = -static_cast<double>(passes.correlation[j]);
        ridge_step(p, gradient, code);
        if (!p.nonnegative) return;
        for (int j = 0; j < q; j++) {
            code[j] = std::max(code[j], 0.0);
            gradient[j] += p.lam_star * code[j];
        }
        for (int j = 0; j < q; j++) add_multiple(code[j], p.gram.row(j), gradient, p.depth());
        for (int sweep = 0; sweep < SWEEPS; sweep++) {
            for (int j = 0; j < q; j++) {
                const double* row = p.gram.row(j);
                const double value = std::max(code[j] - gradient[j] * inverse[j], 0.0);
                const double change = value - code[j];
                if (change == 0) continue;
                code[j] = value;
                add_multiple(change, row, gradient, p.depth());
                gradient[j] += p.lam_star * change;
            }
        }
    }

    /// Write scores and outliers; compute objective and gap of what was written, in double.
    ///
    /// The dual point nu = clip(x - code D0) comes from the scores before they are rounded to s and
    /// o, which avoids a factor ||D0||^2 / lam_star on the rounding; any feasible point is allowed.
    /// With u = D0 nu, r = x - s D0 - o and f(s) = lam_star/2 ||s||^2,
    ///
    ///     gap = ||r - nu||^2/2 + sum_j (f(s_j) + f*(u_j) - s_j u_j) + sum_i (lam_i |o_i| - o_i nu_i)
    ///
    /// is an upper bound of objective(s, o) - optimum. A correlation u_j is wrong by e ||D_j|| ||nu||
    /// at most, e = `rounding`, which the terms of the scores allow for; the gap receives
    /// e (a sqrt(2 F) + e a^2 + F), a = ||x|| + sum_j |s_j| ||D_j|| + sum_i |o_i|.
    void finish(double& objective, double& gap) {
        const double* code = memory.data();
        double* rounded = slope.data();
        exact.renew(code);
        const double error = p.rounding * std::sqrt(squared_norm(exact.dual.data()));
        double magnitude = std::sqrt(squared_norm(exact.x.data()));
        objective = gap = 0;
        for (int j = 0; j < q; j++) {
            scores[j] = static_cast<X>(code[j]);
            const double stored = scores[j];
            rounded[j] = stored - code[j];
            objective += 0.5 * p.lam_star * stored * stored;
            magnitude += norms[j] * std::abs(stored);
            gap += score_gap(stored, exact.correlation[j], p.lam_star, p.nonnegative, error * norms[j]);
        }
        exact.subtract_atoms(rounded, exact.residual.data());
        const double* PURSUIT_RESTRICT rest = exact.residual.data();
        const double* PURSUIT_RESTRICT nu = exact.dual.data();
        const double* PURSUIT_RESTRICT lam = p.lam.data;
        X* PURSUIT_RESTRICT o = outliers;
        const double lowest = p.nonnegative ? 0 : -std::numeric_limits<double>::infinity();
        double loss = 0, miss = 0, total = 0;
        PURSUIT_SIMD_REDUCE(+ : loss, miss, total)
        for (int i = 0; i < m; i++) {
            const double clipped = clamp(rest[i], lam[i]);
            const double kept = rest[i] - clipped;
            o[i] = static_cast<X>(kept > lowest ? kept : lowest);
            const double outlier = o[i], r = rest[i] - outlier, off = r - nu[i];
            const double size = outlier != 0 ? lam[i] * std::abs(outlier) : 0.0;  // lam may be infinite
            loss += 0.5 * r * r + size;
            miss += 0.5 * off * off + (size - outlier * nu[i]);
            total += std::abs(outlier);
        }
        objective += loss;
        gap += miss;
        gap = gap < objective ? gap : objective;  // zero is a dual point too
        magnitude += total;
        gap +=
            p.rounding * (magnitude * std::sqrt(2 * objective) + p.rounding * magnitude * magnitude + objective);
    }

    /// ||values||^2, of length m.
    double squared_norm(const double* values) const {
        double sum = 0;
        PURSUIT_SIMD_REDUCE(+ : sum)
        for (int i = 0; i < m; i++) sum += values[i] * values[i];
        return sum;
    }
};

}  // namespace pursuit
