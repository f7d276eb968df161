// The shrinkage of each layer: soft thresholds of coefficients, then of whole groups.
//
// With low = -soft where a coefficient may be negative, else -infinity,
//
//     shrink(v) = v - max(min(v, soft), low).
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "memory.hpp"

namespace pursuit::runtime {

PURSUIT_INLINE Pack<float> shrink(const Pack<float>& v, const Pack<float>& soft, const Pack<float>& low) {
    return v - larger(smaller(v, soft), low);
}

class Shrinkage {
public:
    Shrinkage() = default;

    /// The tables of a program whose codes are laid out in two parts, [0, first) and the rest, each
    /// followed by zeros up to a whole panel.
    Shrinkage(const Program& program, int first)
        : width(padded(first) + padded(program.size - first)),
          soft_(static_cast<std::size_t>(program.depth) * width),
          low_(soft_.size()),
          runs(program.runs.begin(), program.runs.end()),
          levels(program.levels),
          groups(program.thresholds.columns),
          thresholds(program.thresholds.data,
                     program.thresholds.data + static_cast<std::size_t>(program.depth) * levels * groups) {
        for (int t = 0; t < program.depth; t++) {
            for (int i = 0; i < program.size; i++) {
                const std::size_t at =
                    static_cast<std::size_t>(t) * width + (i < first ? i : padded(first) + i - first);
                soft_[at] = program.soft(t, i);
                low_[at] =
                    program.negative[i] != 0 ? -program.soft(t, i) : -std::numeric_limits<float>::infinity();
            }
        }
    }

    const float* soft(int t) const { return soft_.data() + static_cast<std::size_t>(t) * width; }
    const float* low(int t) const { return low_.data() + static_cast<std::size_t>(t) * width; }
    bool has_groups() const { return levels > 0; }
    /// The size of the scratch memory of `shrink_groups`.
    int group_count() const { return groups; }

    /// v_r <- v_r max(0, 1 - t_r / ||v_r||) for the groups r of a row, level by level.
    void shrink_groups(int t, float* row, float* PURSUIT_RESTRICT factors) const {
        auto run = runs.begin();
        for (int level = 0; level < levels; level++) {
            const float* threshold = thresholds.data() + (static_cast<std::size_t>(t) * levels + level) * groups;
            std::fill_n(factors, groups, 0.0f);
            const auto begin = run;
            for (; run != runs.end() && run->level == level; run++) {
                float squares = 0;
                PURSUIT_SIMD_REDUCE(+ : squares)
                for (int i = run->begin; i < run->end; i++) squares += row[i] * row[i];
                factors[run->group] += squares;
            }
            for (int r = 0; r < groups; r++) {
                const float norm = std::sqrt(factors[r]);
                factors[r] = norm > threshold[r] ? 1 - threshold[r] / norm : 0.0f;
            }
            for (auto part = begin; part != run; part++) {
                const float factor = factors[part->group];
                PURSUIT_SIMD
                for (int i = part->begin; i < part->end; i++) row[i] *= factor;
            }
        }
    }

private:
    int width = 0;
    AlignedVector<float> soft_, low_;
    std::vector<Run> runs;
    int levels = 0, groups = 0;
    std::vector<float> thresholds;
};

}  // namespace pursuit::runtime
