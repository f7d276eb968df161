// Layers one signal at a time, whose cost follows the coefficients that change.
//
// u = z G' is updated by the rows of the coefficients that changed, so a layer reads one row of G' per
// changed coefficient and makes a few passes over vectors of length q.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "shrinkage.hpp"

namespace pursuit::runtime {

class Sparse {
public:
    explicit Sparse(const Program& program)
        : m(program.features),
          q(program.size),
          width(padded(q)),
          stride(width % 256 == 0 ? width + TILE_COLUMNS<float> : width),
          mix(program.mix.begin(), program.mix.end()),
          weights(program.weights, true),
          shrinkage(program, q),
          grams(static_cast<std::size_t>(program.grams.count) * q * stride),
          gram_of(program.grams.of.begin(), program.grams.of.end()),
          widths(program.widths.begin(), program.widths.end()),
          blocks(program.blocks.begin(), program.blocks.end()),
          constants(program.constants.begin(), program.constants.end()),
          units(program.units.begin(), program.units.end()) {
        for (int k = 0; k < program.grams.count; k++) {
            const Matrix<const float> gram = program.grams[k];
            float* rows = grams.data() + static_cast<std::size_t>(k) * q * stride;
            for (int i = 0; i < q; i++) {
                for (int j = 0; j < q; j++) rows[static_cast<std::size_t>(j) * stride + i] = gram(i, j);
            }
        }
    }

    int features() const { return m; }
    int size() const { return q; }
    int depth() const { return static_cast<int>(mix.size()); }

    /// The floats of scratch memory for up to `rows` rows.
    std::size_t scratch(int rows) const {
        Arena arena;
        Buffers(*this, std::min(rows, BLOCK), arena);
        return arena.needed();
    }

    /// Encode rows; return false, with some rows unwritten, if a signal is not finite.
    ///
    /// `changes` (T,) is increased by the number of coefficients that the layers change.
    template <class X>
    bool encode(const Matrix<const X>& x, float tiny, const Matrix<float>& codes, float* scratch,
                std::int64_t* changes) const {
        const int most = std::min(BLOCK, x.rows);
        Arena arena(scratch);
        Buffers b(*this, most, arena);
        for (int start = 0; start < x.rows; start += most) {
            const int rows = std::min(most, x.rows - start);
            const Matrix<const X> part(x.row(start), rows, x.columns, x.stride);
            if (!prepare(part, tiny, b.x)) return false;
            for (int k = 0; k < weights.count(); k++) {
                weights.product(k, rows, b.x, Copy{{b.signals.row(k * most), rows, width}});
            }
            for (int row = 0; row < rows; row++) {
                encode_row(row, most, b, changes);
                write(b.z, codes.row(start + row));
            }
        }
        return true;
    }

private:
    static constexpr int BLOCK = 48;

    struct Buffers {
        Matrix<float> x, signals;
        float *z, *previous, *candidate, *u, *u_previous, *sizes, *gains;
        int* chosen;

        Buffers(const Sparse& s, int rows, Arena& arena)
            : x(arena.take(rows, padded(s.m))),
              signals(arena.take(s.weights.count() * rows, s.width)),
              z(arena.take(s.width)),
              previous(arena.take(s.width)),
              candidate(arena.take(s.width)),
              u(arena.take(s.width)),
              u_previous(arena.take(s.width)),
              sizes(arena.take(s.width)),
              gains(arena.take(std::max(s.q, s.shrinkage.group_count()))),
              chosen(reinterpret_cast<int*>(arena.take(s.width + 4))) {}
    };

    const int m, q, width;
    const int stride;  // the distance of rows of G': at a power of two they would compete for cache lines
    const std::vector<Mix> mix;
    const PackedStack weights;
    const Shrinkage shrinkage;
    AlignedVector<float> grams;  // the rows of G', filled up to whole panels
    const std::vector<std::int64_t> gram_of, widths, blocks;
    const std::vector<float> constants, units;

    const float* gram_row(int t, int j) const {
        return grams.data() + (static_cast<std::size_t>(gram_of[t]) * q + j) * stride;
    }

    void encode_row(int row, int most, Buffers& b, std::int64_t* changes) const {
        for (float* part : {b.z, b.previous, b.u, b.u_previous}) std::fill_n(part, width, 0.0f);
        for (int t = 0; t < depth(); t++) {
            if (t > 0 && gram_of[t] != gram_of[t - 1]) {
                product(t, b.z, b.u);
                product(t, b.previous, b.u_previous);
            }
            find_candidate(t, b.signals.row(static_cast<int>(weights.of[t]) * most + row), b);
            if (shrinkage.has_groups()) shrinkage.shrink_groups(t, b.candidate, b.gains);
            const int count = widths[t] == 0   ? choose_block(b)
                              : widths[t] == q ? choose_changed(b)
                                               : choose_largest(static_cast<int>(widths[t]), b);
            changes[t] += count;
            if (t + 1 < depth()) {
                std::copy_n(b.z, width, b.previous);
                std::copy_n(b.u, width, b.u_previous);
                add_rows(t, count, b);
            }
            for (int k = 0; k < count; k++) b.z[b.chosen[k]] = b.candidate[b.chosen[k]];
        }
    }

    /// candidate = shrink(a1 z + a2 z' + e x W' - c1 u - c2 u'), without the groups.
    void find_candidate(int t, const float* signal, const Buffers& b) const {
        const Mix k = mix[t];
        const float *soft = shrinkage.soft(t), *low = shrinkage.low(t);
        const bool two = k.a2 != 0 || k.c2 != 0;
        for (int i = 0; i < width; i += LANES<float>) {
            Pack<float> v = k.a1 * load(b.z + i) + k.e * load(signal + i) - k.c1 * load(b.u + i);
            if (two) v += k.a2 * load(b.previous + i) - k.c2 * load(b.u_previous + i);
            store(b.candidate + i, shrink(v, load(soft + i), load(low + i)));
        }
    }

    // Each of these lists the chosen coefficients and returns their number -------------------------

    /// All coefficients that would change.
    int choose_changed(Buffers& b) const {
        find_sizes(b);
        return list_above(0, b);
    }

    /// The `most` coefficients that would change most.
    int choose_largest(int most, Buffers& b) const {
        const int changed = find_sizes(b);
        if (changed <= most) return list_above(0, b);
        int ties = 0;
        const std::int32_t bound = find_bound(b.sizes, width, changed, most, ties);
        int count = list_above(bound, b);
        for (int i = 0; i < q && ties > 0; i++) {
            if (bits(b.sizes[i]) != bound) continue;
            b.chosen[count++] = i;
            ties--;
        }
        return count;
    }

    /// sizes = |candidate - z|; return how many are positive.
    int find_sizes(const Buffers& b) const {
        for (int i = 0; i < width; i += LANES<float>) {
            const Pack<float> change = load(b.candidate + i) - load(b.z + i);
            store(b.sizes + i, larger(change, Pack<float>{} - change));
        }
        int count = 0;
        PURSUIT_SIMD_REDUCE(+ : count)
        for (int i = 0; i < width; i++) count += bits(b.sizes[i]) > 0;
        return count;
    }

    /// List the coefficients whose sizes exceed a bound, both as bits: with floats it takes branches.
    int list_above(std::int32_t bound, Buffers& b) const {
        int count = 0;
        for (int i = 0; i < q; i++) {
            b.chosen[count] = i;
            count += bits(b.sizes[i]) > bound;
        }
        return count;
    }

    static std::int32_t bits(float value) {
        std::int32_t result;
        std::memcpy(&result, &value, sizeof result);
        return result;
    }

    /// Find a bound that at most `most` numbers exceed, and how many equal to it (`ties`) complete them.
    ///
    /// `count` numbers are positive. The bits of such floats are ordered as the floats, and are roughly
    /// their logarithms. Counting the numbers above a bound is vectorised, and the next bound is
    /// interpolated linearly between the counts.
    static std::int32_t find_bound(const float* sizes, int length, int count, int most, int& ties) {
        constexpr std::int32_t quarter = 1 << 24;  // of the number: two in its exponent
        std::int32_t high = 0, low = 0;            // more than `most` exceed low
        for (int k = 0; k < length; k++) high = std::max(high, bits(sizes[k]));
        int above_low = count, above_high = 0, tries = 0;
        std::int32_t bound = std::max(high - quarter, 1);
        while (high - low > 1) {
            int above = 0;
            PURSUIT_SIMD_REDUCE(+ : above)
            for (int k = 0; k < length; k++) above += bits(sizes[k]) > bound;
            if (above == most) {
                ties = 0;
                return bound;
            }
            if (above > most) {
                low = bound;
                above_low = above;
            } else {
                high = bound;
                above_high = above;
            }
            tries++;
            if (low == 0) {
                bound = std::max(high - quarter, 1);
            } else if (tries % 4 == 0) {  // bisection guarantees an end
                bound = low + (high - low) / 2;
            } else {
                const double part = (above_low - most + 0.5) / (above_low - above_high + 1);
                bound = low + std::max(1, static_cast<std::int32_t>((high - low) * part));
            }
        }
        ties = most - above_high;
        return high;
    }

    /// The coefficients of the block with the largest gain.
    int choose_block(Buffers& b) const {
        std::fill_n(b.gains, q, 0.0f);
        for (int i = 0; i < q; i++) {
            const float change = b.candidate[i] - b.z[i];
            b.gains[blocks[i]] += constants[i] * change * change;
        }
        int best = 0;
        for (int r = 1; r < q; r++) {
            if (b.gains[r] > b.gains[best]) best = r;
        }
        int count = 0;
        for (int i = 0; i < q; i++) {
            if (blocks[i] == best) b.chosen[count++] = i;
        }
        return count;
    }

    /// u += the rows of the chosen coefficients by their changes, four rows at a time.
    void add_rows(int t, int count, const Buffers& b) const {
        std::fill_n(b.chosen + count, 4, 0);  // a valid row, for the remainder
        float* PURSUIT_RESTRICT u = b.u;
        for (int k = 0; k < count; k += 4) {
            float d[4];
            const float* rows[4];
            for (int x = 0; x < 4; x++) {
                const int j = b.chosen[k + x];
                d[x] = k + x < count ? b.candidate[j] - b.z[j] : 0.0f;
                rows[x] = gram_row(t, j);
            }
            for (int i = 0; i < width; i += LANES<float>) {
                store(u + i, load(u + i) + (d[0] * load(rows[0] + i) + d[1] * load(rows[1] + i)) +
                                 (d[2] * load(rows[2] + i) + d[3] * load(rows[3] + i)));
            }
        }
    }

    /// u = z G' over the non-zero coefficients.
    void product(int t, const float* z, float* u) const {
        std::fill_n(u, width, 0.0f);
        for (int j = 0; j < q; j++) {
            if (z[j] == 0) continue;
            const float* row = gram_row(t, j);
            for (int i = 0; i < width; i += LANES<float>) store(u + i, load(u + i) + z[j] * load(row + i));
        }
    }

    void write(const float* PURSUIT_RESTRICT z, float* PURSUIT_RESTRICT codes) const {
        const float* PURSUIT_RESTRICT unit = units.data();
        PURSUIT_SIMD
        for (int i = 0; i < q; i++) codes[i] = unit[i] * z[i];
    }
};

}  // namespace pursuit::runtime
