// Gram matrix of some atoms over some features: sum_i w_i d_i d_i', d_i the column i of D0.
//
// Features are inside or outside a mask; when the mask changes, the features that changed sides are
// added or subtracted. A feature is one row of the transposed dictionary, so that nothing has to be
// gathered as long as most atoms take part.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "huber.hpp"
#include "lanes.hpp"

namespace pursuit {

template <class T>
class MaskedGram {
public:
    MaskedGram(const HuberDictionary<T>& dictionary, Matrix<const double> gram)
        : d(dictionary), gram(gram), q(gram.rows), m(d.features.rows), depth(gram.columns),
          positions(q), listed(q), inside(d.atoms.columns, 1), now(d.atoms.columns, 1), chosen(m + 8),
          weights(m + 8), sources(CHUNK), panel(static_cast<std::size_t>(CHUNK) * depth),
          masked(d.atoms.columns), memory(static_cast<std::size_t>(depth) * depth) {}

    /// Number of atoms that take part. Position b of the matrix belongs to the atom atom(b).
    int size() const { return count; }
    int atom(int b) const { return positions[b]; }
    /// Lower triangle: entries 0 to b of row b.
    double* row(int b) { return memory.data() + static_cast<std::size_t>(b) * depth; }

    /// Begin anew, without atoms.
    void forget() { count = summed = 0; }

    /// Let all atoms take part that are wanted; others may join.
    void include(const std::vector<char>& wanted) {
        if (count == 0) {
            int number = 0;
            for (int j = 0; j < q; j++) number += wanted[j];
            // copying the wanted ones costs as much per feature as 32 products of each
            whole = static_cast<std::int64_t>(number) * (number + 32) >= static_cast<std::int64_t>(q) * q;
            std::fill(listed.begin(), listed.end(), char(0));
        }
        for (int j = 0; j < q; j++) {
            if (listed[j] || !(whole || wanted[j])) continue;
            listed[j] = 1;
            positions[count++] = j;
        }
    }

    /// Sum over the features with |r_i| <= lam_i (r_i <= lam_i if non-negative).
    void follow(const T* r, const T* lam, bool nonnegative) {
        int old = summed;
        summed = count;
        if (old == 0) {  // as if all features were inside
            std::fill(inside.begin(), inside.end(), char(1));
            insiders = m;
            old = count;
            for (int b = 0; b < count; b++)
                for (int c = 0; c <= b; c++) row(b)[c] = gram(positions[b], positions[c]);
        }
        const int flipped = flip(r, lam, nonnegative);
        if (flipped >= insiders || count > old + APPENDED) {
            sum_inside();
        } else {
            add(flipped, old);
            for (int b = old; b < count; b++) append(b);
        }
    }

    /// Sum over all features with the weights min(1, lam_i/|r_i|) of a majoriser of Huber's function.
    void reweight(const T* r, const T* lam, bool nonnegative) {
        for (int i = 0; i < m; i++) {
            const T size = nonnegative ? r[i] : std::abs(r[i]);
            chosen[i] = i;
            weights[i] = size > lam[i] ? lam[i] / size : T(1);
        }
        clear();
        add(m, count);
    }

private:
    // features that are summed in T before they are added to the matrix, and stay in the cache
    static constexpr int CHUNK = 128;
    // the largest number of new atoms whose rows are computed one by one
    static constexpr int APPENDED = 6;

    const HuberDictionary<T>& d;
    const Matrix<const double> gram;
    const int q, m, depth;
    int count = 0;
    int summed = 0;      // positions whose sums are known
    bool whole = false;  // all atoms take part, in their order
    std::vector<int> positions;
    std::vector<char> listed;  // by atom

    int insiders = 0;
    std::vector<char> inside, now;  // by feature, padded
    std::vector<int> chosen;        // features to add
    std::vector<T> weights;

    std::vector<const T*> sources;  // of one chunk
    Lines<T> panel;
    Lines<T> masked;  // one atom on the features inside
    Lines<double> memory;

    void clear() {
        for (int b = 0; b < count; b++) std::fill_n(row(b), b + 1, 0.0);
    }

    void sum_inside() {
        int n = 0;
        for (int i = 0; i < m; i++) {
            chosen[n] = i;
            weights[n] = 1;
            n += inside[i];
        }
        clear();
        add(n, count);
    }

    /// Choose the features that changed sides, with weight 1 or -1; return their number.
    int flip(const T* PURSUIT_RESTRICT r, const T* PURSUIT_RESTRICT lam, bool nonnegative) {
        char* PURSUIT_RESTRICT out = now.data();
        if (nonnegative) {
            PURSUIT_SIMD
            for (int i = 0; i < m; i++) out[i] = r[i] <= lam[i];
        } else {
            PURSUIT_SIMD
            for (int i = 0; i < m; i++) out[i] = std::abs(r[i]) <= lam[i];
        }
        int n = 0;
        for (int i = 0; i < m; i += 8) {
            if (std::memcmp(&now[i], &inside[i], 8) == 0) continue;
            for (int k = i; k < i + 8; k++) {
                chosen[n] = k;
                weights[n] = now[k] ? T(1) : T(-1);
                insiders += now[k] - inside[k];
                n += now[k] != inside[k];
            }
        }
        std::swap(now, inside);
        return n;
    }

    /// Compute the row of a new position from all features inside.
    void append(int b) {
        const T* PURSUIT_RESTRICT atom = d.atoms.row(positions[b]);
        T* PURSUIT_RESTRICT values = masked.data();
        PURSUIT_SIMD
        for (int i = 0; i < m; i++) values[i] = inside[i] ? atom[i] : T(0);
        for (int c = 0; c <= b; c++) {
            const T* PURSUIT_RESTRICT other = d.atoms.row(positions[c]);
            T sum = 0;
            PURSUIT_SIMD_REDUCE(+ : sum)
            for (int i = 0; i < m; i++) sum += values[i] * other[i];
            row(b)[c] = sum;
        }
    }

    /// Add w_i d_i d_i' of the first `n` chosen features, on the first `size` positions.
    void add(int n, int size) {
        for (int first = 0; first < n; first += CHUNK) {
            const int length = std::min(CHUNK, n - first);
            for (int t = 0; t < length; t++) {
                const T* feature = d.features.row(chosen[first + t]);
                sources[t] = whole ? feature : gather(feature, t, size);
            }
            for (int a = 0; a < size;) {
                const int left = size - a;
                if (left > 4) a += add_strip<8, 1>(a, weights.data() + first, length);
                else if (left > 2) a += add_strip<4, 2>(a, weights.data() + first, length);
                else a += add_strip<2, 4>(a, weights.data() + first, length);
            }
        }
    }

    const T* gather(const T* feature, int t, int size) {
        T* values = panel.data() + static_cast<std::size_t>(t) * depth;
        for (int b = 0; b < size; b++) values[b] = feature[positions[b]];
        std::fill(values + size, values + padded(size, HuberDictionary<T>::NARROW), T(0));
        return values;
    }

    /// R rows of the lower triangle from row a on, in tiles of V registers; return R.
    template <int R, int V>
    int add_strip(int a, const T* weight, int length) {
        const int end = padded(a + R, LANES<T>);
        int b = 0;
        for (; b + V * LANES<T> <= end; b += V * LANES<T>) add_tile<R, V>(a, b, weight, length);
        for (; b < end; b += LANES<T>) add_tile<R, 1>(a, b, weight, length);
        return R;
    }

    template <int R, int V>
    void add_tile(int a, int b, const T* weight, int length) {
        Lanes<T> sums[R][V] = {};
        for (int t = 0; t < length; t++) {
            const T* feature = sources[t];
            PURSUIT_UNROLL
            for (int v = 0; v < V; v++) {
                const Lanes<T> values = weight[t] * load(feature + b + v * LANES<T>);
                PURSUIT_UNROLL
                for (int r = 0; r < R; r++) sums[r][v] += feature[a + r] * values;
            }
        }
        PURSUIT_UNROLL
        for (int r = 0; r < R; r++) {
            PURSUIT_UNROLL
            for (int v = 0; v < V; v++) {
                T values[LANES<T>];
                store<T>(sums[r][v], values);
                double* PURSUIT_RESTRICT out = row(a + r) + b + v * LANES<T>;
                PURSUIT_SIMD
                for (int l = 0; l < LANES<T>; l++) out[l] += values[l];
            }
        }
    }
};

}  // namespace pursuit
