// A convolutional encoder as plain arrays, checked: everything that a kernel relies on.
//
// A signal is a plane of sides (S0, S1) with channels, a code has C coefficients at P0 x P1 positions.
// The layers are
//
//     u   = x and its running means along axis 0, as further channels
//     b   = W * u + offset,                z_1 = shrink(b, t_1)
//     b   = b + R runmean(z_{k-1})         once, before layer k = memory + 1
//     z_k = shrink(b + H_{k-1} * z_{k-1}, t_k),
//
// where * is a cross-correlation, and the running mean of values v with the decay d is
// sum_{s<=t} d^(t-s) v_s / sum_{s<=t} d^(t-s). In a causal program axis 0 is time, its entries are
// frames, and products cover the current frame and earlier ones.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>

#include "assemble.hpp"

namespace pursuit::runtime {

/// A number for each of the two axes.
struct Sides {
    int first = 0, second = 0;

    bool operator!=(const Sides& other) const { return first != other.first || second != other.second; }
};

/// The arrays of a program as they are given; those that it does not have are empty.
struct ConvolutionProgram {
    Vector<const std::int64_t> form;  // S0, S1, channels, the strides and dilations of W, causal, memory or 0
    Vector<const double> averages;    // the decays of the running means of the signal
    Cube weight;                      // W, (C, channels (1 + averages), taps), the taps of axis 1 in rows
    Vector<const std::int64_t> taps;  // of W along both axes
    Matrix<const float> offset;       // (C, P1) or (C, 1)
    Vector<const float> couplings;    // the distinct H, one after another, each (C, C, taps, taps)
    Matrix<const std::int64_t> coupling_taps;       // of each distinct H along both axes
    Vector<const std::int64_t> coupling_of;         // the H of each layer after the first
    Matrix<const std::int64_t> coupling_dilations;  // of each layer after the first, along both axes
    Matrix<const float> soft;                       // thresholds, (T, C)
    Vector<const float> negative;                   // 1 where a coefficient may be negative, else 0, (C,)
    Matrix<const float> recall;                     // R, (C, C), if there is a memory
    Vector<const float> decays;                     // of the running mean of each atom's codes, (C,)

    int atoms() const { return soft.columns; }
    int depth() const { return soft.rows; }
    int channels() const { return number(2); }
    /// The channels of u.
    int inputs() const { return channels() * (1 + averages.size); }
    bool causal() const { return form[7] != 0; }
    /// The number of layers before the memory is added, 0 for none.
    int memory() const { return number(8); }
    Sides shape() const { return {number(0), number(1)}; }
    Sides stride() const { return {number(3), number(4)}; }
    Sides dilation() const { return {number(5), number(6)}; }
    Sides weight_taps() const { return pair(taps.data); }
    Sides dilation_of(int coupling) const { return pair(coupling_dilations.row(coupling)); }
    Sides taps_of(int distinct) const { return pair(coupling_taps.row(distinct)); }
    /// The positions of an atom along both axes; those of a causal program along axis 0 are the frames.
    Sides positions() const {
        const auto along = [](int side, int taps, int stride, int dilation) {
            const std::int64_t free = side - 1 - static_cast<std::int64_t>(dilation) * (taps - 1);
            return static_cast<int>(free < 0 ? 0 : free / stride + 1);
        };
        const int first = causal() ? shape().first
                                   : along(shape().first, weight_taps().first, stride().first, dilation().first);
        return {first, along(shape().second, weight_taps().second, stride().second, dilation().second)};
    }

private:
    int number(int k) const { return static_cast<int>(form[k]); }
    static Sides pair(const std::int64_t* numbers) {
        return {static_cast<int>(numbers[0]), static_cast<int>(numbers[1])};
    }
};

namespace detail {

inline bool counts(const std::int64_t* begin, int size) {
    return std::all_of(begin, begin + size, [](std::int64_t n) { return n >= 1 && n < (1 << 24); });
}

/// Whether what layers read around their input is not much larger than a signal and codes, as Python checks it
/// too, and planes have fewer than 2^31 numbers.
inline bool is_near(const ConvolutionProgram& p) {
    const Sides shape = p.shape(), positions = p.positions();
    const double entries = static_cast<double>(shape.second) * p.inputs();
    const double frames = p.causal() ? 1 : shape.first, first = p.causal() ? 1 : positions.first;
    double kept = entries * (p.causal() ? p.weight_taps().first : shape.first);
    for (int k = 0; k < p.depth() - 1; k++) {
        const Sides taps = p.taps_of(static_cast<int>(p.coupling_of[k])), dilation = p.dilation_of(k);
        kept += (first + static_cast<double>(dilation.first) * (taps.first - 1)) *
                (positions.second + static_cast<double>(dilation.second) * (taps.second - 1)) * p.atoms();
    }
    const double own = frames * entries + p.depth() * first * positions.second * p.atoms();
    return kept <= std::max<double>(1 << 23, 9 * own) && 9 * own < INT_MAX;
}

}  // namespace detail

/// What is needed instead of what is given, or null.
inline const char* convolution_misfit(const ConvolutionProgram& p) {
    if (p.form.size != 9 || p.form[0] < 1 || p.form[0] > INT_MAX || !detail::counts(p.form.data + 1, 6)) {
        return "a form of nine numbers, the first seven positive";
    }
    if (p.form[7] != 0 && p.form[7] != 1) return "a form whose eighth number is 0 or 1";
    if (p.taps.size != 2 || !detail::counts(p.taps.data, 2)) return "positive numbers of taps";
    const int atoms = p.atoms(), depth = p.depth();
    if (atoms < 1 || depth < 1) return "soft of shape (T, C)";
    if (p.averages.size > 64 || atoms > (1 << 20)) return "at most 64 averages and 2^20 atoms";
    const Sides taps = p.weight_taps(), positions = p.positions();
    if (positions.first < 1 || positions.second < 1) return "taps that fit into the signal";
    if (p.weight.count != atoms || p.weight.rows != p.inputs() ||
        p.weight.columns != static_cast<std::int64_t>(taps.first) * taps.second ||
        static_cast<std::int64_t>(p.weight.rows) * p.weight.columns > INT_MAX) {
        return "weight of shape (C, channels, taps)";
    }
    if (p.causal() && (p.stride().first != 1 || p.dilation().first != 1)) return "no stride in time";
    if (!p.causal() && (p.averages.size > 0 || p.form[8] != 0)) return "running means only in time";
    if (p.offset.rows != atoms || (p.offset.columns != 1 && p.offset.columns != positions.second)) {
        return "offset of shape (C, P1) or (C, 1)";
    }
    if (p.negative.size != atoms) return "negative of shape (C,)";
    const int distinct = p.coupling_taps.rows;
    if (distinct > 0 && p.coupling_taps.columns != 2) return "coupling_taps of shape (k, 2)";
    std::int64_t total = 0;
    for (int k = 0; k < distinct; k++) {
        if (!detail::counts(p.coupling_taps.row(k), 2)) return "positive numbers of taps";
        const std::int64_t area = p.coupling_taps(k, 0) * p.coupling_taps(k, 1);
        if (area > (1 << 20)) return "fewer taps";
        total += area * atoms * atoms;
        if (total > p.couplings.size) break;
    }
    if (total != p.couplings.size) return "couplings of shape (C, C, taps, taps)";
    if (!detail::within(p.coupling_of, depth - 1, distinct)) return "a coupling for each layer after the first";
    if (p.coupling_dilations.rows != depth - 1 || (depth > 1 && p.coupling_dilations.columns != 2)) {
        return "coupling_dilations of shape (T - 1, 2)";
    }
    for (int k = 0; k < depth - 1; k++) {
        if (!detail::counts(p.coupling_dilations.row(k), 2)) return "positive dilations";
        const Sides across = p.taps_of(static_cast<int>(p.coupling_of[k]));
        if (across.second % 2 == 0 || (across.first % 2 == 0 && !p.causal())) return "odd numbers of taps";
    }
    if (!detail::is_near(p)) return "taps that do not reach far beyond the positions, and moderate planes";
    if (p.form[8] < 0 || p.form[8] >= depth) return "a memory between 0 and T - 1";
    if (p.memory() > 0 && (p.recall.rows != atoms || p.recall.columns != atoms || p.decays.size != atoms)) {
        return "recall of shape (C, C) and decays of shape (C,)";
    }
    return nullptr;
}

}  // namespace pursuit::runtime
