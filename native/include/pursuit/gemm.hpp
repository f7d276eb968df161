// Products of matrices in row-major order, for the small sizes of layers: C = alpha A B + beta C.
//
// A tile of ROWS x COLUMNS numbers of C is summed in registers. B is copied to panels of COLUMNS
// columns first ("packed"), so that a panel is read in the order of memory and stays in the
// first-level cache while the rows of A pass by. Rows of A are read where they are; a transposed A is
// packed as well.
//
// The sum over k has the same order for every row of C, whatever the number of rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "arrays.hpp"
#include "simd.hpp"

namespace pursuit {

/// The rows of a tile. With two vectors a row, its sums fill 12 of 16 registers.
constexpr int TILE_ROWS = 6;
/// The columns of a tile and of a panel.
template <class T>
constexpr int TILE_COLUMNS = 2 * LANES<T>;

template <class T>
constexpr int padded_columns(int columns) {
    return (columns + TILE_COLUMNS<T> - 1) / TILE_COLUMNS<T> * TILE_COLUMNS<T>;
}

/// A matrix or its transpose: element (i, j) is data[i * row + j * column].
template <class T>
struct Operand {
    const T* data;
    int rows, columns;
    std::ptrdiff_t row, column;

    Operand(const Matrix<const T>& matrix, bool transposed = false)
        : data(matrix.data),
          rows(transposed ? matrix.columns : matrix.rows),
          columns(transposed ? matrix.rows : matrix.columns),
          row(transposed ? 1 : matrix.stride),
          column(transposed ? matrix.stride : 1) {}
    Operand(const Matrix<T>& matrix, bool transposed = false)
        : Operand(Matrix<const T>{matrix.data, matrix.rows, matrix.columns, matrix.stride}, transposed) {}
};

/// The sums of a tile with R rows.
template <class T, int R>
struct Tile {
    Pack<T> at[R][2];
};

/// tile = A B for R rows of A and a panel of B. Element (r, k) of A is a[r * row + k * column].
template <class T, int R>
PURSUIT_INLINE Tile<T, R> tile_product(int depth, const T* PURSUIT_RESTRICT a, std::ptrdiff_t row,
                                       std::ptrdiff_t column, const T* PURSUIT_RESTRICT panel) {
    Tile<T, R> sum = {};
    for (int k = 0; k < depth; k++) {
        const Pack<T> left = load(panel), right = load(panel + LANES<T>);
        PURSUIT_UNROLL
        for (int r = 0; r < R; r++) {
            const T factor = a[r * row];
            sum.at[r][0] += factor * left;
            sum.at[r][1] += factor * right;
        }
        a += column;
        panel += TILE_COLUMNS<T>;
    }
    return sum;
}

/// Copy B (k, n) to panels: element (k, j) of panel p is panels[(p * depth + k) * COLUMNS + j].
///
/// The last panel is filled up with zeros. `panels` has depth * padded_columns(n) elements.
template <class T>
void pack_panels(const Operand<T>& b, T* PURSUIT_RESTRICT panels) {
    constexpr int width = TILE_COLUMNS<T>;
    for (int j = 0; j < b.columns; j += width) {
        const int count = std::min(width, b.columns - j);
        const T* from = b.data + j * b.column;
        if (count < width) std::fill_n(panels, static_cast<std::size_t>(b.rows) * width, T(0));
        if (b.column == 1 && count == width) {
            for (int k = 0; k < b.rows; k++) {
                store(panels + k * width, load(from + k * b.row));
                store(panels + k * width + LANES<T>, load(from + k * b.row + LANES<T>));
            }
        } else if (b.column == 1) {
            for (int k = 0; k < b.rows; k++) std::copy_n(from + k * b.row, count, panels + k * width);
        } else {
            for (int i = 0; i < count; i++) {
                const T* PURSUIT_RESTRICT source = from + i * b.column;
                for (int k = 0; k < b.rows; k++) panels[k * width + i] = source[k * b.row];
            }
        }
        panels += static_cast<std::size_t>(b.rows) * width;
    }
}

/// Copy A (m, k) to panels of ROWS rows: element (r, k) of panel p is panels[(p * depth + k) * ROWS + r].
template <class T>
void pack_rows(const Operand<T>& a, T* PURSUIT_RESTRICT panels) {
    for (int i = 0; i < a.rows; i += TILE_ROWS) {
        const int count = std::min(TILE_ROWS, a.rows - i);
        const T* from = a.data + i * a.row;
        for (int k = 0; k < a.columns; k++, from += a.column, panels += TILE_ROWS) {
            for (int r = 0; r < count; r++) panels[r] = from[r * a.row];
        }
    }
}

/// Call finish(i, j, tile) for all tiles of A B, where (i, j) is the first element of the tile.
///
/// `a` has `rows` rows; `panels` holds B with `columns` columns, as `pack_panels` writes it.
/// `a_packed` says that `a` was written by `pack_rows`.
template <class T, class Finish>
void for_tiles(int rows, int columns, int depth, const T* a, std::ptrdiff_t row, bool a_packed,
               const T* panels, Finish&& finish);

namespace detail {

template <int R, class T, class Finish>
PURSUIT_INLINE void finish_tile(int i, int j, int depth, const T* a, std::ptrdiff_t row, bool a_packed,
                                const T* panel, Finish& finish) {
    if (a_packed) {
        finish(i, j, tile_product<T, R>(depth, a + static_cast<std::ptrdiff_t>(i) * depth, 1, TILE_ROWS, panel));
    } else {
        finish(i, j, tile_product<T, R>(depth, a + i * row, row, 1, panel));
    }
}

}  // namespace detail

template <class T, class Finish>
void for_tiles(int rows, int columns, int depth, const T* a, std::ptrdiff_t row, bool a_packed,
               const T* panels, Finish&& finish) {
    for (int j = 0; j < columns; j += TILE_COLUMNS<T>) {
        const T* panel = panels + static_cast<std::size_t>(j) * depth;
        int i = 0;
        for (; i + TILE_ROWS <= rows; i += TILE_ROWS) {
            detail::finish_tile<TILE_ROWS>(i, j, depth, a, row, a_packed, panel, finish);
        }
        switch (rows - i) {
            case 5: detail::finish_tile<5>(i, j, depth, a, row, a_packed, panel, finish); break;
            case 4: detail::finish_tile<4>(i, j, depth, a, row, a_packed, panel, finish); break;
            case 3: detail::finish_tile<3>(i, j, depth, a, row, a_packed, panel, finish); break;
            case 2: detail::finish_tile<2>(i, j, depth, a, row, a_packed, panel, finish); break;
            case 1: detail::finish_tile<1>(i, j, depth, a, row, a_packed, panel, finish); break;
            default: break;
        }
    }
}

namespace detail {

/// c = alpha tile + beta c.
template <class T>
struct Store {
    T alpha, beta;
    Matrix<T> c;

    template <int R>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<T, R>& tile) const {
        if (j + TILE_COLUMNS<T> > c.columns) {
            edge(i, j, tile);
        } else if (beta == 0) {
            PURSUIT_UNROLL
            for (int r = 0; r < R; r++) {
                T* to = &c(i + r, j);
                store(to, alpha * tile.at[r][0]);
                store(to + LANES<T>, alpha * tile.at[r][1]);
            }
        } else {
            PURSUIT_UNROLL
            for (int r = 0; r < R; r++) {
                T* to = &c(i + r, j);
                store(to, alpha * tile.at[r][0] + beta * load(to));
                store(to + LANES<T>, alpha * tile.at[r][1] + beta * load(to + LANES<T>));
            }
        }
    }

    /// A tile that extends beyond the last column.
    template <int R>
    void edge(int i, int j, const Tile<T, R>& tile) const {
        T row[TILE_COLUMNS<T>];
        for (int r = 0; r < R; r++) {
            store(row, tile.at[r][0]);
            store(row + LANES<T>, tile.at[r][1]);
            T* to = &c(i + r, j);
            for (int x = 0; x < c.columns - j; x++) to[x] = alpha * row[x] + (beta == 0 ? T(0) : beta * to[x]);
        }
    }
};

}  // namespace detail

/// The memory of a product; it can serve any number of them, one at a time.
template <class T>
class GemmScratch {
public:
    GemmScratch() : panels(static_cast<std::size_t>(DEPTH) * COLUMNS), rows(static_cast<std::size_t>(DEPTH) * ROWS) {}

    // A panel of B takes half of 32 kB in the first-level cache, all panels half of 512 kB in the second.
    static constexpr int DEPTH = 256;
    static constexpr int COLUMNS = 1024 / static_cast<int>(sizeof(T));
    static constexpr int ROWS = 96;

    std::vector<T> panels, rows;
};

/// C = alpha A B + beta C; with beta = 0, C is only written.
template <class T>
void gemm(T alpha, const Operand<T>& a, const Operand<T>& b, T beta, const Matrix<T>& c, GemmScratch<T>& scratch) {
    using S = GemmScratch<T>;
    const int depth = a.columns;
    if (depth == 0) {
        for (int i = 0; i < c.rows; i++) {
            for (int j = 0; j < c.columns; j++) c(i, j) = beta == 0 ? T(0) : beta * c(i, j);
        }
        return;
    }
    for (int j0 = 0; j0 < c.columns; j0 += S::COLUMNS) {
        const int columns = std::min(S::COLUMNS, c.columns - j0);
        for (int k0 = 0; k0 < depth; k0 += S::DEPTH) {
            const int part = std::min(S::DEPTH, depth - k0);
            Operand<T> block = b;
            block.data += k0 * b.row + j0 * b.column;
            block.rows = part;
            block.columns = columns;
            pack_panels(block, scratch.panels.data());
            const T scale = k0 == 0 ? beta : T(1);
            const bool direct = a.column == 1;
            for (int i0 = 0; i0 < c.rows; i0 += S::ROWS) {
                Operand<T> strip = a;
                strip.data += i0 * a.row + k0 * a.column;
                strip.rows = std::min(S::ROWS, c.rows - i0);
                strip.columns = part;
                if (!direct) pack_rows(strip, scratch.rows.data());
                const detail::Store<T> finish{alpha, scale, {c.row(i0) + j0, strip.rows, columns, c.stride}};
                for_tiles<T>(strip.rows, columns, part, direct ? strip.data : scratch.rows.data(), a.row, !direct,
                             scratch.panels.data(), finish);
            }
        }
    }
}

}  // namespace pursuit
