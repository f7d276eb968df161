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

/// How v becomes a code and the next point. The rows of all arrays are `stride` apart.
///
/// `previous` holds z' on entry and the new code on return; z is the code before the layer.
struct Update {
    float a1, a2, next_c1, next_c2;
    const float *soft, *low;
    std::ptrdiff_t stride;
    float *z, *previous, *point;

    /// Call v(r, k, at) for vector k of row r of a tile, which belongs to the coefficients `at`, and take
    /// the result as v without a1 z + a2 z'.
    template <int R, int P, class V>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>&, const V& v) const {
        PURSUIT_UNROLL
        for (int k = 0; k < 2 * P; k++) {
            const int column = j + k * LANES<float>;
            const Pack<float> high = load(soft + column), lowest = load(low + column);
            PURSUIT_UNROLL
            for (int r = 0; r < R; r++) {
                const std::ptrdiff_t at = (i + r) * stride + column;
                const Pack<float> old = load(z + at);
                const Pack<float> code = shrink(v(r, k, at) + a1 * old + a2 * load(previous + at), high, lowest);
                store(previous + at, code);
                store(point + at, next_c1 * code + next_c2 * old);
            }
        }
    }
};

/// The end of a layer with G and momentum: v = e x W' - p G'.
struct FinishGram {
    Update update;
    float e;
    const float* signal;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        update(i, j, tile, [&](int r, int k, std::ptrdiff_t at) PURSUIT_LAMBDA {
            return e * load(signal + at) - tile.at[r][k];
        });
    }
};

/// The end of a layer with G without momentum, whose product is z G'.
struct FinishPlain {
    float a1, c1, e;
    const float *soft, *low;
    std::ptrdiff_t stride;
    const float *signal, *z;
    float* next;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        PURSUIT_UNROLL
        for (int k = 0; k < 2 * P; k++) {
            const int column = j + k * LANES<float>;
            const Pack<float> high = load(soft + column), lowest = load(low + column);
            PURSUIT_UNROLL
            for (int r = 0; r < R; r++) {
                const std::ptrdiff_t at = (i + r) * stride + column;
                const Pack<float> v = e * load(signal + at) + a1 * load(z + at) - c1 * tile.at[r][k];
                store(next + at, shrink(v, high, lowest));
            }
        }
    }
};

/// The residual r = e x - p V, both of rows of `features` numbers.
struct FinishResidual {
    float e;
    std::ptrdiff_t features;
    const float* x;
    float* residual;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        PURSUIT_UNROLL
        for (int r = 0; r < R; r++) {
            PURSUIT_UNROLL
            for (int k = 0; k < 2 * P; k++) {
                const std::ptrdiff_t at = (i + r) * features + j + k * LANES<float>;
                store(residual + at, e * load(x + at) - tile.at[r][k]);
            }
        }
    }
};

/// The residual with an identity block, r = e x - p V - p_o, whose codes o are updated with v = w r - decay p_o.
struct FinishIdentity {
    Update update;
    FinishResidual plain;
    int first;  // the column where the identity block begins
    const float *decay, *step;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        update(i, first + j, tile, [&](int r, int k, std::ptrdiff_t at) PURSUIT_LAMBDA {
            const int column = j + k * LANES<float>;
            const std::ptrdiff_t feature = (i + r) * plain.features + column;
            const Pack<float> point = load(update.point + at);
            const Pack<float> rest = plain.e * load(plain.x + feature) - tile.at[r][k] - point;
            store(plain.residual + feature, rest);
            return load(step + column) * rest - load(decay + first + column) * point;
        });
    }
};

/// The end of a layer in the form of the residual: v = r W' - decay p.
struct FinishCorrelation {
    Update update;
    const float* decay;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        update(i, j, tile, [&](int r, int k, std::ptrdiff_t at) PURSUIT_LAMBDA {
            return tile.at[r][k] - load(decay + j + k * LANES<float>) * load(update.point + at);
        });
    }
};

class Dense {
public:
    explicit Dense(const Program& program)
        : m(program.features),
          q(program.size),
          first(program.steps.count > 0 ? q - m : q),
          width(padded(first) + padded(q - first)),
          stride(width % 256 == 0 ? width + TILE_COLUMNS<float> : width),
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
    int block() const { return std::clamp(BLOCK_NUMBERS / width / TILE_ROWS * TILE_ROWS, LEAST_ROWS, MOST_ROWS); }

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
    static constexpr int BLOCK_NUMBERS = 6 * 1024, LEAST_ROWS = 12, MOST_ROWS = 96;

    struct Buffers {
        Matrix<float> x, signal, z, previous, point, next;
        float* factors;

        Buffers(const Dense& d, int rows, Arena& arena)
            : x(arena.take(rows, padded(d.m))),
              signal(arena.take(rows, d.atoms.count() > 0 ? padded(d.m) : d.stride)),
              z(arena.take(rows, d.stride)),
              previous(arena.take(rows, d.stride)),
              point(arena.take(rows, d.stride)),
              next(arena.take(rows, d.stride)),
              factors(arena.take(d.shrinkage.group_count())) {}
    };

    const int m, q;
    const int first;   // the coefficients before the identity block
    const int width;   // of a row of codes, each part filled up to whole panels
    const int stride;  // the distance of rows: at a power of two they would compete for cache lines
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
        return {mix[t].a1,        mix[t].a2, next.c1,  next.c2,         shrinkage.soft(t),
                shrinkage.low(t), stride,    b.z.data, b.previous.data, point.data};
    }

    Matrix<float> through_gram(int rows, Buffers& b) const {
        clear(rows, b.z);
        if (momentum) clear(rows, b.previous);
        for (int t = 0; t < depth(); t++) {
            if (t == 0 || weights.of[t] != weights.of[t - 1]) {
                weights.product(static_cast<int>(weights.of[t]), rows, b.x, Copy{b.signal});
            }
            if (momentum) {
                const FinishGram finish{update(t, b, b.next), mix[t].e, b.signal.data};
                multiply(t, rows, b.point, finish);
                shrink_groups(t, rows, finish.update, b.factors);
                std::swap(b.z, b.previous);
                std::swap(b.point, b.next);
            } else {
                const Mix& k = mix[t];
                multiply(t, rows, b.z,
                         FinishPlain{k.a1, k.c1, k.e, shrinkage.soft(t), shrinkage.low(t), stride, b.signal.data,
                                     b.z.data, b.next.data});
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
            const Update layer = update(t, b, b.point);
            const FinishResidual residual{mix[t].e, padded(m), b.x.data, b.signal.data};
            if (steps.empty()) {
                decode(t, rows, b.point, residual);
            } else {
                const float* step = steps.data() + step_of[t] * padded(m);
                decode(t, rows, b.point, FinishIdentity{layer, residual, padded(first), decay.data(), step});
            }
            weights.product(static_cast<int>(weights.of[t]), rows, b.signal,
                            FinishCorrelation{layer, decay.data()});
            shrink_groups(t, rows, layer, b.factors);
            std::swap(b.z, b.previous);
        }
        return b.z;
    }

    template <class Finish>
    void decode(int t, int rows, const Matrix<float>& a, const Finish& finish) const {
        if (t == 0) {
            atoms.no_product(rows, a, finish);
        } else {
            atoms.product(static_cast<int>(atoms.of[t]), rows, a, finish);
        }
    }

    /// Shrink the groups of the new codes, and compute the next point of the result.
    void shrink_groups(int t, int rows, const Update& layer, float* factors) const {
        if (!shrinkage.has_groups()) return;
        for (int row = 0; row < rows; row++) {
            float* PURSUIT_RESTRICT code = layer.previous + row * layer.stride;
            shrinkage.shrink_groups(t, code, factors);
            const float* PURSUIT_RESTRICT old = layer.z + row * layer.stride;
            float* PURSUIT_RESTRICT point = layer.point + row * layer.stride;
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
