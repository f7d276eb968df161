// The memory of executors: what a call works in, and matrices laid out for products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "../gemm.hpp"
#include "program.hpp"

namespace pursuit::runtime {

/// The width of a row that ends with a whole panel.
constexpr int padded(int columns) {
    return padded_columns<float>(columns);
}

/// Hands out parts of the scratch memory that a caller gives; without memory it counts what is needed.
class Arena {
public:
    explicit Arena(float* memory = nullptr) : memory(memory) {
        if (memory != nullptr)
            used = (LINE - reinterpret_cast<std::uintptr_t>(memory) / sizeof(float) % LINE) % LINE;
    }

    float* take(std::size_t count) {
        float* part = memory == nullptr ? nullptr : memory + used;
        used += (count + LINE - 1) / LINE * LINE;
        return part;
    }
    Matrix<float> take(int rows, int columns) {
        return {take(static_cast<std::size_t>(rows) * columns), rows, columns};
    }
    /// The floats that are needed, wherever the memory begins.
    std::size_t needed() const { return used + LINE; }

private:
    static constexpr std::size_t LINE = 64 / sizeof(float);
    float* memory;
    std::size_t used = 0;
};

/// The matrices of a stack, packed once for all products.
class PackedStack {
public:
    PackedStack() = default;
    PackedStack(const Stack& stack, bool transposed)
        : of(stack.of.begin(), stack.of.end()),
          depth(transposed ? stack.columns : stack.rows),
          columns(transposed ? stack.rows : stack.columns),
          each(static_cast<std::size_t>(depth) * padded(columns)),
          panels(each * stack.count) {
        for (int k = 0; k < stack.count; k++) {
            pack_panels(Operand<float>(stack[k], transposed), panels.data() + each * k);
        }
    }

    int count() const { return each == 0 ? 0 : static_cast<int>(panels.size() / each); }

    /// Call finish(i, j, tile) for all tiles of the first `rows` rows of A by a matrix.
    template <class Finish>
    void product(int number, int rows, const Matrix<float>& a, const Finish& finish) const {
        for_tiles(rows, columns, depth, a.data, a.stride, false, panels.data() + each * number, finish);
    }
    /// The same with A = 0, without the product.
    template <class Finish>
    void no_product(int rows, const Matrix<float>& a, const Finish& finish) const {
        for_tiles(rows, columns, 0, a.data, a.stride, false, panels.data(), finish);
    }

    std::vector<std::int64_t> of;  // the matrix of each layer

private:
    int depth = 0, columns = 0;
    std::size_t each = 0;
    AlignedVector<float> panels;
};

/// Writes the tiles of a product to a matrix whose rows end with whole panels.
struct Copy {
    Matrix<float> out;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        PURSUIT_UNROLL
        for (int r = 0; r < R; r++) {
            PURSUIT_UNROLL
            for (int v = 0; v < 2 * P; v++) store(&out(i + r, j + v * LANES<float>), tile.at[r][v]);
        }
    }
};

/// Copy signals to rows that end with whole panels, numbers below `tiny` as zeros: products of
/// denormal numbers are slow. Return whether all are finite.
template <class X>
bool prepare(const Matrix<const X>& x, float tiny, const Matrix<float>& out) {
    int bad = 0;
    for (int row = 0; row < x.rows; row++) {
        const X* PURSUIT_RESTRICT from = x.row(row);
        float* PURSUIT_RESTRICT to = out.row(row);
        PURSUIT_SIMD_REDUCE(| : bad)
        for (int i = 0; i < x.columns; i++) {
            const float value = static_cast<float>(from[i]), size = std::abs(value);
            to[i] = size < tiny ? 0.0f : value;
            bad |= !(size <= std::numeric_limits<float>::max());
        }
        std::fill(to + x.columns, to + out.columns, 0.0f);
    }
    return bad == 0;
}

}  // namespace pursuit::runtime
