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
        : d(dictionary),
          gram(gram),
          q(gram.rows),
          m(d.features.rows),
          depth(gram.columns),
          positions(q),
          listed(q),
          inside(padded(m, WORD)),
          now(padded(m, WORD)),
          chosen(m + 1),
          changed(m + 1),
          roots(m),
          sources(CHUNK),
          panel(static_cast<std::size_t>(CHUNK) * depth),
          masked(d.atoms.columns),
          memory(static_cast<std::size_t>(depth) * depth) {}

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
            // copying the wanted ones costs as much per feature as 32 products of each; and more may come
            whole = 2.0 * number * (number + 32) >= static_cast<double>(q) * q;
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
        const int old = summed > 0 ? summed : count;
        if (summed == 0) {  // as if all features were inside
            std::fill(inside.begin(), inside.begin() + m, char(1));
            insiders = m;
        }
        const int flipped = flip(r, lam, nonnegative);
        if (flipped >= insiders || count > old + APPENDED) {
            sum_inside();
        } else {
            if (summed == 0) copy_gram();
            add(0, joined, old, 1);
            add(joined, flipped, old, -1);
            for (int b = old; b < count; b++) append(b);
        }
        summed = count;
    }

    /// Sum over all features with the weights min(1, lam_i/|r_i|) of a majoriser of Huber's function.
    void reweight(const T* r, const T* lam, bool nonnegative) {
        for (int i = 0; i < m; i++) {
            const T size = nonnegative ? r[i] : std::abs(r[i]);
            chosen[i] = i;
            roots[i] = size > lam[i] ? std::sqrt(lam[i] / size) : T(1);
        }
        clear();
        add(0, m, count, 1, roots.data());
    }

private:
    // features that are summed in T before they are added to the matrix, and stay in the cache
    static constexpr int CHUNK = 128;
    static constexpr int WORD = 8;
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
    std::vector<char> inside, now;  // by feature, in whole words
    std::vector<int> chosen;        // features to add or subtract
    std::vector<int> changed;
    int joined = 0;        // those that come inside stand first
    std::vector<T> roots;  // of weights

    std::vector<const T*> sources;  // of one chunk
    AlignedVector<T> panel;
    AlignedVector<T> masked;  // one atom on the features inside
    AlignedVector<double> memory;

    void clear() {
        for (int b = 0; b < count; b++) std::fill_n(row(b), b + 1, 0.0);
    }

    void copy_gram() {
        for (int b = 0; b < count; b++) {
            const double* from = gram.row(positions[b]);
            for (int c = 0; c <= b; c++) row(b)[c] = from[positions[c]];
        }
    }

    void sum_inside() {
        int n = 0;
        for (int i = 0; i < m; i++) {
            chosen[n] = i;
            n += inside[i];
        }
        clear();
        add(0, n, count, 1);
    }

    /// Choose the features that changed sides, first the `joined` ones that came inside; return their
    /// number.
    int flip(const T* PURSUIT_RESTRICT r, const T* PURSUIT_RESTRICT lam, bool nonnegative) {
        char* PURSUIT_RESTRICT out = now.data();
        if (nonnegative) {
            PURSUIT_SIMD
            for (int i = 0; i < m; i++) out[i] = r[i] <= lam[i];
        } else {
            PURSUIT_SIMD
            for (int i = 0; i < m; i++) out[i] = std::abs(r[i]) <= lam[i];
        }
        // listed without branches, first the words of eight features, then the features in them
        int words = 0, n = 0;
        for (int i = 0; i < m; i += WORD) {
            std::uint64_t before, after;
            std::memcpy(&before, &inside[i], WORD);
            std::memcpy(&after, &now[i], WORD);
            chosen[words] = i;
            words += before != after;
        }
        for (int w = 0; w < words; w++) {
            for (int i = chosen[w]; i < chosen[w] + WORD; i++) {
                changed[n] = i;
                n += now[i] ^ inside[i];
            }
        }
        int from = 0, to = n;
        for (int k = 0; k < n; k++) {
            const int i = changed[k], came = now[i];
            chosen[came ? from : to - 1] = i;
            from += came;
            to -= 1 - came;
        }
        joined = from;
        insiders += from - (n - from);
        std::swap(now, inside);
        return n;
    }

    /// Compute the row of a new position from all features inside, four products at a time.
    void append(int b) {
        const T* PURSUIT_RESTRICT atom = d.atoms.row(positions[b]);
        T* PURSUIT_RESTRICT values = masked.data();
        PURSUIT_SIMD
        for (int i = 0; i < m; i++) values[i] = inside[i] ? atom[i] : T(0);
        for (int c = 0; c <= b; c += 4) {
            const T* others[4];
            Pack<T> sums[4] = {};
            for (int k = 0; k < 4; k++) others[k] = d.atoms.row(positions[std::min(c + k, b)]);
            for (int i = 0; i < d.atoms.columns; i += LANES<T>) {
                const Pack<T> value = load(values + i);
                PURSUIT_UNROLL
                for (int k = 0; k < 4; k++) sums[k] += value * load(others[k] + i);
            }
            for (int k = 0; k < std::min(4, b + 1 - c); k++) row(b)[c + k] = sum_of<T>(sums[k]);
        }
    }

    /// Add sign d_i d_i' of the chosen features from `first` to `last`, each multiplied by its
    /// scale if there are any, on the first `size` positions.
    void add(int first, int last, int size, double sign, const T* scales = nullptr) {
        for (; first < last; first += CHUNK) {
            const int length = std::min(CHUNK, last - first);
            for (int t = 0; t < length; t++) {
                sources[t] = d.features.row(chosen[first + t]);
                if (!whole || scales) sources[t] = gather(t, size, scales ? scales[first + t] : T(1));
            }
            int a = 0;
            if (LANES<T> >= 8 && size > 4) a = add_strip<8, 1>(a, length, sign);
            while (a + 2 < size) a += add_strip<4, 3>(a, length, sign);
            if (a < size) add_strip<2, 4>(a, length, sign);
        }
    }

    /// Copy a feature on the positions that take part.
    const T* gather(int t, int size, T scale) {
        const T* feature = sources[t];
        T* values = panel.data() + static_cast<std::size_t>(t) * depth;
        for (int b = 0; b < size; b++) values[b] = scale * feature[positions[b]];
        std::fill(values + size, values + padded(size, HuberDictionary<T>::PADDED), T(0));
        return values;
    }

    /// R rows of the lower triangle from row a on, in tiles of at most V registers; return R.
    template <int R, int V>
    int add_strip(int a, int length, double sign) {
        int left = padded(a + R, LANES<T>) / LANES<T>, b = 0;
        while (left > 0) {
            // two tiles of equal width rather than one of full width and a narrow one
            if (left >= V && left != V + 1)
                b += add_tile<R, V>(a, b, length, sign), left -= V;
            else if (V > 1 && left >= 2)
                b += add_tile<R, (V > 1 ? 2 : 1)>(a, b, length, sign), left -= 2;
            else
                b += add_tile<R, 1>(a, b, length, sign), left--;
        }
        return R;
    }

    /// R rows from row a on, V registers of columns from column b on; return the number of columns.
    template <int R, int V>
    int add_tile(int a, int b, int length, double sign) {
        const T* const* features = sources.data();
        Pack<T> sums[R][V] = {};
        for (int t = 0; t < length; t++) {
            const T* feature = features[t];
            Pack<T> values[V];
            PURSUIT_UNROLL
            for (int v = 0; v < V; v++) values[v] = load(feature + b + v * LANES<T>);
            PURSUIT_UNROLL
            for (int r = 0; r < R; r++) {
                const T factor = feature[a + r];
                PURSUIT_UNROLL
                for (int v = 0; v < V; v++) sums[r][v] += factor * values[v];
            }
        }
        PURSUIT_UNROLL
        for (int r = 0; r < R; r++) {
            PURSUIT_UNROLL
            for (int v = 0; v < V; v++) {
                T values[LANES<T>];
                store<T>(values, sums[r][v]);
                double* PURSUIT_RESTRICT out = row(a + r) + b + v * LANES<T>;
                PURSUIT_SIMD
                for (int l = 0; l < LANES<T>; l++) out[l] += sign * values[l];
            }
        }
        return V * LANES<T>;
    }
};

}  // namespace pursuit
