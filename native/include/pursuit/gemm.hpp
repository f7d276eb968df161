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

/// The sums of a tile: R rows of P panels, two vectors a panel.
template <class T, int R, int P>
struct Tile {
    Pack<T> at[R][2 * P];
};

/// tile += A B for R rows of A and P panels of B, which lie `panel` elements apart.
///
/// Element (r, k) of A is a[r * row + k * column].
template <class T, int R, int P>
PURSUIT_INLINE void add_product(Tile<T, R, P>& tile, int depth, const T* PURSUIT_RESTRICT a, std::ptrdiff_t row,
                                std::ptrdiff_t column, const T* PURSUIT_RESTRICT b, std::ptrdiff_t panel) {
    for (int k = 0; k < depth; k++, a += column, b += TILE_COLUMNS<T>) {
        if (R == 1 && *a == 0) continue;  // a single row waits for the memory of B
        PURSUIT_UNROLL
        for (int p = 0; p < P; p++) {
            const Pack<T> left = load(b + p * panel), right = load(b + p * panel + LANES<T>);
            PURSUIT_UNROLL
            for (int r = 0; r < R; r++) {
                const T factor = a[r * row];
                tile.at[r][2 * p] += factor * left;
                tile.at[r][2 * p + 1] += factor * right;
            }
        }
    }
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
    const int depth = a.columns, full = a.rows / TILE_ROWS;
    for (int k = 0; k < depth; k++) {
        const T* PURSUIT_RESTRICT from = a.data + k * a.column;
        T* PURSUIT_RESTRICT to = panels + static_cast<std::ptrdiff_t>(k) * TILE_ROWS;
        for (int p = 0; p < full; p++) {
            PURSUIT_UNROLL
            for (int r = 0; r < TILE_ROWS; r++) to[r] = from[r * a.row];
            from += TILE_ROWS * a.row;
            to += static_cast<std::ptrdiff_t>(depth) * TILE_ROWS;
        }
        for (int r = 0; r < a.rows - full * TILE_ROWS; r++) to[r] = from[r * a.row];
    }
}

/// The tiles of A B, where B was written by `pack_panels`.
template <class T>
struct PanelProduct {
    int depth;
    const T* a;          // element (r, k) is a[r * row + k], unless it is packed: then `pack_rows` wrote it
    std::ptrdiff_t row;  // the distance of its rows
    bool packed;
    const T* panels;

    /// The tile that begins at row i and column j.
    template <int R, int P>
    PURSUIT_INLINE Tile<T, R, P> tile(int i, int j) const {
        const std::ptrdiff_t panel = static_cast<std::ptrdiff_t>(depth) * TILE_COLUMNS<T>;
        const T* b = panels + j / TILE_COLUMNS<T> * panel;
        Tile<T, R, P> sum = {};
        if (packed) {
            add_product(sum, depth, a + static_cast<std::ptrdiff_t>(i) * depth, 1, TILE_ROWS, b, panel);
        } else {
            add_product(sum, depth, a + i * row, row, 1, b, panel);
        }
        return sum;
    }
};

namespace detail {

/// R rows from row i on, and the columns from column j on, P panels at a time.
///
/// Few rows take several panels at once, since a sum can only continue when the last addition is done.
template <int R, int P, class T, class Product, class Finish>
PURSUIT_INLINE void strip_tiles(int i, int j, int columns, const Product& product, const Finish& finish) {
    constexpr int width = TILE_COLUMNS<T>;
    for (; j + (P - 1) * width < columns; j += P * width) finish(i, j, product.template tile<R, P>(i, j));
    if constexpr (P > 1) strip_tiles<R, P / 2, T>(i, j, columns, product, finish);
}

}  // namespace detail

/// Call finish(i, j, tile) for all tiles of a product, where (i, j) is the first element of a tile.
///
/// product.tile<R, P>(i, j) returns the sums of R rows and P panels of columns, as `PanelProduct` does.
template <class T, class Product, class Finish>
void for_tiles(int rows, int columns, const Product& product, const Finish& finish) {
    const int full = rows - rows % TILE_ROWS;
    for (int j = 0; j < columns && full > 0; j += TILE_COLUMNS<T>) {
        for (int i = 0; i < full; i += TILE_ROWS) finish(i, j, product.template tile<TILE_ROWS, 1>(i, j));
    }
    switch (rows - full) {
        case 5:
            return detail::strip_tiles<5, 1, T>(full, 0, columns, product, finish);
        case 4:
            return detail::strip_tiles<4, 1, T>(full, 0, columns, product, finish);
        case 3:
            return detail::strip_tiles<3, 1, T>(full, 0, columns, product, finish);
        case 2:
            return detail::strip_tiles<2, 2, T>(full, 0, columns, product, finish);
        case 1:
            return detail::strip_tiles<1, 4, T>(full, 0, columns, product, finish);
        default:
            return;
    }
}

/// The same for A B, with A of `rows` rows and `depth` columns.
template <class T, class Finish>
void for_tiles(int rows, int columns, int depth, const T* a, std::ptrdiff_t row, bool packed, const T* panels,
               const Finish& finish) {
    for_tiles<T>(rows, columns, PanelProduct<T>{depth, a, row, packed, panels}, finish);
}

namespace detail {

/// c = alpha tile + beta c.
template <class T>
struct Store {
    T alpha, beta;
    Matrix<T> c;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<T, R, P>& tile) const {
        if (j + P * TILE_COLUMNS<T> > c.columns) {
            edge(i, j, tile);
        } else if (beta == 0) {
            PURSUIT_UNROLL
            for (int r = 0; r < R; r++) {
                T* to = &c(i + r, j);
                PURSUIT_UNROLL
                for (int v = 0; v < 2 * P; v++) store(to + v * LANES<T>, alpha * tile.at[r][v]);
            }
        } else {
            PURSUIT_UNROLL
            for (int r = 0; r < R; r++) {
                T* to = &c(i + r, j);
                PURSUIT_UNROLL
                for (int v = 0; v < 2 * P; v++) {
                    store(to + v * LANES<T>, alpha * tile.at[r][v] + beta * load(to + v * LANES<T>));
                }
            }
        }
    }

    /// A tile that extends beyond the last column.
    template <int R, int P>
    void edge(int i, int j, const Tile<T, R, P>& tile) const {
        T row[P * TILE_COLUMNS<T>];
        for (int r = 0; r < R; r++) {
            for (int v = 0; v < 2 * P; v++) store(row + v * LANES<T>, tile.at[r][v]);
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
    GemmScratch()
        : panels(static_cast<std::size_t>(DEPTH) * COLUMNS), rows(static_cast<std::size_t>(DEPTH) * ROWS) {}

    // A panel of B takes half of 32 kB in the first-level cache, all panels half of 512 kB in the second.
    static constexpr int DEPTH = 256;
    static constexpr int COLUMNS = 1024 / static_cast<int>(sizeof(T));
    static constexpr int ROWS = 768 / static_cast<int>(sizeof(T));

    AlignedVector<T> panels, rows;
};

/// C = alpha A B + beta C; with beta = 0, C is only written.
template <class T>
void gemm(T alpha, const Operand<T>& a, const Operand<T>& b, T beta, const Matrix<T>& c,
          GemmScratch<T>& scratch) {
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
                const T* left = direct ? strip.data : scratch.rows.data();
                for_tiles(strip.rows, columns, part, left, a.row, !direct, scratch.panels.data(), finish);
            }
        }
    }
}

}  // namespace pursuit
