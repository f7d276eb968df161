// Layers that replace the whole code, for blocks of rows: all layers of a block run while its codes
// are in the cache, and what follows a product is done to each tile in registers.
//
// With G, a layer is a product p G' of the point p = c1 z + c2 z'. In the form of the residual it is two:
//
//     r = e x - p V,        v = r W' + a1 z + a2 z' - decay p.
//
// An identity block needs no product: its part of p is subtracted from r, its part of v is w r.
#pragma once

#include <algorithm>
#include <utility>

#include "shrinkage.hpp"

namespace pursuit::runtime {

/// What is done to v to get a code and the next point, for the coefficients of a tile.
///
/// `previous` holds z' on entry and the new code on return; z is the code before the layer.
struct Update {
    float a1, a2, next_c1, next_c2;
    const float *soft, *low;
    Matrix<float> z, previous, point;

    /// Take v without a1 z + a2 z'.
    PURSUIT_INLINE void operator()(int row, int column, Pack<float> v) const {
        const Pack<float> old = load(&z(row, column));
        v += a1 * old + a2 * load(&previous(row, column));
        const Pack<float> code = shrink(v, load(soft + column), load(low + column));
        store(&previous(row, column), code);
        store(&point(row, column), next_c1 * code + next_c2 * old);
    }
};

/// The end of a layer with G and momentum: v = e x W' - p G'.
struct FinishGram {
    Update update;
    float e;
    Matrix<float> signal;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        PURSUIT_UNROLL
        for (int r = 0; r < R; r++) {
            PURSUIT_UNROLL
            for (int k = 0; k < 2 * P; k++) {
                const int column = j + k * LANES<float>;
                update(i + r, column, e * load(&signal(i + r, column)) - tile.at[r][k]);
            }
        }
    }
};

/// The end of a layer with G without momentum, whose product is z G'.
struct FinishPlain {
    float a1, c1, e;
    const float *soft, *low;
    Matrix<float> signal, z, next;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        PURSUIT_UNROLL
        for (int r = 0; r < R; r++) {
            PURSUIT_UNROLL
            for (int k = 0; k < 2 * P; k++) {
                const int column = j + k * LANES<float>;
                const Pack<float> v = e * load(&signal(i + r, column)) + a1 * load(&z(i + r, column)) - c1 * tile.at[r][k];
                store(&next(i + r, column), shrink(v, load(soft + column), load(low + column)));
            }
        }
    }
};

/// The residual r = e x - p V, less the point of the identity block, whose codes are updated.
struct FinishResidual {
    Update update;
    float e;
    const float *decay, *step;  // step is null without an identity block
    int first;                  // the first column of the identity block
    Matrix<float> x, residual;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        PURSUIT_UNROLL
        for (int r = 0; r < R; r++) {
            PURSUIT_UNROLL
            for (int k = 0; k < 2 * P; k++) {
                const int column = j + k * LANES<float>;
                Pack<float> rest = e * load(&x(i + r, column)) - tile.at[r][k];
                if (step != nullptr) {
                    const Pack<float> point = load(&update.point(i + r, first + column));
                    rest -= point;
                    update(i + r, first + column, load(step + column) * rest - load(decay + first + column) * point);
                }
                store(&residual(i + r, column), rest);
            }
        }
    }
};

/// The end of a layer in the form of the residual: v = r W' - decay p.
struct FinishCorrelation {
    Update update;
    const float* decay;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        PURSUIT_UNROLL
        for (int r = 0; r < R; r++) {
            PURSUIT_UNROLL
            for (int k = 0; k < 2 * P; k++) {
                const int column = j + k * LANES<float>;
                update(i + r, column, tile.at[r][k] - load(decay + column) * load(&update.point(i + r, column)));
            }
        }
    }
};

class Dense {
public:
    explicit Dense(const Program& program)
        : m(program.features),
          q(program.size),
          first(program.steps.count > 0 ? q - m : q),
          width(padded(first) + padded(q - first)),
          momentum(program.momentum()),
          mix(program.mix.begin(), program.mix.end()),
          weights(program.weights, true),
          grams(program.grams, true),
          atoms(program.atoms, false),
          shrinkage(program, first),
          decay(width),
          units(program.units.begin(), program.units.end()),
          steps(static_cast<std::size_t>(program.steps.count) * padded(m)),
          step_of(program.steps.of.begin(), program.steps.of.end()) {
        for (int i = 0; i < q; i++) decay[i < first ? i : padded(first) + i - first] = program.decay[i];
        for (int k = 0; k < program.steps.count; k++) {
            std::copy_n(program.steps[k].data, m, steps.data() + static_cast<std::size_t>(k) * padded(m));
        }
    }

    int features() const { return m; }
    int size() const { return q; }

    /// The rows that run through all layers together.
    int block() const {
        return std::clamp(BLOCK_NUMBERS / width / TILE_ROWS * TILE_ROWS, LEAST_ROWS, MOST_ROWS);
    }

    /// The floats of scratch memory for up to `rows` rows.
    std::size_t scratch(int rows) const {
        Arena arena;
        Buffers(*this, std::min(rows, block()), arena);
        return arena.needed();
    }

    /// Encode rows; return false, with some rows unwritten, if a signal is not finite.
    template <class X>
    bool encode(const Matrix<const X>& x, float tiny, const Matrix<float>& codes, float* scratch) const {
        const int most = std::min(block(), x.rows);
        Arena arena(scratch);
        Buffers b(*this, most, arena);
        for (int start = 0; start < x.rows; start += most) {
            const int rows = std::min(most, x.rows - start);
            const Matrix<const X> part(x.row(start), rows, x.columns, x.stride);
            if (!prepare(part, tiny, b.x)) return false;
            const Matrix<float> z = atoms.count() > 0 ? through_residual(rows, b) : through_gram(rows, b);
            for (int row = 0; row < rows; row++) write(z.row(row), codes.row(start + row));
        }
        return true;
    }

private:
    // The codes of a block and what belongs to them stay in the second-level cache beside G.
    static constexpr int BLOCK_NUMBERS = 6 * 1024, LEAST_ROWS = 24, MOST_ROWS = 96;

    struct Buffers {
        Matrix<float> x, signal, z, previous, point, next;
        float* factors;

        Buffers(const Dense& d, int rows, Arena& arena)
            : x(arena.take(rows, padded(d.m))),
              signal(arena.take(rows, d.atoms.count() > 0 ? padded(d.m) : d.width)),
              z(arena.take(rows, d.width)),
              previous(arena.take(rows, d.width)),
              point(arena.take(rows, d.width)),
              next(arena.take(rows, d.width)),
              factors(arena.take(d.shrinkage.group_count())) {}
    };

    const int m, q;
    const int first;  // the coefficients before the identity block
    const int width;  // of a row of codes, each part filled up to whole panels
    const bool momentum;
    const std::vector<Mix> mix;
    const PackedStack weights, grams, atoms;
    const Shrinkage shrinkage;
    AlignedVector<float> decay;
    const std::vector<float> units;
    AlignedVector<float> steps;
    const std::vector<std::int64_t> step_of;

    int depth() const { return static_cast<int>(mix.size()); }

    static void clear(int rows, const Matrix<float>& part) {
        std::fill_n(part.data, static_cast<std::size_t>(rows) * part.stride, 0.0f);
    }

    Update update(int t, const Buffers& b, const Matrix<float>& point) const {
        const Mix next = t + 1 < depth() ? mix[t + 1] : Mix{};
        return {mix[t].a1, mix[t].a2, next.c1, next.c2, shrinkage.soft(t), shrinkage.low(t), b.z, b.previous, point};
    }

    Matrix<float> through_gram(int rows, Buffers& b) const {
        clear(rows, b.z);
        if (momentum) clear(rows, b.previous);
        for (int t = 0; t < depth(); t++) {
            if (t == 0 || weights.of[t] != weights.of[t - 1]) {
                weights.product(static_cast<int>(weights.of[t]), rows, b.x, Copy{b.signal});
            }
            if (momentum) {
                const FinishGram finish{update(t, b, b.next), mix[t].e, b.signal};
                multiply(t, rows, b.point, finish);
                shrink_groups(t, rows, finish.update, b.factors);
                std::swap(b.z, b.previous);
                std::swap(b.point, b.next);
            } else {
                const Mix& k = mix[t];
                multiply(t, rows, b.z,
                         FinishPlain{k.a1, k.c1, k.e, shrinkage.soft(t), shrinkage.low(t), b.signal, b.z, b.next});
                if (shrinkage.has_groups()) {
                    for (int row = 0; row < rows; row++) shrinkage.shrink_groups(t, b.next.row(row), b.factors);
                }
                std::swap(b.z, b.next);
            }
        }
        return b.z;
    }

    template <class Finish>
    void multiply(int t, int rows, const Matrix<float>& a, const Finish& finish) const {
        if (t == 0) {
            grams.no_product(rows, a, finish);
        } else {
            grams.product(static_cast<int>(grams.of[t]), rows, a, finish);
        }
    }

    Matrix<float> through_residual(int rows, Buffers& b) const {
        clear(rows, b.z);
        clear(rows, b.previous);
        clear(rows, b.point);
        for (int t = 0; t < depth(); t++) {
            const float* step = steps.empty() ? nullptr : steps.data() + step_of[t] * padded(m);
            const Update layer = update(t, b, b.point);
            const FinishResidual residual{layer, mix[t].e, decay.data(), step, padded(first), b.x, b.signal};
            if (t == 0) {
                atoms.no_product(rows, b.point, residual);
            } else {
                atoms.product(static_cast<int>(atoms.of[t]), rows, b.point, residual);
            }
            weights.product(static_cast<int>(weights.of[t]), rows, b.signal, FinishCorrelation{layer, decay.data()});
            shrink_groups(t, rows, layer, b.factors);
            std::swap(b.z, b.previous);
        }
        return b.z;
    }

    /// Shrink the groups of the new codes, and compute the next point of the result.
    void shrink_groups(int t, int rows, const Update& layer, float* factors) const {
        if (!shrinkage.has_groups()) return;
        for (int row = 0; row < rows; row++) {
            float* PURSUIT_RESTRICT code = layer.previous.row(row);
            shrinkage.shrink_groups(t, code, factors);
            const float* PURSUIT_RESTRICT old = layer.z.row(row);
            float* PURSUIT_RESTRICT point = layer.point.row(row);
            PURSUIT_SIMD
            for (int i = 0; i < width; i++) point[i] = layer.next_c1 * code[i] + layer.next_c2 * old[i];
        }
    }

    void write(const float* PURSUIT_RESTRICT z, float* PURSUIT_RESTRICT codes) const {
        const float* PURSUIT_RESTRICT unit = units.data();
        PURSUIT_SIMD
        for (int i = 0; i < first; i++) codes[i] = unit[i] * z[i];
        z += padded(first) - first;
        PURSUIT_SIMD
        for (int i = first; i < q; i++) codes[i] = unit[i] * z[i];
    }
};

}  // namespace pursuit::runtime
