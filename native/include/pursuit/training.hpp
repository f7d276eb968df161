// The layers of an encoder for training: codes with a tape, and the gradients of everything learned.
//
// Layer k computes, from the codes z after the last layer and z' after the one before it,
//
//   p = c1 z + c2 z',    v = a1 z + a2 z' + u - decay p,    z_new = shrink(v, t),
//
//   u = e x W' + p H'  with decay = 1       in the gram form,
//   u = r W'  with  r = e x - p V           in the residual form,
//
// and the first layer starts from z = z' = 0. In coupled layers of the gram form H follows from W and the
// dictionary: H = I - W D' - diag(decay), where decay is that of the residual form. With an outlier step w
// the code ends in an identity block: V and W continue as I and diag(w). The shrinkage first shrinks single
// coefficients by their soft thresholds, from one side where they must not be negative, and then groups, in
// the order of the stages:
// y_r <- y_r max(0, 1 - t_r / ||y_r||).
//
// Rows are independent, so they pass through all layers in tiles that stay in the cache. Matrices that all
// rows share are packed once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "gemm.hpp"

namespace pursuit {

/// Matrices of the layers: one for all of them, one for each, or one for each but the first.
template <class T>
struct MatrixStack {
    T* data = nullptr;
    int count = 0, rows = 0, columns = 0;

    int index(int layer, int depth) const { return count == 1 ? 0 : std::max(0, layer - (depth - count)); }
    Matrix<T> operator[](int i) const {
        return {data + static_cast<std::ptrdiff_t>(i) * rows * columns, rows, columns};
    }
};

/// The layers: what is given.
template <class T>
struct TrainingLayers {
    bool gram, coupled;
    int depth;                     // T
    int size;                      // q, coefficients
    int stored;                    // coefficients outside of an identity block
    int features;                  // m
    MatrixStack<const T> weight;   // W, (1 or T, stored, m)
    MatrixStack<const T> matrix;   // H, (k, q, q), or V, (k, stored, m), or D, (1, q, m), if gram and coupled
    Matrix<const T> outlier_step;  // w, (1 or T, m); no data without an identity block
    Vector<const T> decay;         // (q,); no data if it is 0
    Matrix<const T> mixing;        // rows a1, a2, c1, c2, e; (T, 5)
    Matrix<const T> thresholds;    // (1 or T, columns); negative ones count as 0
    Matrix<const std::int32_t>
        labels;  // the column of the threshold of each coefficient, -1 for none; (stages, q)
    Vector<const std::uint8_t> grouped;      // whether a stage shrinks groups; (stages,)
    Vector<const std::uint8_t> nonnegative;  // whether a coefficient must not be negative; (q,)
};

/// The gradients, which are added to; without data where they are not needed.
template <class T>
struct TrainingGradients {
    Matrix<T> x;
    MatrixStack<T> weight, matrix;
    Matrix<T> outlier_step, mixing, thresholds;
};

/// What the codes minimise: F(x, z) = 1/2 ||x - z D||^2 + sum_r lam_r ||y_r|| + 1/2 sum_i ridge_i y_i^2.
template <class T>
struct TrainingObjective {
    Matrix<const T> atoms;  // D, (rows, m); where the code is longer, it continues as I
    Vector<const T> lam;    // the weights of the groups of all stages, by their columns of `thresholds`
    Vector<const T> ridge;  // (q,), or no data
    Vector<const T> units;  // y = units z; (q,), or no data if y = z
};

/// The groups of a stage: members of group r are members[begin[r]] to members[begin[r + 1] - 1].
template <class T>
struct GroupStage {
    std::vector<int> members, begin, column;

    GroupStage(const std::int32_t* labels, int size, int columns) {
        std::vector<int> count(columns, 0), place(columns, 0);
        for (int i = 0; i < size; i++) {
            if (labels[i] >= 0) count[labels[i]]++;
        }
        begin.push_back(0);
        for (int c = 0; c < columns; c++) {
            if (count[c] == 0) continue;
            place[c] = begin.back();
            column.push_back(c);
            begin.push_back(begin.back() + count[c]);
        }
        members.resize(begin.back());
        for (int i = 0; i < size; i++) {
            if (labels[i] >= 0) members[place[labels[i]]++] = i;
        }
    }

    int groups() const { return static_cast<int>(column.size()); }

    T norm(int r, const T* y) const {
        T squares = 0;
        for (int k = begin[r]; k < begin[r + 1]; k++) squares += y[members[k]] * y[members[k]];
        return std::sqrt(squares);
    }

    void scale(int r, T* y, T factor) const {
        for (int k = begin[r]; k < begin[r + 1]; k++) y[members[k]] *= factor;
    }
};

/// The shrinkage of rows, and its gradient.
template <class T>
class Shrinkage {
public:
    explicit Shrinkage(const TrainingLayers<T>& given) : q(given.size), g(given) {
        upper.resize(static_cast<std::size_t>(g.thresholds.rows) * q);
        lower.resize(upper.size());
        std::vector<char> shrunk(q, 0);
        for (int s = 0; s < g.labels.rows; s++) {
            if (g.grouped[s]) {
                stages.push_back(Stage(g.labels.row(s), q, g.thresholds.columns));
                continue;
            }
            for (int i = 0; i < q; i++) {
                const int column = g.labels(s, i);
                if (column < 0) continue;
                shrunk[i] = 1;
                for (int k = 0; k < g.thresholds.rows; k++) upper[index(k, i)] += threshold(k, column);
            }
        }
        for (int i = 0; i < q; i++) {
            for (int k = 0; k < g.thresholds.rows; k++) {
                lower[index(k, i)] = g.nonnegative[i] ? -std::numeric_limits<T>::infinity() : -upper[index(k, i)];
            }
            always.push_back(!shrunk[i] && !g.nonnegative[i]);
            one_sided.push_back(g.nonnegative[i] != 0);
            any_always |= always[i] != 0;
            any_one_sided |= one_sided[i] != 0;
        }
        soft_gradient.resize(upper.size());
        before.resize(stages.size() * q);
    }

    /// Whether the gradient needs v besides z.
    bool needs_values() const { return any_one_sided || !stages.empty(); }

    /// z = shrink(v, t) of one row.
    void forward(int layer, const T* PURSUIT_RESTRICT v, T* PURSUIT_RESTRICT z) const {
        soft(layer, v, z);
        for (const Stage& stage : stages) shrink_groups(layer, stage, z);
    }

    /// Write the gradient of v, given that of z. `v` is only read if `needs_values`.
    void backward(int layer, const T* PURSUIT_RESTRICT v, const T* PURSUIT_RESTRICT z, const T* of_z,
                  T* PURSUIT_RESTRICT gradient, const Matrix<T>& thresholds) {
        if (!stages.empty()) {
            std::copy_n(of_z, q, gradient);
            groups_backward(layer, v, gradient, thresholds);
            of_z = gradient;
        }
        T* PURSUIT_RESTRICT soft_sum = &soft_gradient[index(row(layer), 0)];
        const T* PURSUIT_RESTRICT y = stages.empty() ? z : before.data();
        if (!any_one_sided && !any_always) {
            PURSUIT_SIMD
            for (int i = 0; i < q; i++) {
                const T up = y[i] > 0 ? of_z[i] : T(0), down = y[i] < 0 ? of_z[i] : T(0);
                soft_sum[i] -= up - down;
                gradient[i] = up + down;
            }
            return;
        }
        const T* PURSUIT_RESTRICT t = &upper[index(row(layer), 0)];
        const T* PURSUIT_RESTRICT passes = always.data();
        const T* PURSUIT_RESTRICT single = one_sided.data();
        const T* PURSUIT_RESTRICT values = needs_values() ? v : z;
        PURSUIT_SIMD
        for (int i = 0; i < q; i++) {
            // at the threshold itself the gradient of max(v - t, 0) passes
            const T tie = static_cast<T>(values[i] >= t[i]) * single[i];
            const T above = static_cast<T>(y[i] > 0), down = static_cast<T>(y[i] < 0);
            const T up = above > tie ? above : tie, through = up + down;
            soft_sum[i] -= (up - down) * of_z[i];
            gradient[i] = (through > passes[i] ? through : passes[i]) * of_z[i];
        }
    }

    /// Add what was collected of the soft thresholds to their gradient.
    void finish(const Matrix<T>& thresholds) {
        if (thresholds.data != nullptr) {
            for (int s = 0; s < g.labels.rows; s++) {
                if (g.grouped[s]) continue;
                for (int k = 0; k < g.thresholds.rows; k++) {
                    for (int i = 0; i < q; i++) {
                        const int column = g.labels(s, i);
                        if (column >= 0 && g.thresholds(k, column) >= 0)
                            thresholds(k, column) += soft_gradient[index(k, i)];
                    }
                }
            }
        }
        std::fill(soft_gradient.begin(), soft_gradient.end(), T(0));
    }

private:
    using Stage = GroupStage<T>;

    const int q;
    const TrainingLayers<T>& g;
    std::vector<T> upper, lower;       // v is clipped to [lower, upper], and the rest is the code
    std::vector<T> always, one_sided;  // 1 for coefficients that nothing shrinks, or that are not negative
    bool any_always = false, any_one_sided = false;
    std::vector<Stage> stages;
    std::vector<T> soft_gradient;
    std::vector<T> before;  // the row before each stage of groups

    int row(int layer) const { return g.thresholds.rows == 1 ? 0 : layer; }
    T threshold(int k, int column) const { return std::max(T(0), g.thresholds(k, column)); }

    void shrink_groups(int layer, const Stage& stage, T* y) const {
        for (int r = 0; r < stage.groups(); r++) {
            const T norm = stage.norm(r, y), level = threshold(row(layer), stage.column[r]);
            stage.scale(r, y, norm > 0 ? std::max(T(0), 1 - level / norm) : T(0));
        }
    }
    std::size_t index(int k, int i) const { return static_cast<std::size_t>(k) * q + i; }

    void soft(int layer, const T* PURSUIT_RESTRICT v, T* PURSUIT_RESTRICT z) const {
        const T* PURSUIT_RESTRICT high = &upper[index(row(layer), 0)];
        const T* PURSUIT_RESTRICT low = &lower[index(row(layer), 0)];
        PURSUIT_SIMD
        for (int i = 0; i < q; i++) {
            // written so that NaN stays NaN
            const T below = high[i] < v[i] ? high[i] : v[i];
            z[i] = v[i] - (low[i] > below ? low[i] : below);
        }
    }

    /// The gradient of the stages of groups, in place; `before` then begins with the row after `soft`.
    void groups_backward(int layer, const T* v, T* PURSUIT_RESTRICT gradient, const Matrix<T>& thresholds) {
        soft(layer, v, before.data());
        for (std::size_t s = 0; s + 1 < stages.size(); s++) {
            T* next = &before[(s + 1) * q];
            std::copy_n(&before[s * q], q, next);
            shrink_groups(layer, stages[s], next);
        }
        for (std::size_t s = stages.size(); s-- > 0;) {
            const Stage& stage = stages[s];
            const T* y = &before[s * q];
            for (int r = 0; r < stage.groups(); r++) {
                const int k = row(layer), column = stage.column[r];
                const T norm = stage.norm(r, y), level = threshold(k, column);
                const T factor = norm > 0 ? 1 - level / norm : T(0);
                if (!(factor > 0)) {
                    stage.scale(r, gradient, T(0));
                    continue;
                }
                T along = 0;  // of the gradient along the row
                for (int j = stage.begin[r]; j < stage.begin[r + 1]; j++)
                    along += gradient[stage.members[j]] * y[stage.members[j]];
                if (thresholds.data != nullptr && g.thresholds(k, column) >= 0)
                    thresholds(k, column) -= along / norm;
                const T turn = along / norm * (level / norm) / norm;
                for (int j = stage.begin[r]; j < stage.begin[r + 1]; j++) {
                    T& entry = gradient[stage.members[j]];
                    entry = factor * entry + turn * y[stage.members[j]];
                }
            }
        }
    }
};

/// The penalty of rows, and its gradient.
template <class T>
class PenaltyRows {
public:
    PenaltyRows(const TrainingLayers<T>& g, const TrainingObjective<T>& objective)
        : q(g.size), o(objective), lam(q), units(q, T(1)), ridge(q), y(q), slope(q) {
        for (int s = 0; s < g.labels.rows; s++) {
            if (g.grouped[s]) {
                stages.push_back(GroupStage<T>(g.labels.row(s), q, g.thresholds.columns));
                continue;
            }
            for (int i = 0; i < q; i++) {
                if (g.labels(s, i) >= 0) lam[i] += o.lam[g.labels(s, i)];
            }
        }
        if (o.units.data != nullptr) std::copy_n(o.units.data, q, units.begin());
        if (o.ridge.data != nullptr) std::copy_n(o.ridge.data, q, ridge.begin());
    }

    /// Return the penalty of the codes z, and add its gradient.
    T add(const T* PURSUIT_RESTRICT z, T* PURSUIT_RESTRICT gradient) {
        const T* PURSUIT_RESTRICT weight = lam.data();
        const T* PURSUIT_RESTRICT unit = units.data();
        const T* PURSUIT_RESTRICT square = ridge.data();
        T* PURSUIT_RESTRICT code = y.data();
        T* PURSUIT_RESTRICT to_code = slope.data();
        T total = 0;
        PURSUIT_SIMD_REDUCE(+ : total)
        for (int i = 0; i < q; i++) {
            const T value = unit[i] * z[i], bound = weight[i], steep = square[i] * value;
            const T sign = value > 0 ? bound : (value < 0 ? -bound : T(0));
            total += (sign + steep / 2) * value;
            code[i] = value;
            to_code[i] = sign + steep;
        }
        for (const GroupStage<T>& stage : stages) {
            for (int r = 0; r < stage.groups(); r++) {
                const T norm = stage.norm(r, y.data()), level = o.lam[stage.column[r]];
                total += level * norm;
                if (!(norm > 0)) continue;
                for (int k = stage.begin[r]; k < stage.begin[r + 1]; k++)
                    slope[stage.members[k]] += level / norm * y[stage.members[k]];
            }
        }
        PURSUIT_SIMD
        for (int i = 0; i < q; i++) gradient[i] += unit[i] * to_code[i];
        return total;
    }

private:
    const int q;
    const TrainingObjective<T>& o;
    std::vector<GroupStage<T>> stages;
    std::vector<T> lam;  // of single coefficients
    std::vector<T> units, ridge;
    std::vector<T> y, slope;
};

/// The sum of the loss over the training rows, and that of the guard over the others.
struct TrainingLoss {
    double plain = 0, guard = 0;
};

/// What the gradient needs of the codes of `rows` signals; see `TrainingPass`.
template <class T>
struct Tape {
    int rows = 0;
    std::unique_ptr<T[]> data;
};

/// All layers, forward and backward.
template <class T>
class TrainingPass {
public:
    explicit TrainingPass(const TrainingLayers<T>& given)
        : g(given), q(g.size), m(g.features), depth(g.depth), shrinkage(given) {
        tile = std::max(TILE_ROWS, std::min(MOST_ROWS, NUMBERS / std::max(q, m)) / TILE_ROWS * TILE_ROWS);
        matrices = g.matrix;
        if (g.gram && g.coupled) form_couplings();
    }

    /// Write the codes after the last layer, and the tape if there is one.
    void forward(const Matrix<const T>& x, const Matrix<T>& codes, Tape<T>* tape) {
        begin_forward();
        if (tape != nullptr) {
            tape->rows = x.rows;
            tape->data.reset(new T[static_cast<std::size_t>(x.rows) * tape_numbers()]);
        } else {
            unkept.resize(static_cast<std::size_t>(tile) * tape_numbers());
        }
        for (int first = 0; first < x.rows; first += tile) {
            const int n = std::min(tile, x.rows - first);
            T* start = tape == nullptr ? unkept.data() : tape->data.get() + first * tape_numbers();
            forward_tile(rows_of(x, first, n), rows_of(codes, first, n), Slots(*this, start, n));
        }
    }

    /// Add the gradients, given that of the codes.
    void backward(const Matrix<const T>& x, const Matrix<const T>& codes, const Tape<T>& tape,
                  const Matrix<const T>& gradient, const TrainingGradients<T>& out) {
        begin_backward(out);
        for (int first = 0; first < x.rows; first += tile) {
            const int n = std::min(tile, x.rows - first);
            const Matrix<T> gx = out.x.data == nullptr ? Matrix<T>() : rows_of(out.x, first, n);
            backward_tile(rows_of(x, first, n), rows_of(codes, first, n), rows_of(gradient, first, n),
                          Slots(*this, tape.data.get() + first * tape_numbers(), n), gx, out);
        }
        end_backward(out);
    }

    /// Return the loss of the first `plain` rows and the guard of the others, each as a sum.
    ///
    /// The loss of a row is the objective F, or ||z - t||^2 if there are `targets` t, shape (plain, q). The
    /// guard of a row is max(0, log F - log F_0), where F_0 is F of the zero code. With `out`, the gradients of
    /// `weight` times the first sum and `guard_weight` times the second one are added; `atoms` is that of D,
    /// without data if it is not needed.
    TrainingLoss learn(const Matrix<const T>& x, int plain, double weight, double guard_weight,
                       const TrainingObjective<T>& objective, const Matrix<const T>& targets,
                       const TrainingGradients<T>* out, const Matrix<T>& atoms) {
        begin_forward();
        if (out != nullptr) begin_backward(*out);
        PenaltyRows<T> penalty(g, objective);
        pack_one(decoder, {objective.atoms, false});
        pack_one(encoder, {objective.atoms, true});
        unkept.resize(static_cast<std::size_t>(tile) * tape_numbers());
        allocate(last, q);
        allocate(gradient_of_codes, q);
        allocate(rest, m);
        TrainingLoss loss;
        for (int first = 0; first < x.rows;) {
            const bool hard = first >= plain, compares = !hard && targets.data != nullptr;
            const int n = std::min(tile, (hard ? x.rows : plain) - first);
            const Matrix<const T> rows = rows_of(x, first, n);
            const Matrix<T> codes(last.data(), n, q), slopes(gradient_of_codes.data(), n, q),
                r(rest.data(), n, m);
            const Slots slots(*this, unkept.data(), n);
            forward_tile(rows, codes, slots);
            if (!compares) objective_rows(rows, codes, objective, r, slopes);
            bool active = false;
            for (int i = 0; i < n; i++) {
                if (compares) {
                    loss.plain += distance_row(codes.row(i), targets.row(first + i), weight, slopes.row(i));
                    active = true;
                    continue;
                }
                const double squares = dot(r.row(i), r.row(i), m);
                const double value = squares / 2 + penalty.add(codes.row(i), slopes.row(i));
                double factor = weight;
                if (hard) {
                    const double tiny = std::numeric_limits<T>::min();
                    const double start =
                        std::max(tiny, static_cast<double>(dot(rows.row(i), rows.row(i), m)) / 2);
                    const bool below = value <= start;  // NaN is not
                    loss.guard += below ? 0 : std::log(value / start);
                    // what is not finite must not pass as a gradient of zero
                    factor = below ? 0 : std::isfinite(value) ? guard_weight / value : value - value;
                } else {
                    loss.plain += value;
                }
                active |= factor != 0;
                scale(slopes.row(i), static_cast<T>(factor), q);
                scale(r.row(i), static_cast<T>(factor), m);
            }
            if (active && out != nullptr) {
                const Matrix<T> gx = out->x.data == nullptr ? Matrix<T>() : rows_of(out->x, first, n);
                backward_tile(rows, constant(codes), constant(slopes), slots, gx, *out);
                const Matrix<T> stored(codes.data, n, objective.atoms.rows, q);
                if (atoms.data != nullptr && !compares)
                    gemm<T>(-1, {stored, true}, {r, false}, 1, atoms, scratch);
            }
            first += n;
        }
        if (out != nullptr) end_backward(*out);
        return loss;
    }

private:
    // the rows of a tile, and the numbers of one of its code matrices
    static constexpr int MOST_ROWS = 96;
    static constexpr int NUMBERS = 8192;

    /// Rows of some width that one loop runs over, so that its numbers fill vectors and stay in the cache.
    static int rows_at_once(int width) { return std::max(1, 512 / width); }

    const TrainingLayers<T>& g;
    const int q, m, depth;
    int tile;
    Shrinkage<T> shrinkage;
    // packed, as right factors of the products of either direction
    std::vector<AlignedVector<T>> forward_weight, forward_matrix, backward_weight, backward_matrix;
    AlignedVector<T> decoder, encoder;  // the packed dictionary of the objective, and its transpose
    AlignedVector<T> mixed, v, p, gz, carry, gp, gs, gv, gr;
    AlignedVector<T> last, gradient_of_codes, rest;
    AlignedVector<T> unkept;        // the tape of a tile
    MatrixStack<const T> matrices;  // H or V of the layers
    MatrixStack<T> to_matrices;     // and their gradients
    AlignedVector<T> couplings, to_couplings;
    std::vector<double> dots;  // the gradients of the scalars
    GemmScratch<T> scratch;

    /// The parts of the tape for a tile of n rows, each of them contiguous over the layers.
    struct Slots {
        T* z;       // codes after each layer but the last
        T* v;       // what is shrunk in each layer, if needed
        T* signal;  // x W' of each W in the gram form, r of each layer in the residual form
        int n, q, width;

        Slots(const TrainingPass& pass, T* start, int n) : n(n), q(pass.q), width(pass.g.gram ? pass.q : pass.m) {
            z = start;
            v = z + static_cast<std::ptrdiff_t>(n) * q * (pass.depth - 1);
            signal = v + (pass.shrinkage.needs_values() ? static_cast<std::ptrdiff_t>(n) * q * pass.depth : 0);
        }
        Matrix<T> code(int layer) const { return {z + static_cast<std::ptrdiff_t>(layer) * n * q, n, q}; }
        Matrix<T> value(int layer) const { return {v + static_cast<std::ptrdiff_t>(layer) * n * q, n, q}; }
        Matrix<T> part(int k) const { return {signal + static_cast<std::ptrdiff_t>(k) * n * width, n, width}; }
    };

    /// The numbers of the tape for each row.
    std::ptrdiff_t tape_numbers() const {
        const std::ptrdiff_t codes = static_cast<std::ptrdiff_t>(q) * (depth - 1);
        const std::ptrdiff_t values = shrinkage.needs_values() ? static_cast<std::ptrdiff_t>(q) * depth : 0;
        return codes + values +
               (g.gram ? static_cast<std::ptrdiff_t>(q) * g.weight.count
                       : static_cast<std::ptrdiff_t>(m) * depth);
    }

    /// H = I - W D' - diag(decay) for each W.
    void form_couplings() {
        const int count = g.weight.count;
        couplings.resize(static_cast<std::size_t>(count) * q * q);
        for (int k = 0; k < count; k++) {
            const Matrix<T> h(couplings.data() + static_cast<std::ptrdiff_t>(k) * q * q, q, q);
            gemm<T>(-1, {g.weight[k], false}, {g.matrix[0], true}, 0, h, scratch);
            for (int i = 0; i < q; i++) h(i, i) += 1 - (g.decay.data == nullptr ? T(0) : g.decay[i]);
        }
        matrices = {couplings.data(), count, q, q};
    }

    void allocate(AlignedVector<T>& values, int width) const {
        values.resize(static_cast<std::size_t>(tile) * width);
    }

    template <class U>
    static Matrix<U> rows_of(const Matrix<U>& matrix, int first, int count) {
        return {matrix.row(first), count, matrix.columns, matrix.stride};
    }

    static void pack_one(AlignedVector<T>& packed, const Operand<T>& right) {
        packed.resize(static_cast<std::size_t>(right.rows) * padded_columns<T>(right.columns));
        pack_panels(right, packed.data());
    }
    static void pack(std::vector<AlignedVector<T>>& packed, const MatrixStack<const T>& stack, bool transposed) {
        packed.resize(stack.count);
        for (int k = 0; k < stack.count; k++) pack_one(packed[k], {stack[k], transposed});
    }

    static T dot(const T* PURSUIT_RESTRICT a, const T* PURSUIT_RESTRICT b, int count) {
        T sum = 0;
        PURSUIT_SIMD_REDUCE(+ : sum)
        for (int i = 0; i < count; i++) sum += a[i] * b[i];
        return sum;
    }
    static void scale(T* PURSUIT_RESTRICT values, T factor, int count) {
        PURSUIT_SIMD
        for (int i = 0; i < count; i++) values[i] *= factor;
    }

    void begin_forward() {
        pack(forward_weight, g.weight, true);
        if (depth > 1) pack(forward_matrix, matrices, g.gram);
        mixed.resize(static_cast<std::size_t>(tile) * q);
        allocate(v, q);
    }

    void begin_backward(const TrainingGradients<T>& out) {
        if (!g.gram || out.x.data != nullptr) pack(backward_weight, g.weight, false);
        if (depth > 1) pack(backward_matrix, matrices, !g.gram);
        to_matrices = out.matrix;
        if (g.gram && g.coupled) {
            to_couplings.assign(out.weight.data == nullptr && out.matrix.data == nullptr ? 0 : couplings.size(),
                                T(0));
            to_matrices = {to_couplings.empty() ? nullptr : to_couplings.data(), matrices.count, q, q};
        }
        allocate(gz, q);
        allocate(carry, q);
        allocate(gp, q);
        allocate(gs, q);
        allocate(gv, q * depth);
        allocate(p, q * depth);
        if (!g.gram) allocate(gr, m * depth);
        dots.assign(static_cast<std::size_t>(depth) * 5, 0.0);
    }

    void end_backward(const TrainingGradients<T>& out) {
        shrinkage.finish(out.thresholds);
        for (int k = 0; k < matrices.count && g.gram && g.coupled; k++) {
            // of H = I - W D' - diag(decay)
            if (out.weight.data != nullptr)
                gemm<T>(-1, {to_matrices[k], false}, {g.matrix[0], false}, 1, out.weight[k], scratch);
            if (out.matrix.data != nullptr)
                gemm<T>(-1, {to_matrices[k], true}, {g.weight[k], false}, 1, out.matrix[0], scratch);
        }
        if (out.mixing.data == nullptr) return;
        for (int k = 0; k < depth; k++) {
            for (int i = 0; i < 5; i++) out.mixing(k, i) += static_cast<T>(dots[k * 5 + i]);
        }
    }

    /// r = x - z D, and the gradient -r D' of the data term.
    void objective_rows(const Matrix<const T>& x, const Matrix<T>& codes, const TrainingObjective<T>& objective,
                        const Matrix<T>& r, const Matrix<T>& slopes) {
        const int n = x.rows, stored = objective.atoms.rows;
        for (int i = 0; i < n; i++) {
            const T* PURSUIT_RESTRICT from = x.row(i);
            const T* PURSUIT_RESTRICT minus = codes.row(i) + stored;
            T* PURSUIT_RESTRICT to = r.row(i);
            if (stored == q) {
                std::copy_n(from, m, to);
            } else {
                PURSUIT_SIMD
                for (int j = 0; j < m; j++) to[j] = from[j] - minus[j];
            }
        }
        multiply(-1, constant(codes), stored, decoder, 1, r);
        multiply(-1, constant(r), m, encoder, 0, Matrix<T>(slopes.data, n, stored, q));
        for (int i = 0; i < n && stored < q; i++) {
            const T* PURSUIT_RESTRICT from = r.row(i);
            T* PURSUIT_RESTRICT to = slopes.row(i) + stored;
            PURSUIT_SIMD
            for (int j = 0; j < m; j++) to[j] = -from[j];
        }
    }

    /// Return ||z - t||^2, and write its gradient with respect to z, times `weight`.
    double distance_row(const T* PURSUIT_RESTRICT z, const T* PURSUIT_RESTRICT t, double weight,
                        T* PURSUIT_RESTRICT slope) const {
        const T factor = static_cast<T>(2 * weight);
        PURSUIT_SIMD
        for (int i = 0; i < q; i++) slope[i] = z[i] - t[i];
        const double squares = dot(slope, slope, q);
        scale(slope, factor, q);
        return squares;
    }

    /// c = alpha a B + beta c with a packed B; a may be the first columns of a wider matrix.
    static void multiply(T alpha, const Matrix<const T>& a, int inner, const AlignedVector<T>& packed, T beta,
                         const Matrix<T>& c) {
        for_tiles(a.rows, c.columns, inner, a.data, a.stride, false, packed.data(),
                  detail::Store<T>{alpha, beta, c});
    }
    static Matrix<const T> constant(const Matrix<T>& matrix) {
        return {matrix.data, matrix.rows, matrix.columns, matrix.stride};
    }

    void forward_tile(const Matrix<const T>& x, const Matrix<T>& codes, const Slots& tape) {
        const int n = x.rows;
        const Matrix<T> u(v.data(), n, q), point(mixed.data(), n, q);
        if (g.gram) {
            for (int k = 0; k < g.weight.count; k++) multiply(1, x, m, forward_weight[k], 0, tape.part(k));
        }
        for (int k = 0; k < depth; k++) {
            const T* mix = g.mixing.row(k);
            const Matrix<T> z = k == 0 ? Matrix<T>() : tape.code(k - 1);
            const Matrix<T> earlier = k < 2 ? Matrix<T>() : tape.code(k - 2);
            if (k > 0) mix_codes(mix[2], z, mix[3], earlier, point);
            if (g.gram) {
                if (k > 0) multiply(1, constant(point), q, forward_matrix[matrices.index(k, depth)], 0, u);
            } else {
                residual(k, x, point, tape.part(k), u);
            }
            const Matrix<T> to = k + 1 < depth ? tape.code(k) : codes;
            const Matrix<T> values = shrinkage.needs_values() ? tape.value(k) : u;
            const T* decay = g.gram ? nullptr : g.decay.data;
            for (int i = 0; i < n; i += rows_at_once(q)) {
                const int count = std::min(rows_at_once(q), n - i);
                const T* signal = g.gram ? tape.part(g.weight.index(k, depth)).row(i) : nullptr;
                value_rows(k, count, mix, signal, decay, u.row(i), point.row(i), k > 0 ? z.row(i) : nullptr,
                           k > 1 ? earlier.row(i) : nullptr, values.row(i));
                for (int r = i; r < i + count; r++) shrinkage.forward(k, values.row(r), to.row(r));
            }
        }
    }

    /// r = e x - p V, and u = r W'.
    void residual(int k, const Matrix<const T>& x, const Matrix<T>& point, const Matrix<T>& r,
                  const Matrix<T>& u) {
        const int n = x.rows, outliers = q - g.stored;
        const T e = g.mixing(k, 4);
        for (int i = 0; i < n; i++) {
            const T* PURSUIT_RESTRICT from = x.row(i);
            const T* PURSUIT_RESTRICT minus = point.row(i) + g.stored;
            T* PURSUIT_RESTRICT to = r.row(i);
            if (outliers == 0 || k == 0) {
                PURSUIT_SIMD
                for (int j = 0; j < m; j++) to[j] = e * from[j];
            } else {
                PURSUIT_SIMD
                for (int j = 0; j < m; j++) to[j] = e * from[j] - minus[j];
            }
        }
        if (k > 0) multiply(-1, constant(point), g.stored, forward_matrix[matrices.index(k, depth)], 1, r);
        multiply(1, constant(r), m, forward_weight[g.weight.index(k, depth)], 0,
                 Matrix<T>(u.data, n, g.stored, q));
        if (outliers == 0) return;
        const T* PURSUIT_RESTRICT step = outlier_step(k);
        for (int i = 0; i < n; i++) {
            const T* PURSUIT_RESTRICT from = r.row(i);
            T* PURSUIT_RESTRICT to = u.row(i) + g.stored;
            PURSUIT_SIMD
            for (int j = 0; j < m; j++) to[j] = step[j] * from[j];
        }
    }

    const T* outlier_step(int k) const { return g.outlier_step.row(g.outlier_step.rows == 1 ? 0 : k); }

    /// p = c1 z + c2 z'.
    void mix_codes(T c1, const Matrix<T>& z, T c2, const Matrix<T>& earlier, const Matrix<T>& point) const {
        const int count = z.rows * q;
        const T* PURSUIT_RESTRICT now = z.data;
        T* PURSUIT_RESTRICT to = point.data;
        if (earlier.data == nullptr) {
            PURSUIT_SIMD
            for (int i = 0; i < count; i++) to[i] = c1 * now[i];
        } else {
            const T* PURSUIT_RESTRICT before = earlier.data;
            PURSUIT_SIMD
            for (int i = 0; i < count; i++) to[i] = c1 * now[i] + c2 * before[i];
        }
    }

    /// v of some rows; u and values may be the same.
    void value_rows(int k, int rows, const T* mix, const T* PURSUIT_RESTRICT signal,
                    const T* PURSUIT_RESTRICT decay, const T* u, const T* PURSUIT_RESTRICT point,
                    const T* PURSUIT_RESTRICT z, const T* PURSUIT_RESTRICT earlier, T* values) const {
        const int count = rows * q;
        const T a1 = mix[0], a2 = mix[1], e = mix[4];
        if (k == 0) {
            if (signal == nullptr) {
                if (values != u) std::copy_n(u, count, values);
                return;
            }
            PURSUIT_SIMD
            for (int i = 0; i < count; i++) values[i] = e * signal[i];
            return;
        }
        if (signal != nullptr && earlier != nullptr) {
            PURSUIT_SIMD
            for (int i = 0; i < count; i++)
                values[i] = u[i] + e * signal[i] - point[i] + a1 * z[i] + a2 * earlier[i];
            return;
        }
        if (signal != nullptr) {
            PURSUIT_SIMD
            for (int i = 0; i < count; i++) values[i] = u[i] + e * signal[i] - point[i] + a1 * z[i];
            return;
        }
        if (earlier != nullptr) {
            PURSUIT_SIMD
            for (int i = 0; i < count; i++) values[i] = u[i] + a1 * z[i] + a2 * earlier[i];
        } else {
            PURSUIT_SIMD
            for (int i = 0; i < count; i++) values[i] = u[i] + a1 * z[i];
        }
        if (decay == nullptr) return;
        for (int r = 0; r < rows; r++, values += q, point += q) {
            PURSUIT_SIMD
            for (int i = 0; i < q; i++) values[i] -= decay[i] * point[i];
        }
    }

    void backward_tile(const Matrix<const T>& x, const Matrix<const T>& codes, const Matrix<const T>& gradient,
                       const Slots& tape, const Matrix<T>& gx, const TrainingGradients<T>& out) {
        const int n = x.rows;
        const std::ptrdiff_t block = static_cast<std::ptrdiff_t>(n) * q;
        for (int i = 0; i < n; i++)
            std::copy_n(gradient.row(i), q, gz.data() + static_cast<std::ptrdiff_t>(i) * q);
        std::fill_n(carry.data(), block, T(0));
        std::fill_n(gs.data(), block, T(0));
        for (int k = depth - 1; k >= 0; k--) {
            T* slope = gv.data() + k * block;
            for (int i = 0; i < n; i++) {
                const T* values = shrinkage.needs_values() ? tape.value(k).row(i) : nullptr;
                const T* z = k + 1 < depth ? tape.code(k).row(i) : codes.row(i);
                const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(i) * q;
                shrinkage.backward(k, values, z, gz.data() + at, slope + at, out.thresholds);
            }
            const Matrix<T> flow(slope, n, q), back(gp.data(), n, q);
            if (g.gram) {
                signal_backward(k, x, flow, tape.part(g.weight.index(k, depth)), gx, out);
                if (k > 0) multiply(1, constant(flow), q, backward_matrix[matrices.index(k, depth)], 0, back);
            } else {
                residual_backward(k, x, flow, tape.part(k), back, gx, out);
            }
            if (k > 0) codes_backward(k, tape, flow, back);
        }
        matrices_backward(n, tape, out);
    }

    /// The part of v that depends on x, in the gram form.
    void signal_backward(int k, const Matrix<const T>& x, const Matrix<T>& flow, const Matrix<T>& signal,
                         const Matrix<T>& gx, const TrainingGradients<T>& out) {
        const int count = flow.rows * q;
        const T e = g.mixing(k, 4);
        const T* PURSUIT_RESTRICT slope = flow.data;
        const T* PURSUIT_RESTRICT s = signal.data;
        T* PURSUIT_RESTRICT sum = gs.data();
        double total = 0;
        for (int first = 0; first < count; first += rows_at_once(q) * q) {
            const int end = std::min(count, first + rows_at_once(q) * q);
            T dot = 0;
            PURSUIT_SIMD_REDUCE(+ : dot)
            for (int i = first; i < end; i++) {
                dot += slope[i] * s[i];
                sum[i] += e * slope[i];
            }
            total += dot;
        }
        dots[k * 5 + 4] += total;
        if (g.weight.count == 1 && k > 0) return;  // the products with W wait for all layers
        const int number = g.weight.index(k, depth);
        const Matrix<T> whole(gs.data(), flow.rows, q);
        if (out.weight.data != nullptr) gemm<T>(1, {whole, true}, {x, false}, 1, out.weight[number], scratch);
        if (gx.data != nullptr) multiply(1, constant(whole), q, backward_weight[number], 1, gx);
        std::fill_n(gs.data(), count, T(0));
    }

    /// From the gradient of u = r W' to those of r and p.
    void residual_backward(int k, const Matrix<const T>& x, const Matrix<T>& flow, const Matrix<T>& r,
                           const Matrix<T>& back, const Matrix<T>& gx, const TrainingGradients<T>& out) {
        const int n = x.rows, outliers = q - g.stored;
        const T e = g.mixing(k, 4);
        const Matrix<T> to_r(gr.data() + static_cast<std::ptrdiff_t>(k) * n * m, n, m);
        multiply(1, constant(flow), g.stored, backward_weight[g.weight.index(k, depth)], 0, to_r);
        if (outliers > 0) {
            const T* PURSUIT_RESTRICT step = outlier_step(k);
            T* to_step = out.outlier_step.data == nullptr
                             ? nullptr
                             : out.outlier_step.row(out.outlier_step.rows == 1 ? 0 : k);
            for (int i = 0; i < n; i++) {
                const T* PURSUIT_RESTRICT slope = flow.row(i) + g.stored;
                const T* PURSUIT_RESTRICT rest = r.row(i);
                T* PURSUIT_RESTRICT to = to_r.row(i);
                T* PURSUIT_RESTRICT sum = to_step;
                if (sum == nullptr) {
                    PURSUIT_SIMD
                    for (int j = 0; j < m; j++) to[j] += step[j] * slope[j];
                } else {
                    PURSUIT_SIMD
                    for (int j = 0; j < m; j++) {
                        to[j] += step[j] * slope[j];
                        sum[j] += slope[j] * rest[j];
                    }
                }
            }
        }
        double total = 0;
        const int at_once = x.stride == m ? rows_at_once(m) : 1;
        for (int i = 0; i < n; i += at_once) {
            const int count = std::min(at_once, n - i) * m;
            const T* PURSUIT_RESTRICT from = x.row(i);
            const T* PURSUIT_RESTRICT slope = to_r.row(i);
            T dot = 0;
            PURSUIT_SIMD_REDUCE(+ : dot)
            for (int j = 0; j < count; j++) dot += slope[j] * from[j];
            total += dot;
        }
        for (int i = 0; i < n && gx.data != nullptr; i++) {
            const T* PURSUIT_RESTRICT slope = to_r.row(i);
            T* PURSUIT_RESTRICT sum = gx.row(i);
            PURSUIT_SIMD
            for (int j = 0; j < m; j++) sum[j] += e * slope[j];
        }
        dots[k * 5 + 4] += total;
        if (k == 0) return;
        multiply(-1, constant(to_r), m, backward_matrix[matrices.index(k, depth)], 0,
                 Matrix<T>(back.data, n, g.stored, q));
        for (int i = 0; i < n; i++) {
            T* PURSUIT_RESTRICT to = back.row(i);
            if (outliers > 0) {
                const T* PURSUIT_RESTRICT from = to_r.row(i);
                PURSUIT_SIMD
                for (int j = 0; j < m; j++) to[g.stored + j] = -from[j];
            }
            if (g.decay.data == nullptr) continue;
            const T* PURSUIT_RESTRICT decay = g.decay.data;
            const T* PURSUIT_RESTRICT slope = flow.row(i);
            PURSUIT_SIMD
            for (int j = 0; j < q; j++) to[j] -= decay[j] * slope[j];
        }
    }

    /// From the gradients of v and p to those of the codes and scalars; p is computed again.
    void codes_backward(int k, const Slots& tape, const Matrix<T>& flow, const Matrix<T>& back) {
        const int n = flow.rows;
        const T* mix = g.mixing.row(k);
        const T a1 = mix[0], a2 = mix[1], c1 = mix[2], c2 = mix[3];
        const T own = g.gram ? T(1) : T(0);  // decay = 1 in the gram form
        double sums[4] = {0, 0, 0, 0};
        for (int i = 0; i < n; i += rows_at_once(q)) {
            const int count = std::min(rows_at_once(q), n - i) * q;
            const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(i) * q;
            const T* PURSUIT_RESTRICT slope = flow.row(i);
            const T* PURSUIT_RESTRICT through = back.row(i);
            const T* PURSUIT_RESTRICT z = tape.code(k - 1).row(i);
            T* PURSUIT_RESTRICT to = gz.data() + at;
            T* PURSUIT_RESTRICT later = carry.data() + at;
            T* PURSUIT_RESTRICT point = p.data() + (static_cast<std::ptrdiff_t>(k) * n + i) * q;
            T by_a1 = 0, by_a2 = 0, by_c1 = 0, by_c2 = 0;
            if (k > 1) {
                const T* PURSUIT_RESTRICT earlier = tape.code(k - 2).row(i);
                PURSUIT_SIMD_REDUCE(+ : by_a1, by_a2, by_c1, by_c2)
                for (int j = 0; j < count; j++) {
                    const T to_v = slope[j], to_p = through[j] - own * slope[j];
                    by_a1 += to_v * z[j];
                    by_a2 += to_v * earlier[j];
                    by_c1 += to_p * z[j];
                    by_c2 += to_p * earlier[j];
                    to[j] = later[j] + a1 * to_v + c1 * to_p;
                    later[j] = a2 * to_v + c2 * to_p;
                    point[j] = c1 * z[j] + c2 * earlier[j];
                }
            } else {
                PURSUIT_SIMD_REDUCE(+ : by_a1, by_c1)
                for (int j = 0; j < count; j++) {
                    const T to_v = slope[j], to_p = through[j] - own * slope[j];
                    by_a1 += to_v * z[j];
                    by_c1 += to_p * z[j];
                    to[j] = later[j] + a1 * to_v + c1 * to_p;
                    point[j] = c1 * z[j];
                }
            }
            sums[0] += by_a1;
            sums[1] += by_a2;
            sums[2] += by_c1;
            sums[3] += by_c2;
        }
        for (int i = 0; i < 4; i++) dots[k * 5 + i] += sums[i];
    }

    /// The gradients of the matrices that multiply codes; those that layers share in one product.
    void matrices_backward(int n, const Slots& tape, const TrainingGradients<T>& out) {
        const auto flow = [&](int k, int count) {
            return Matrix<T>(gv.data() + static_cast<std::ptrdiff_t>(k) * n * q, count * n, g.stored, q);
        };
        const auto point = [&](int k, int count) {
            return Matrix<T>(p.data() + static_cast<std::ptrdiff_t>(k) * n * q, count * n, g.stored, q);
        };
        const auto to_r = [&](int k, int count) {
            return Matrix<T>(gr.data() + static_cast<std::ptrdiff_t>(k) * n * m, count * n, m);
        };
        if (!g.gram && out.weight.data != nullptr) {
            const int step = g.weight.count == 1 ? depth : 1;
            for (int k = 0; k < depth; k += step) {
                const Matrix<T> r(tape.part(k).data, step * n, m);
                gemm<T>(1, {flow(k, step), true}, {r, false}, 1, out.weight[g.weight.index(k, depth)], scratch);
            }
        }
        if (depth == 1 || to_matrices.data == nullptr) return;
        const int step = matrices.count == 1 ? depth - 1 : 1;
        for (int k = 1; k < depth; k += step) {
            const Matrix<T> to = to_matrices[matrices.index(k, depth)];
            if (g.gram) {
                gemm<T>(1, {flow(k, step), true}, {point(k, step), false}, 1, to, scratch);
            } else {
                gemm<T>(-1, {point(k, step), true}, {to_r(k, step), false}, 1, to, scratch);
            }
        }
    }
};

}  // namespace pursuit
