// A trained encoder as plain arrays: what an executor is made from.
//
// Every layer computes, from the last two codes z and z',
//
//     v = a1 z + a2 z' + e x W' - (c1 z + c2 z') G',        y = shrink(v),
//
// with G a matrix, or G = W V' + diag(decay) in the form of the residual; with an identity block, the
// last rows of W and V are diag(w) and I. The shrinkage is a soft threshold, one-sided where a
// coefficient must not be negative, and then one of whole groups, level by level. The last code is
// multiplied by `units`.
#pragma once

#include <cstdint>

#include "../arrays.hpp"

namespace pursuit::runtime {

/// The scalars of a layer.
struct Mix {
    float a1, a2, c1, c2, e;
};

/// Matrices of one shape, and the number of the one that each layer uses.
struct Stack {
    const float* data = nullptr;
    int count = 0, rows = 0, columns = 0;
    Vector<const std::int64_t> of;

    Matrix<const float> operator[](int number) const {
        return {data + static_cast<std::ptrdiff_t>(number) * rows * columns, rows, columns};
    }
};

/// Adjacent coefficients [begin, end) of a group.
struct Run {
    int level, begin, end, group;
};

/// A view of the arrays; an executor copies what it needs.
struct Program {
    int features = 0;  // m
    int size = 0;      // q
    int depth = 0;     // T

    Stack weights;  // W, (q, m), or (q - m, m) with an identity block in the residual form
    Stack grams;    // G, (q, q), or none
    Stack atoms;    // V of the residual form, as W, or none
    Stack steps;    // w of the identity block, (1, m), or none

    Vector<const Mix> mix;              // (T,)
    Matrix<const float> soft;           // thresholds, (T, q)
    Vector<const float> negative;       // 1 where a coefficient may be negative, else 0, (q,)
    Vector<const float> decay;          // (q,)
    Vector<const float> units;          // (q,)
    Vector<const Run> runs;             // the groups, level by level
    int levels = 0;                     // levels of groups
    Matrix<const float> thresholds;     // those of the groups, (T * levels, number of groups)
    Vector<const std::int64_t> widths;  // coefficients that a layer replaces, 0 for one block, (T,)
    Vector<const std::int64_t> blocks;  // the block of each coefficient, (q,)
    Vector<const float> constants;      // the step constant of each coefficient, (q,)

    /// Whether some layer uses the code before the last.
    bool momentum() const {
        for (const Mix& layer : mix) {
            if (layer.a2 != 0 || layer.c2 != 0) return true;
        }
        return false;
    }
};

}  // namespace pursuit::runtime
