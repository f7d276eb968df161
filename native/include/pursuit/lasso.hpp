// Lasso codes: an active set grown by the worst violators, with exact support solves.
//
// The cost of a row follows its few non-zero coefficients, not the size of the dictionary.
//
// For one row, with correlations c = D x, Gram matrix G (the ridge on its diagonal) and
// u = c - G z the correlation of the residual, z is optimal exactly if u_i = lam_i sign(z_i) on the
// support and |u_i| <= lam_i (u_i <= lam_i if non-negative) off it. With signs s on a support A the
// code is z_A = G_AA^{-1} (c_A - lam_A s), as long as the signs agree.
//
// A row takes two stages. `search` finds the support in the dtype of the correlations; `finish`
// writes the code, certifies it in double and improves it where rounding ended the search early.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "arrays.hpp"
#include "lanes.hpp"
#include "simd.hpp"

namespace pursuit {

/// What is given. S is the dtype of the search, X that of the signals and codes.
template <class S, class X>
struct LassoProblem {
    Matrix<const S> gram;             // D D' + diag(ridge), (q, q)
    Matrix<const double> exact_gram;  // the same in double
    Matrix<const X> atoms;            // D, (q, m)
    Vector<const double> lam;         // weights, (q,), all positive
    Vector<const double> ridge;       // (q,)
    bool nonnegative;
    double tol;  // a row is done when gap <= tol * objective, or after `max_iter` rounds
    std::int64_t max_iter;
    double rounding;  // relative rounding of a sum over atoms and features, see `write`
};

/// The rows of a tile: signals and correlations, and what is written for them.
template <class S, class X>
struct LassoRows {
    Matrix<const X> x;  // (n, m)
    Matrix<const S> c;  // (n, q)
    bool warm;          // whether `codes` holds a start
    Matrix<X> codes;    // (n, q)
    Vector<double> objective;
    Vector<double> gap;
    Vector<std::int64_t> iterations;
};

template <class S, class X>
class LassoSolver {
public:
    explicit LassoSolver(const LassoProblem<S, X>& problem)
        : p(problem),
          q(problem.atoms.rows),
          m(problem.atoms.columns),
          capacity(std::min(q, LARGEST_SUPPORT)),
          stride(padded(capacity) + PAD),
          inverse_lam(q),
          u(q),
          excess(q),
          listed(q),
          active(q + PAD),
          rows(q),
          factors(q),
          member(q, 0),
          z(q + PAD),
          signs(q + PAD),
          linear(q + PAD),
          weights(q + PAD),
          target(q + PAD),
          rhs(q + PAD),
          inverse(static_cast<std::size_t>(padded(capacity)) * stride),
          residual(m),
          lost(m),
          norms(q),
          exact_inverse(q),
          dense(q),
          exact_u(q) {
        for (int i = 0; i < q; i++) {
            exact_inverse[i] = 1 / p.lam[i];
            inverse_lam[i] = static_cast<S>(exact_inverse[i]);
            norms[i] = std::sqrt(dot(p.atoms.row(i), p.atoms.row(i)));
            steepest = std::max(steepest, norms[i] * exact_inverse[i]);
        }
        unit = std::max<double>(std::numeric_limits<S>::epsilon(), std::numeric_limits<X>::epsilon());
    }

    /// Solve every row. Objective and gap are those of the codes as stored.
    void solve(const LassoRows<S, X>& rows) {
        for (int k = 0; k < rows.x.rows; k++) {
            x = rows.x.row(k);
            c = rows.c.row(k);
            code = rows.codes.row(k);
            energy = dot(x, x);
            rounds = 0;
            size = used = 0;
            if (rows.warm) read_start();
            const bool solved = search();
            finish(solved, rows.objective[k], rows.gap[k]);
            rows.iterations[k] = rounds;
            for (int j = 0; j < size; j++) member[active[j]] = 0;
            for (auto* values : {&z, &linear, &weights}) std::fill_n(values->begin(), padded(used), 0.0);
        }
    }

private:
    // a violator joins the support if its excess is at least this fraction of the largest one
    static constexpr double FRACTION = 0.75;
    // the largest number of atoms that join at once
    static constexpr int JOIN = 8;
    // how often the code of a solved support is refined to the accuracy of double
    static constexpr int REFINEMENTS = 2;
    // the largest support that is solved directly; larger ones are left to coordinate descent
    static constexpr int LARGEST_SUPPORT = 1024;
    // What belongs to the support is padded to a multiple of this many numbers, so that loops over it
    // consist of whole vectors and rarely change in length: there is nothing for the processor to guess.
    // Rows and columns of the inverse are zero there, and so are its products.
    static constexpr int PAD = 8;

    const LassoProblem<S, X> p;
    const int q, m, capacity, stride;
    double steepest = 0;  // max_i ||D_i|| / lam_i
    double unit = 0;      // of rounding in the correlations of the search

    AlignedVector<S> inverse_lam;
    AlignedVector<S> u;       // correlations of the residual
    AlignedVector<S> excess;  // |u_i| / lam_i
    std::vector<int> listed;

    // The active set: entry k belongs to the atom active[k]. Positions from `size` on hold numbers of atoms that
    // have left, and zeros between rows: nothing of one row may reach another.
    int size = 0;
    int used = 0;  // the largest size in this row
    std::vector<int> active;
    std::vector<const S*> rows;  // G_i, and z_i
    AlignedVector<S> factors;
    std::vector<char> member;  // by atom
    AlignedVector<double> z, signs;
    AlignedVector<double> linear, weights;  // c_i, and lam_i times the sign

    AlignedVector<double> target, rhs;
    AlignedVector<double> inverse;  // G_AA^{-1}
    AlignedVector<double> residual;
    std::vector<double> lost;           // the part of the signal that is lost by storing the code
    std::vector<double> norms;          // ||D_i||
    std::vector<double> exact_inverse;  // 1 / lam_i
    AlignedVector<double> dense;        // a code, or a copy of z
    std::vector<double> exact_u;

    // The row in hand.
    const X* x = nullptr;
    const S* c = nullptr;
    X* code = nullptr;
    double energy = 0;
    std::int64_t rounds = 0;

    static int padded(int count) { return pursuit::padded(count, PAD); }
    double* inverse_row(int k) { return inverse.data() + static_cast<std::size_t>(k) * stride; }
    double one_sided(double value) const { return p.nonnegative ? value : std::abs(value); }

    /// Read the support of the starting code.
    void read_start() {
        for (int i = 0; i < q; i++) {
            if (code[i] == 0) continue;
            join(i, code[i], code[i] > 0 ? 1 : -1);
        }
    }

    /// Append an atom to the support.
    void join(int atom, double value, double sign) {
        active[size] = atom;
        z[size] = value;
        signs[size] = sign;
        linear[size] = c[atom];
        weights[size] = p.lam[atom] * sign;
        member[atom] = 1;
        size++;
        used = std::max(used, size);
    }

    // The two stages of a row ------------------------------------------------------------------

    /// Solve on the support and let the worst violators join, until there are none.
    /// Return false if the support is too large, or its atoms too dependent, to be solved directly.
    bool search() {
        int known = 0;
        double best = std::numeric_limits<double>::infinity();
        if (size > capacity) return false;
        while (true) {
            if (!enter(known)) return false;
            solve_support();
            known = size;
            for (int k = 0; k < size; k++) {
                rows[k] = p.gram.row(active[k]);
                factors[k] = static_cast<S>(z[k]);
            }
            const double gauge = correlate(c, size);
            double value, bound;
            estimate(gauge, value, bound);
            if (rounds >= p.max_iter || bound <= 0.25 * p.tol * value || !(value < best)) return true;
            best = value;
            grow(gauge);
            if (size == known) return true;
            rounds++;
        }
    }

    /// Write the code and certify it, after improvements; start again from zero if it is worse than that.
    void finish(bool solved, double& value, double& bound) {
        improve(solved, value, bound);
        if (!(value > 0.5 * energy) || size == 0) return;
        for (int k = 0; k < size; k++) member[active[k]] = 0;
        size = 0;
        improve(false, value, bound);
    }

    /// Write the code and certify it; refine it, or descend by coordinates, if it misses `tol`.
    void improve(bool solved, double& value, double& bound) {
        if (!solved) rounds += descend(p.max_iter - rounds);
        value = std::numeric_limits<double>::infinity();
        double moved = 0;
        int attempts = 0;
        while (true) {
            const double before = value;
            write(moved, value, bound);
            if (bound <= p.tol * value || !solved) return;
            if (value > before) {  // the refinement made it worse
                std::copy_n(dense.begin(), size, z.begin());
            } else if (size > 0 && attempts < REFINEMENTS) {
                attempts++;
                moved += refine();
                continue;
            }
            if (sizeof(S) < 8 || rounds >= p.max_iter) return;
            // rounding ended the search, as with nearly dependent atoms
            solved = false;
            rounds += descend(p.max_iter - rounds);
        }
    }

    // Search: correlations of all atoms, and who joins -------------------------------------------

    /// u = from - G z with the first `count` atoms of the support, and excess_i = |u_i| / lam_i
    /// (u_i / lam_i if non-negative); return the largest, at least 0.
    double correlate(const S* from, int count) {
        int i = 0;
        Pack<S> largest = {};
        for (; i + 8 * LANES<S> <= q; i += 8 * LANES<S>) correlate_at<8>(i, from, count, largest);
        if (i + 4 * LANES<S> <= q) correlate_at<4>(i, from, count, largest), i += 4 * LANES<S>;
        for (; i + LANES<S> <= q; i += LANES<S>) correlate_at<1>(i, from, count, largest);
        S lanes[LANES<S>], worst = 0;
        store<S>(lanes, largest);
        for (const S lane : lanes) worst = std::max(worst, lane);
        for (; i < q; i++) {
            S sum = from[i];
            for (int k = 0; k < count; k++) sum -= factors[k] * rows[k][i];
            u[i] = sum;
            excess[i] = (p.nonnegative ? sum : std::abs(sum)) * inverse_lam[i];
            worst = excess[i] > worst ? excess[i] : worst;
        }
        return worst;
    }

    /// The same for V vectors of atoms from i on, whose sums stay in registers.
    template <int V>
    PURSUIT_INLINE void correlate_at(int i, const S* from, int count, Pack<S>& largest) {
        Pack<S> sums[V];
        PURSUIT_UNROLL
        for (int v = 0; v < V; v++) sums[v] = load(from + i + v * LANES<S>);
        for (int k = 0; k < count; k++) {
            const S factor = factors[k];
            const S* row = rows[k] + i;
            PURSUIT_UNROLL
            for (int v = 0; v < V; v++) sums[v] -= factor * load(row + v * LANES<S>);
        }
        PURSUIT_UNROLL
        for (int v = 0; v < V; v++) {
            const int at = i + v * LANES<S>;
            store<S>(u.data() + at, sums[v]);
            const Pack<S> size = p.nonnegative ? sums[v] : larger(sums[v], Pack<S>{} - sums[v]);
            const Pack<S> weighted = size * load(inverse_lam.data() + at);
            store<S>(excess.data() + at, weighted);
            largest = larger(weighted, largest);
        }
    }

    /// List the atoms whose excess reaches a threshold; return their number.
    int list_above(double threshold) {
        const S limit = static_cast<S>(threshold);
        int count = 0, i = 0;
        for (; i + LANES<S> <= q; i += LANES<S>) {
            for (unsigned bits = at_least<S>(load(excess.data() + i), limit); bits != 0; bits &= bits - 1)
                listed[count++] = i + lowest_bit(bits);
        }
        for (; i < q; i++)
            if (excess[i] >= limit) listed[count++] = i;
        return count;
    }

    /// Objective and gap of a solved support, where ||r||^2 = ||x||^2 - z'(c + lam s).
    void estimate(double gauge, double& value, double& bound) const {
        Pack<double> fits = {}, penalties = {};
        for (int k = 0; k < padded(size); k += LANES<double>) {
            const Pack<double> values = load(z.data() + k), weighted = load(weights.data() + k) * values;
            fits += load(linear.data() + k) * values + weighted;
            penalties += weighted;
        }
        const double square = std::max(energy - sum_of<double>(fits), 0.0);
        const double penalty = sum_of<double>(penalties);
        const double slack = 1 - 1 / std::max(gauge, 1.0);
        value = 0.5 * square + penalty;
        bound = 0.5 * slack * slack * square + slack * penalty;
    }

    /// Let the worst violators join with value 0 and the sign of u.
    void grow(double gauge) {
        const int most = std::min(size + JOIN, capacity);
        const int count = list_above(1 + FRACTION * (gauge - 1));
        for (int k = 0; k < count; k++) {
            const int i = listed[k];
            if (!(excess[i] > 1) || member[i] || size >= most) continue;
            join(i, 0, u[i] > 0 ? 1 : -1);
        }
    }

    // Search: solving on the support --------------------------------------------------------------

    /// Border the inverse by the atoms at positions `known` to `size`, which have just joined.
    ///
    /// An atom that depends on the solved support replaces one atom of it (`exchange`); one that
    /// depends on others that joined with it leaves again, and may join in a later round. Return
    /// false if an atom could be neither added nor exchanged.
    bool enter(int known) {
        int first = known;
        while (known < size) {
            if (insert(known)) {
                known++;
                continue;
            }
            if (known == first) {
                const int leaving = exchange(known);
                if (leaving < 0) return false;
                member[active[leaving]] = 0;
                remove(leaving, known);
                first = --known;
                move(known, leaving);
                move(known + 1, known);
                move(size - 1, known + 1);
            } else {
                member[active[known]] = 0;
                move(size - 1, known);
            }
            size--;
        }
        return true;
    }

    /// A pivot below this fraction of its diagonal entry counts as zero. The inverse magnifies rounding
    /// by diagonal / pivot, in the next pivot too: hence the root.
    static double dependence() { return 8 * std::sqrt(static_cast<double>(std::numeric_limits<S>::epsilon())); }

    /// Copy an entry of the support to another position.
    void move(int from, int to) {
        active[to] = active[from];
        z[to] = z[from];
        signs[to] = signs[from];
        linear[to] = linear[from];
        weights[to] = weights[from];
    }

    /// Move along a direction that does not change the residual until a coefficient is zero.
    ///
    /// The new atom, at position `known`, equals the combination `target` of the solved support.
    /// Adding t times its sign to its coefficient and subtracting the same combination from the
    /// others changes only the penalty, which decreases because the atom violates its bound. Return
    /// the position that reaches zero first, or -1. Factors that are due to rounding do not count:
    /// the step would be enormous.
    int exchange(int known) {
        const double sign = signs[known], least = dependence() * norms[active[known]];
        double step = 1e300;
        int leaving = -1;
        for (int k = 0; k < known; k++) {
            const double pull = sign * target[k];
            if (std::abs(pull) * norms[active[k]] < least) continue;
            if (pull * signs[k] > 0 && z[k] / pull < step) {
                step = z[k] / pull;
                leaving = k;
            }
        }
        if (leaving >= 0) {
            for (int k = 0; k < known; k++) z[k] -= step * sign * target[k];
            z[known] += step * sign;
            z[leaving] = 0;
        }
        return leaving;
    }

    /// Solve, step to the first sign change, drop that atom, and solve again.
    void solve_support() {
        while (size > 0) {
            const int width = padded(size);
            for (int k = 0; k < width; k += LANES<double>)
                store<double>(rhs.data() + k, load(linear.data() + k) - load(weights.data() + k));
            multiply(rhs.data(), width, target.data());
            double step = 1;
            const int leaving = first_change(step);
            for (int k = 0; k < width; k += LANES<double>) {
                const Pack<double> values = load(z.data() + k);
                store<double>(z.data() + k, values + step * (load(target.data() + k) - values));
            }
            if (leaving < 0) return;
            member[active[leaving]] = 0;
            remove(leaving, size);
            size--;
            move(size, leaving);
        }
    }

    /// The coefficient that is the first to reach zero on the way from z to `target`, or -1 if none
    /// changes its sign; `step` receives the part of the way.
    int first_change(double& step) const {
        int leaving = -1;
        for (int k = 0; k < size; k += LANES<double>) {
            const Pack<double> signed_target = load(target.data() + k) * load(signs.data() + k);
            const unsigned present = (1u << std::min(size - k, LANES<double>)) - 1;
            unsigned bits = ~at_least<double>(signed_target, std::numeric_limits<double>::denorm_min()) & present;
            for (; bits != 0; bits &= bits - 1) {
                const int i = k + lowest_bit(bits);
                const double ratio = z[i] != 0 ? z[i] / (z[i] - target[i]) : 0.0;
                if (ratio < step) {
                    step = ratio;
                    leaving = i;
                }
            }
        }
        return leaving;
    }

    /// product = G_AA^{-1} values, padded vectors of length `width`.
    void multiply(const double* PURSUIT_RESTRICT values, int width, double* PURSUIT_RESTRICT product) {
        constexpr int VECTORS = PAD / LANES<double>;
        for (int start = 0; start < width; start += PAD) {
            Pack<double> sums[2][VECTORS] = {};
            for (int first = 0; first < width; first += PAD) {
                PURSUIT_UNROLL
                for (int k = 0; k < PAD; k++) {
                    const double* row = inverse_row(first + k) + start;
                    PURSUIT_UNROLL
                    for (int v = 0; v < VECTORS; v++)
                        sums[k % 2][v] += values[first + k] * load(row + v * LANES<double>);
                }
            }
            PURSUIT_UNROLL
            for (int v = 0; v < VECTORS; v++)
                store<double>(product + start + v * LANES<double>, sums[0][v] + sums[1][v]);
        }
    }

    /// Border the inverse by the atom active[at]; return false if it depends on the others.
    ///
    /// With g the new column of G_AA, h = B g and s = G_ii - g'h, the inverse B becomes
    /// [[B + h h'/s, -h/s], [-h'/s, 1/s]]. `target` receives h.
    bool insert(int at) {
        const S* atom = p.gram.row(active[at]);
        const int old = padded(at), width = padded(at + 1);
        double* column = rhs.data();
        double* image = target.data();
        for (int k = 0; k < old; k++) column[k] = k < at ? atom[active[k]] : S(0);
        multiply(column, old, image);
        const double diagonal = atom[active[at]];
        Pack<double> products = {};
        for (int k = 0; k < old; k += LANES<double>) products += load(column + k) * load(image + k);
        const double pivot = diagonal - sum_of<double>(products);
        if (pivot <= dependence() * diagonal) return false;
        if (width > old) grow_inverse(old, width, image);
        image[at] = -1;
        add_outer(width, 1 / pivot, image);
        return true;
    }

    /// Append zeros to the inverse and to a vector.
    void grow_inverse(int old, int width, double* PURSUIT_RESTRICT vector) {
        for (int k = 0; k < old; k++) std::fill_n(inverse_row(k) + old, PAD, 0.0);
        for (int k = old; k < width; k++) std::fill_n(inverse_row(k), width, 0.0);
        std::fill_n(vector + old, PAD, 0.0);
    }

    /// Remove an atom from the inverse, B <- B - b b'/b_j; the last one takes its place.
    void remove(int leaving, int count) {
        const int width = padded(count), last = count - 1;
        const double scale = -1 / inverse_row(leaving)[leaving];
        std::copy_n(inverse_row(leaving), width, rhs.data());
        add_outer(width, scale, rhs.data());
        if (leaving != last) std::copy_n(inverse_row(last), width, inverse_row(leaving));
        std::fill_n(inverse_row(last), width, 0.0);
        for (int k = 0; k < width; k++) {
            double* row = inverse_row(k);
            row[leaving] = row[last];
            row[last] = 0;
        }
    }

    /// B += scale v v'.
    void add_outer(int width, double scale, const double* PURSUIT_RESTRICT v) {
        for (int start = 0; start < width; start += PAD) {
            constexpr int VECTORS = PAD / LANES<double>;
            Pack<double> part[VECTORS];
            PURSUIT_UNROLL
            for (int i = 0; i < VECTORS; i++) part[i] = scale * load(v + start + i * LANES<double>);
            for (int first = 0; first < width; first += PAD) {
                PURSUIT_UNROLL
                for (int k = 0; k < PAD; k++) {
                    double* row = inverse_row(first + k) + start;
                    PURSUIT_UNROLL
                    for (int i = 0; i < VECTORS; i++) {
                        double* at = row + i * LANES<double>;
                        store<double>(at, load<double>(at) + v[first + k] * part[i]);
                    }
                }
            }
        }
    }

    // Finish: certificate, refinement, coordinate descent -----------------------------------------

    /// Write the code and compute objective and gap of what was written, in double.
    ///
    /// The dual point is the residual r of z before it is rounded to the stored code, scaled by
    /// k = 1 / max(1, gauge). With d = z - code the residual of the code is r + d D, and
    ///
    ///     gap = 1/2 ||(1 - k) r + d D||^2 + sum_i (lam_i |code_i| - k code_i u_i),
    ///
    /// where ||d D||^2 is replaced by a bound if that is below the rounding. Off the support most
    /// correlations of the search are so far below lam that their error cannot matter; the others are
    /// computed again. `moved` bounds ||change of z D|| since the search. `target` receives the exact
    /// correlations on the support.
    ///
    /// Rounding: u_i is wrong by e (||D_i|| ||r|| + ridge_i |z_i|) at most, e = `rounding`, where
    /// ridge_i |z_i| <= ||D_i|| ||r|| + |u_i|, and the gauge is raised by that; the gap receives
    /// e (a sqrt(2 F) + e a^2 + F), a = ||x|| + sum_i |z_i| ||D_i||.
    void write(double moved, double& objective, double& bound) {
        std::fill_n(code, q, X(0));
        std::copy_n(x, m, residual.data());
        subtract_atoms();
        const double* r = residual.data();
        double quadratic = dot(r, r);
        const double length = std::sqrt(quadratic);
        double gauge = 1, penalty = 0, product = 0, cross = 0, total = 0;
        for (int k = 0; k < size; k++) {
            const int i = active[k];
            code[i] = static_cast<X>(z[k]);
            const double value = code[i];
            const double exact = dot(p.atoms.row(i), r) - p.ridge[i] * z[k];
            target[k] = exact;
            quadratic += p.ridge[i] * z[k] * z[k];
            penalty += p.lam[i] * std::abs(value);
            total += norms[i] * std::abs(value);
            product += exact * value;
            cross += exact * (z[k] - value);
            gauge = std::max(gauge, one_sided(exact) * exact_inverse[i]);
        }
        const double magnitude = std::sqrt(energy) + total;
        const double margin = unit * (m + size + 16.0) * magnitude + moved;
        const int count = list_above(1 - margin * steepest);
        for (int k = 0; k < count; k++) {
            const int i = listed[k];
            if (code[i] == 0) gauge = std::max(gauge, one_sided(dot(p.atoms.row(i), r)) * exact_inverse[i]);
        }
        gauge += p.rounding * (gauge + 2 * length * steepest);
        double second = 0;
        if (sizeof(X) < sizeof(double)) {
            const double most = 0.5 * std::numeric_limits<X>::epsilon() * total;
            second = most * most;
            if (second > p.rounding * (magnitude * length + penalty)) second = lost_energy();
        }
        const double scale = 1 / gauge, slack = 1 - scale;
        objective = 0.5 * (quadratic + 2 * cross + second) + penalty;
        bound = 0.5 * (slack * slack * quadratic + 2 * slack * cross + second) + penalty - scale * product;
        bound = std::min(std::max(bound, 0.0), objective);  // zero is a dual point too
        const double error = p.rounding * magnitude;
        bound += error * (std::sqrt(2 * objective) + error) + p.rounding * objective;
    }

    /// ||d D||^2 with the ridge, d = z - code.
    double lost_energy() {
        std::fill(lost.begin(), lost.end(), 0.0);
        double sum = 0;
        for (int k = 0; k < size; k++) {
            const int i = active[k];
            const double d = z[k] - static_cast<double>(code[i]);
            const X* atom = p.atoms.row(i);
            for (int j = 0; j < m; j++) lost[j] += d * atom[j];
            sum += p.ridge[i] * d * d;
        }
        return sum + dot(lost.data(), lost.data());
    }

    /// residual -= z D, four atoms at a time so that it is loaded and stored less often.
    void subtract_atoms() {
        double* PURSUIT_RESTRICT r = residual.data();
        int k = 0;
        for (; k + 3 < size; k += 4) {
            const X* PURSUIT_RESTRICT d0 = p.atoms.row(active[k]);
            const X* PURSUIT_RESTRICT d1 = p.atoms.row(active[k + 1]);
            const X* PURSUIT_RESTRICT d2 = p.atoms.row(active[k + 2]);
            const X* PURSUIT_RESTRICT d3 = p.atoms.row(active[k + 3]);
            const double z0 = z[k], z1 = z[k + 1], z2 = z[k + 2], z3 = z[k + 3];
            PURSUIT_SIMD
            for (int j = 0; j < m; j++) r[j] -= (z0 * d0[j] + z1 * d1[j]) + (z2 * d2[j] + z3 * d3[j]);
        }
        for (; k < size; k++) {
            const X* PURSUIT_RESTRICT d = p.atoms.row(active[k]);
            const double value = z[k];
            PURSUIT_SIMD
            for (int j = 0; j < m; j++) r[j] -= value * d[j];
        }
    }

    /// The product of two vectors of length m, in double.
    template <class A, class B>
    double dot(const A* a, const B* b) const {
        double sum = 0;
        PURSUIT_SIMD_REDUCE(+ : sum)
        for (int j = 0; j < m; j++) sum += static_cast<double>(a[j]) * static_cast<double>(b[j]);
        return sum;
    }

    /// Take one step of iterative refinement on the support; return how far the signal moved at most.
    ///
    /// The search rounds to its dtype; the correlations in `target` are exact. `dense` receives a
    /// copy of z before the step.
    double refine() {
        for (int k = 0; k < size; k++) {
            dense[k] = z[k];
            rhs[k] = target[k] - p.lam[active[k]] * signs[k];
        }
        multiply(rhs.data(), padded(size), target.data());
        double moved = 0;
        for (int k = 0; k < size; k++) {
            const double refined = z[k] + target[k];
            if (!(refined * signs[k] > 0)) continue;
            moved += norms[active[k]] * std::abs(refined - z[k]);
            z[k] = refined;
        }
        return moved;
    }

    /// Cyclic coordinate descent in double, at most `most` sweeps, for dependent atoms.
    ///
    /// Starts from the support and replaces it. `u` and `excess` receive the correlations of the
    /// result. Return the number of sweeps. They also end when sweeps as good as the last one would
    /// gain nothing: less than tol^2 of the objective, since the gap is of first order in the violation
    /// of optimality and the gain of second.
    std::int64_t descend(std::int64_t most) {
        std::fill(dense.begin(), dense.end(), 0.0);
        for (int k = 0; k < size; k++) dense[active[k]] = z[k];
        double* PURSUIT_RESTRICT v = exact_u.data();
        for (int i = 0; i < q; i++) v[i] = dot(p.atoms.row(i), x);
        for (int k = 0; k < size; k++) {
            const double* PURSUIT_RESTRICT row = p.exact_gram.row(active[k]);
            PURSUIT_SIMD
            for (int i = 0; i < q; i++) v[i] -= z[k] * row[i];
        }
        std::int64_t sweeps = 0;
        while (sweeps < most) {
            sweeps++;
            double gain = 0;
            for (int i = 0; i < q; i++) {
                const double* PURSUIT_RESTRICT row = p.exact_gram.row(i);
                const double pull = v[i] + row[i] * dense[i];
                const double shrunk =
                    p.nonnegative || pull > 0 ? std::max(pull - p.lam[i], 0.0) : std::min(pull + p.lam[i], 0.0);
                const double change = shrunk / row[i] - dense[i];
                if (change == 0) continue;
                dense[i] = shrunk / row[i];
                gain += 0.5 * row[i] * change * change;
                PURSUIT_SIMD
                for (int j = 0; j < q; j++) v[j] -= change * row[j];
            }
            if (descent_is_over(gain * static_cast<double>(most - sweeps))) break;
        }
        size = 0;
        for (int i = 0; i < q; i++) {
            u[i] = static_cast<S>(v[i]);
            member[i] = 0;
            if (dense[i] == 0) continue;
            active[size] = i;
            z[size] = dense[i];
            size++;
        }
        used = std::max(used, size);
        correlate(u.data(), 0);
        return sweeps;
    }

    /// Whether the gap of the code in `dense` is at most a quarter of what `tol` allows, or the gain
    /// that is left negligible.
    bool descent_is_over(double gain) const {
        double gauge = 1, penalty = 0, product = 0, fit = 0;
        for (int i = 0; i < q; i++) {
            gauge = std::max(gauge, one_sided(exact_u[i]) / p.lam[i]);
            if (dense[i] == 0) continue;
            penalty += p.lam[i] * std::abs(dense[i]);
            product += exact_u[i] * dense[i];
            fit += dot(p.atoms.row(i), x) * dense[i];
        }
        const double square = std::max(energy - fit - product, 0.0), scale = 1 / gauge;
        const double bound = 0.5 * (1 - scale) * (1 - scale) * square + penalty - scale * product;
        const double value = 0.5 * square + penalty;
        const double least = std::max(p.tol, std::numeric_limits<double>::epsilon());
        return bound <= 0.25 * p.tol * value || gain <= least * least * value;
    }
};

}  // namespace pursuit
