// Exact codes of robust PCA and robust NMF by projected semismooth Newton steps.
//
// The Huber problem has the Hessian D0_M D0_M' + lam_star I, where M are the features inside their
// threshold, those that are no outliers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "arrays.hpp"
#include "cholesky.hpp"
#include "huber.hpp"
#include "lanes.hpp"
#include "masked_gram.hpp"

namespace pursuit {

template <class T>
class HuberNewton {
public:
    static constexpr double SINGLE_SHARE = 0.7, DOUBLE_SHARE = 0.9;
    static constexpr std::int64_t ATTEMPTS = 1;

    HuberNewton(const HuberProblem& problem, HuberPasses<T>& passes)
        : p(problem),
          passes(passes),
          q(p.q()),
          gradient(p.depth()),
          step(p.depth()),
          change(passes.width),
          gram(p.dictionary<T>(), p.gram),
          known(q),
          system(q),
          free(q),
          state(q),
          wrong(q),
          local(q),
          target(q) {}

    /// See `HuberSolver`.
    std::int64_t descend(double* scores, double tol, std::int64_t max_iter, bool warm) {
        code = scores;
        gram.forget();
        const int ridge_steps = warm || p.nonnegative ? 0 : 2;
        int idle = 0, reweighted = 0;
        double before = std::numeric_limits<double>::infinity();
        for (std::int64_t done = 0; done < max_iter; done++) {
            double value = done == 0 ? passes.renew(code) : passes.refresh();
            const double gap = passes.judge(code, gradient.data(), value);
            if (!(gap > tol * value)) return done;
            if (done < ridge_steps)
                ridge_step(p, gradient.data(), step.data());
            else
                newton_step(reweighted > 0);
            double slope = 0;
            for (int j = 0; j < q; j++) slope += gradient[j] * step[j];
            // Allow two steps whose gain is below the rounding of the objective.
            const bool lost = !(-slope > 4 * ROUNDING * value);
            idle += lost || !(value < before);
            before = value;
            if (!(slope < 0) || idle > 2) return done;
            std::fill(change.begin(), change.end(), T(0));
            passes.subtract_atoms(step.data(), change.data());
            const double length = lost ? 1 : step_length(slope, value);
            if (!(length > 0)) return done;
            // After a short step too many features changed sides for the mask to be a good model.
            reweighted = length < 0.3 ? 2 : std::max(reweighted - 1, 0);
            move(length);
        }
        return max_iter;
    }

private:
    static constexpr double ROUNDING = std::is_same_v<T, float> ? 6e-8 : 1.2e-16;
    static constexpr int TRIALS = 40;  // of a step length; the last half bisects

    const HuberProblem& p;
    HuberPasses<T>& passes;
    const int q;
    double* code = nullptr;
    AlignedVector<double> gradient, step;
    AlignedVector<T> change;  // -p D0 for a step p

    // The model of a step. Known atoms had a positive score or a negative gradient since `gram` was
    // begun; arrays that follow it are indexed by its positions.
    MaskedGram<T> gram;
    std::vector<char> known;  // by atom
    Cholesky system;
    std::vector<int> free;
    std::vector<char> state, wrong;  // free or zero; whether that is of the wrong sign
    std::vector<double> local, target;

    // Step length -------------------------------------------------------------------------------

    struct Curve {
        double value, slope, curvature;
    };

    /// The length of a descent step: Newton's method on the slope of
    ///
    ///     phi(t) = sum_i huber(r_i - t (p D0)_i) + lam_star/2 ||s + t p||^2,
    ///
    /// convex and piecewise quadratic, until the slope is a tenth of the first one and phi satisfies
    /// Armijo's rule. Every trial costs one pass over the m features.
    double step_length(double first, double value) const {
        double norm = 0, cross = 0, square = 0;
        double ceiling = std::numeric_limits<double>::infinity();
        for (int j = 0; j < q; j++) {
            norm += code[j] * code[j];
            cross += code[j] * step[j];
            square += step[j] * step[j];
            if (p.nonnegative && step[j] < 0) ceiling = std::min(ceiling, -code[j] / step[j]);
        }
        double low = 0, high = ceiling, t = std::min(1.0, ceiling);
        for (int trial = 0; trial < TRIALS; trial++) {
            const Curve huber = along(static_cast<T>(t));
            const double slope = huber.slope + p.lam_star * (cross + t * square);
            const double curvature = huber.curvature + p.lam_star * square;
            if (std::abs(slope) <= -0.1 * first) {
                const double here = huber.value + 0.5 * p.lam_star * (norm + t * (2 * cross + t * square));
                if (slope <= 0 || here <= value + 1e-4 * t * first + 8 * ROUNDING * value) return t;
            }
            if (slope < 0) {
                low = t;
                if (t >= ceiling) return t;
            } else {
                high = t;
            }
            double following = t - slope / curvature;
            if (following >= ceiling && high == ceiling) {
                following = ceiling;
            } else if (!(low < following && following < high) || trial >= TRIALS / 2) {
                following = high < std::numeric_limits<double>::infinity() ? 0.5 * (low + high) : 2 * low;
            }
            t = following;
        }
        return low;
    }

    /// Value, slope and curvature at t of the Huber function of r - t (p D0).
    Curve along(T t) const {
        const T* PURSUIT_RESTRICT rest = passes.residual.data();
        const T* PURSUIT_RESTRICT lam = passes.thresholds.data();
        const T* PURSUIT_RESTRICT move = change.data();
        T value = 0, slope = 0, curvature = 0;
        if (p.nonnegative) {
            PURSUIT_SIMD_REDUCE(+ : value, slope, curvature)
            for (int i = 0; i < passes.width; i++) {
                const T r = rest[i] + t * move[i];
                const T nu = r > lam[i] ? lam[i] : r;
                value += nu * (r - T(0.5) * nu);
                slope += nu * move[i];
                curvature += r <= lam[i] ? move[i] * move[i] : T(0);
            }
        } else {
            PURSUIT_SIMD_REDUCE(+ : value, slope, curvature)
            for (int i = 0; i < passes.width; i++) {
                const T r = rest[i] + t * move[i];
                const T nu = clamp(r, lam[i]);
                value += nu * (r - T(0.5) * nu);
                slope += nu * move[i];
                curvature += std::abs(r) <= lam[i] ? move[i] * move[i] : T(0);
            }
        }
        return {static_cast<double>(value), static_cast<double>(slope), static_cast<double>(curvature)};
    }

    /// s += t p, r -= t p D0; a full step with p_j = -s_j puts s_j on its bound exactly.
    void move(double length) {
        for (int j = 0; j < q; j++) {
            code[j] += length * step[j];
            if (p.nonnegative) code[j] = std::max(code[j], 0.0);
        }
        const T t = static_cast<T>(length);
        T* PURSUIT_RESTRICT rest = passes.residual.data();
        const T* PURSUIT_RESTRICT move = change.data();
        PURSUIT_SIMD
        for (int i = 0; i < passes.width; i++) rest[i] += t * move[i];
    }

    // Direction -----------------------------------------------------------------------------------

    /// Set `step` to the minimiser of the model at r.
    ///
    /// The model has the Hessian of the mask, or, if that led to a short step before, the weights of
    /// reweighted least squares. If the factorisation fails by rounding, a projected gradient step
    /// replaces it.
    void newton_step(bool reweighted) {
        if (reweighted) gram.forget();
        if (gram.size() == 0) std::fill(known.begin(), known.end(), char(0));
        for (int j = 0; j < q; j++) known[j] |= !p.nonnegative || code[j] > 0 || gradient[j] < 0;
        gram.include(known);
        const T* rest = passes.residual.data();
        const T* lam = passes.thresholds.data();
        if (reweighted)
            gram.reweight(rest, lam, p.nonnegative);
        else
            gram.follow(rest, lam, p.nonnegative);
        const bool solved = model_step();
        if (solved) {
            std::fill(step.begin(), step.end(), 0.0);
            for (int b = 0; b < gram.size(); b++) step[gram.atom(b)] = local[b];
        } else {
            gradient_step();
        }
        if (reweighted || !solved) gram.forget();
    }

    void gradient_step() {
        double scale = p.lam_star;
        for (int j = 0; j < q; j++) scale += p.gram(j, j);
        for (int j = 0; j < q; j++) {
            const double move = -gradient[j] / scale;
            step[j] = p.nonnegative ? std::max(move, -code[j]) : move;
        }
    }

    /// p = argmin g p + p (G + ridge I) p / 2 on the known atoms, s + p >= 0 if non-negative.
    ///
    /// Block principal pivoting: all atoms of a wrong sign change sides while that reduces their
    /// number; after three rounds without a reduction, one at a time. Return false if it failed. The
    /// minimiser of a convex model over the feasible set is a descent direction, whatever the mask.
    bool model_step() {
        const int count = gram.size();
        double largest = 0, slack = 0;
        for (int b = 0; b < count; b++) {
            const int j = gram.atom(b);
            largest = std::max(largest, gram.row(b)[b]);
            state[b] = !p.nonnegative || code[j] > 0 || gradient[j] < 0;
            if (known[j]) slack = std::max(slack, 1e-10 * std::abs(gradient[j]));
        }
        // Rounding in the sums must not make the model indefinite.
        const double ridge = p.lam_star + 4 * ROUNDING * largest;
        if (!p.nonnegative) return solve_face(ridge);
        for (int b = 0; b < count; b++)
            for (int c = 0; c < b; c++) gram.row(c)[b] = gram.row(b)[c];
        int fewest = count + 1, patience = 3;
        for (int round = 0; round < 10 + 2 * count; round++) {
            if (!solve_face(ridge)) return false;
            const int wrongs = find_wrong_signs(ridge, slack);
            if (wrongs == 0) return true;
            patience = wrongs < fewest ? 3 : patience - 1;
            fewest = std::min(fewest, wrongs);
            for (int b = count - 1; b >= 0; b--) {
                if (!wrong[b]) continue;
                state[b] = !state[b];
                if (patience < 0) break;
            }
        }
        return false;
    }

    /// Minimise the model with the other atoms at zero; return false if it is not convex.
    bool solve_face(double ridge) {
        const int count = gram.size();
        int n = 0;
        for (int b = 0; b < count; b++) {
            if (!state[b]) continue;
            free[n] = b;
            target[n] = -gradient[gram.atom(b)];
            n++;
        }
        for (int b = 0; b < count; b++) {
            if (state[b]) continue;
            const double s = code[gram.atom(b)];
            local[b] = -s;
            if (s == 0) continue;
            for (int k = 0; k < n; k++) target[k] += gram.row(b)[free[k]] * s;
        }
        for (int k = 0; k < n; k++) {
            const double* row = gram.row(free[k]);
            for (int l = 0; l <= k; l++) system.row(l)[k] = row[free[l]];
            system.row(k)[k] += ridge;
            system.row(k)[n] = target[k];
        }
        if (!system.solve(n, target.data())) return false;
        for (int k = 0; k < n; k++) local[free[k]] = target[k];
        return true;
    }

    /// Mark known atoms with s + p < 0 or a negative multiplier; return their number.
    int find_wrong_signs(double ridge, double slack) {
        const int count = gram.size();
        int total = 0;
        for (int b = 0; b < count; b++) {
            const int j = gram.atom(b);
            if (state[b]) {
                wrong[b] = code[j] + local[b] < 0;
            } else {
                const double* PURSUIT_RESTRICT row = gram.row(b);
                double multiplier = gradient[j] + ridge * local[b];
                PURSUIT_SIMD_REDUCE(+ : multiplier)
                for (int c = 0; c < count; c++) multiplier += row[c] * local[c];
                wrong[b] = known[j] && multiplier < -slack;
            }
            total += wrong[b];
        }
        return total;
    }
};

}  // namespace pursuit
