// Programs from arrays that were given from outside: everything that a kernel relies on is checked.
#pragma once

#include <cstdint>
#include <vector>

#include "program.hpp"

namespace pursuit::runtime {

/// A view of matrices of one shape.
struct Cube {
    const float* data = nullptr;
    int count = 0, rows = 0, columns = 0;
};

/// The arrays of a program as they are given; those that it does not have are empty.
struct Arrays {
    Cube weights;
    Vector<const std::int64_t> weight_of;
    Cube grams;
    Vector<const std::int64_t> gram_of;
    Cube atoms;
    Vector<const std::int64_t> atoms_of;
    Cube steps;
    Vector<const std::int64_t> step_of;
    Matrix<const float> mix, soft;
    Vector<const float> negative, decay, units;
    Matrix<const std::int64_t> runs;  // level, begin, end, group
    Cube thresholds;
    Vector<const std::int64_t> widths, blocks;
    Vector<const float> constants;
};

namespace detail {

inline bool within(const Vector<const std::int64_t>& numbers, int size, std::int64_t end) {
    if (numbers.size != size) return false;
    for (const std::int64_t number : numbers) {
        if (number < 0 || number >= end) return false;
    }
    return true;
}

inline bool set_stack(const Cube& cube, const Vector<const std::int64_t>& of, int rows, int columns, int depth,
                      Stack& stack) {
    if (cube.count == 0) return true;
    stack = {cube.data, cube.count, cube.rows, cube.columns, of};
    return cube.rows == rows && cube.columns == columns && within(of, depth, cube.count);
}

}  // namespace detail

/// Set the program and its runs; return what was needed instead of what is given, or null.
inline const char* assemble(const Arrays& a, Program& p, std::vector<Run>& runs) {
    const int depth = a.mix.rows, q = a.soft.columns, m = a.weights.columns, rows = a.steps.count > 0 ? q - m : q;
    p.depth = depth;
    p.size = q;
    p.features = m;
    static_assert(sizeof(Mix) == 5 * sizeof(float), "a row of mix is read as a Mix");
    if (a.mix.columns != 5 || depth < 1) return "mix of shape (T, 5)";
    if (rows < 1 || m < 1) return "at least one atom and one feature";
    if (a.weights.count == 0 || !detail::set_stack(a.weights, a.weight_of, rows, m, depth, p.weights)) {
        return "weights of shape (k, q, m)";
    }
    if (a.grams.count == 0 && a.atoms.count == 0) return "grams or atoms";
    if (a.steps.count > 0 && a.atoms.count == 0) return "atoms beside steps";
    if (!detail::set_stack(a.grams, a.gram_of, q, q, depth, p.grams)) return "grams of shape (k, q, q)";
    if (!detail::set_stack(a.atoms, a.atoms_of, rows, m, depth, p.atoms)) return "atoms of shape (k, q, m)";
    if (!detail::set_stack(a.steps, a.step_of, 1, m, depth, p.steps)) return "steps of shape (k, 1, m)";
    if (a.soft.rows != depth) return "soft of shape (T, q)";
    if (a.negative.size != q || a.decay.size != q || a.units.size != q || a.constants.size != q) {
        return "negative, decay, units and constants of shape (q,)";
    }
    if (!detail::within(a.widths, depth, static_cast<std::int64_t>(q) + 1)) return "T widths between 0 and q";
    if (!detail::within(a.blocks, q, q)) return "q blocks between 0 and q - 1";
    if (a.thresholds.count != depth) return "thresholds of shape (T, levels, groups)";
    p.mix = {reinterpret_cast<const Mix*>(a.mix.data), depth};
    p.soft = a.soft;
    p.negative = a.negative;
    p.decay = a.decay;
    p.units = a.units;
    p.constants = a.constants;
    p.widths = a.widths;
    p.blocks = a.blocks;
    p.levels = a.thresholds.rows;
    p.thresholds = {a.thresholds.data, depth * p.levels, a.thresholds.columns};
    if (a.runs.columns != 4) return "runs of shape (k, 4)";
    std::int64_t level = 0;
    runs.clear();
    for (int k = 0; k < a.runs.rows; k++) {
        const std::int64_t* r = a.runs.row(k);
        if (r[0] < level || r[0] >= p.levels) return "runs in the order of their levels";
        if (r[1] < 0 || r[1] > r[2] || r[2] > q) return "runs within the code";
        if (r[3] < 0 || r[3] >= p.thresholds.columns) return "runs of groups that have thresholds";
        level = r[0];
        runs.push_back(
            {static_cast<int>(r[0]), static_cast<int>(r[1]), static_cast<int>(r[2]), static_cast<int>(r[3])});
    }
    p.runs = {runs.data(), static_cast<int>(runs.size())};
    return nullptr;
}

/// What a program lacks for `Dense`, or null.
inline const char* dense_misfit(const Program& p) {
    for (const std::int64_t width : p.widths) {
        if (width != p.size) return "layers that replace the whole code";
    }
    return p.steps.count > 0 && p.levels > 0 ? "no groups beside an identity block" : nullptr;
}

/// What a program lacks for `Sparse`, or null.
inline const char* sparse_misfit(const Program& p) {
    return p.grams.count > 0 && p.steps.count == 0 ? nullptr : "grams, and weights of all atoms";
}

}  // namespace pursuit::runtime
