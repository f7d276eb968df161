// The layers of a convolutional program, on whole planes or on frames that arrive one after another.
//
// Arrays have the order (frames, positions, channels). The taps of a position that lie side by side in
// memory, and their channels, are a segment; the sums of a tile of positions and atoms run over all
// segments in registers, and what follows the product is done to them there. Each layer's input is
// kept in a plane with zeros around it and the frames of earlier blocks before it, so that a whole
// signal and a stream are the same computation. Segments in frames that are zero are skipped.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "convolution_program.hpp"
#include "memory.hpp"
#include "shrinkage.hpp"

namespace pursuit::runtime {

/// Numbers of adjacent positions, for each channel and frame.
template <class T>
struct Maps {
    T* data;
    std::ptrdiff_t channel, frame;
};

/// The taps that are read from `from` on, whose weights are the rows of a panel from `row` on.
struct Segment {
    std::ptrdiff_t from, row;
    int length;
};

/// A kernel of a cross-correlation, ready for products.
///
/// The taps of position p along an axis are at p stride - before + n dilation, n = 0, 1, ...
class Correlation {
public:
    /// `kernel` has the order (atoms, channels, taps, taps).
    Correlation(const float* kernel, int atoms, int channels, Sides taps, Sides stride, Sides dilation,
                Sides before)
        : channels(channels), taps(taps), stride(stride), dilation(dilation), before(before), atoms(atoms) {
        const std::ptrdiff_t area = static_cast<std::ptrdiff_t>(taps.first) * taps.second;
        rows = area * channels;
        std::vector<float> matrix(static_cast<std::size_t>(rows) * atoms);
        for (int a = 0; a < atoms; a++) {
            for (int c = 0; c < channels; c++) {
                const float* from = kernel + (static_cast<std::ptrdiff_t>(a) * channels + c) * area;
                for (std::ptrdiff_t n = 0; n < area; n++) matrix[(n * channels + c) * atoms + a] = from[n];
            }
        }
        panels.resize(static_cast<std::size_t>(rows) * padded(atoms));
        pack_panels(Operand<float>(Matrix<const float>(matrix.data(), static_cast<int>(rows), atoms)),
                    panels.data());
    }

    /// Add the segments of the taps n along axis 0, for a plane with rows of `width` numbers.
    void segments(int n, std::ptrdiff_t width, std::vector<Segment>& out) const {
        const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(n) * dilation.first * width;
        const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(n) * taps.second * channels;
        if (dilation.second == 1) {
            out.push_back({from, row, taps.second * channels});
            return;
        }
        for (std::ptrdiff_t k = 0; k < taps.second; k++) {
            out.push_back({from + k * dilation.second * channels, row + k * channels, channels});
        }
    }

    /// Call finish for all tiles of `count` positions, whose first taps lie `row` numbers apart from `a` on.
    template <class Finish>
    void product(int count, const float* a, std::ptrdiff_t row, const std::vector<Segment>& segments,
                 const Finish& finish) const {
        const Product taken{segments.data(), segments.data() + segments.size(), a, row, panels.data(), rows};
        for_tiles<float>(count, atoms, taken, finish);
    }

    const int channels;
    const Sides taps, stride, dilation, before;

private:
    struct Product {
        const Segment *begin, *end;
        const float* a;
        std::ptrdiff_t row;
        const float* panels;
        std::ptrdiff_t rows;

        template <int R, int P>
        PURSUIT_INLINE Tile<float, R, P> tile(int i, int j) const {
            const float* panel = panels + static_cast<std::ptrdiff_t>(j) * rows;
            Tile<float, R, P> sum = {};
            for (const Segment* part = begin; part != end; part++) {
                add_product(sum, part->length, a + i * row + part->from, row, 1,
                            panel + part->row * TILE_COLUMNS<float>, rows * TILE_COLUMNS<float>);
            }
            return sum;
        }
    };

    int atoms;
    std::ptrdiff_t rows;
    AlignedVector<float> panels;
};

/// The end of a layer: v = b + the product, of which the shrunk code is kept. The first layer keeps b.
///
/// Row i of a tile is position i; the rows of all arrays are some numbers apart.
template <bool FIRST>
struct FinishPositions {
    const float* added;  // the offset of the first layer, b of the others
    std::ptrdiff_t added_row;
    float* base;
    std::ptrdiff_t base_row;
    const float *soft, *low;
    float* codes;
    std::ptrdiff_t codes_row;
    int atoms;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        PURSUIT_UNROLL
        for (int k = 0; k < 2 * P; k++) {
            const int column = j + k * LANES<float>, count = atoms - column;
            if (count <= 0) break;
            const Pack<float> high = load(soft + column), lowest = load(low + column);
            PURSUIT_UNROLL
            for (int r = 0; r < R; r++) {
                const Pack<float> v = tile.at[r][k] + load(added + (i + r) * added_row + column);
                if constexpr (FIRST) store(base + (i + r) * base_row + column, v);
                const Pack<float> code = shrink(v, high, lowest);
                float* to = codes + (i + r) * codes_row + column;
                if (count >= LANES<float>) {
                    store(to, code);
                } else {
                    float row[LANES<float>];
                    store(row, code);
                    for (int c = 0; c < count; c++) to[c] = row[c];
                }
            }
        }
    }
};

/// b += the product.
struct AddPositions {
    float* base;
    std::ptrdiff_t base_row;

    template <int R, int P>
    PURSUIT_INLINE void operator()(int i, int j, const Tile<float, R, P>& tile) const {
        for (int r = 0; r < R; r++) {
            for (int k = 0; k < 2 * P; k++) {
                float* to = base + (i + r) * base_row + j + k * LANES<float>;
                store(to, load(to) + tile.at[r][k]);
            }
        }
    }
};

/// The weight of a new value in a running mean, 1 / sum_{s<=t} d^(t-s), and of the mean before.
class MeanWeight {
public:
    explicit MeanWeight(double decay) : decay(decay) {}
    void restart() { total = 0; }
    void advance() {
        total = decay * total + 1;
        added = static_cast<float>(1 / total);
        kept = 1 - added;
    }
    /// The mean; numbers that are almost denormal become zero, which silence leads to.
    PURSUIT_INLINE float mean(float before, float value) const {
        const float next = kept * before + added * value;
        return std::abs(next) < 1e-30f ? 0.0f : next;
    }

private:
    double decay, total = 0;
    float added = 1, kept = 0;
};

/// The weights of a program, formatted once for all engines.
class ConvolutionLayers {
public:
    explicit ConvolutionLayers(const ConvolutionProgram& p)
        : shape(p.shape()),
          positions(p.positions()),
          channels(p.channels()),
          atoms(p.atoms()),
          depth(p.depth()),
          memory(p.memory()),
          causal(p.causal()),
          positional(p.offset.columns > 1),
          averages(p.averages.begin(), p.averages.end()),
          decays(p.decays.begin(), p.decays.end()),
          signal(p.weight.data, atoms, p.inputs(), p.weight_taps(), p.stride(), p.dilation(),
                 Sides{causal ? p.weight_taps().first - 1 : 0, 0}) {
        const float* next = p.couplings.data;
        std::vector<const float*> kernels;
        for (int k = 0; k < p.coupling_taps.rows; k++) {
            kernels.push_back(next);
            next += p.coupling_taps(k, 0) * p.coupling_taps(k, 1) * atoms * atoms;
        }
        couplings.reserve(depth - 1);
        for (int k = 0; k < depth - 1; k++) {
            const int kernel = static_cast<int>(p.coupling_of[k]);
            const Sides taps = p.taps_of(kernel), dilation = p.dilation_of(k);
            int same = 0;  // an earlier layer with the same kernel and dilation
            while (same < k && (p.coupling_of[same] != kernel || p.dilation_of(same) != dilation)) same++;
            coupling_of.push_back(same < k ? coupling_of[same] : static_cast<int>(couplings.size()));
            if (same < k) continue;
            const Sides extent{dilation.first * (taps.first - 1), dilation.second * (taps.second - 1)};
            const Sides before{causal ? extent.first : extent.first / 2, extent.second / 2};
            couplings.emplace_back(kernels[kernel], atoms, atoms, taps, Sides{1, 1}, dilation, before);
        }
        const int width = padded(atoms);
        soft.resize(static_cast<std::size_t>(depth) * width);
        low.resize(soft.size());
        for (int t = 0; t < depth; t++) {
            for (int a = 0; a < atoms; a++) {
                soft[t * width + a] = p.soft(t, a);
                low[t * width + a] = p.negative[a] != 0 ? -p.soft(t, a) : -std::numeric_limits<float>::infinity();
            }
        }
        offset.resize(static_cast<std::size_t>(p.offset.columns) * width);
        for (int i = 0; i < p.offset.columns; i++) {
            for (int a = 0; a < atoms; a++) offset[static_cast<std::size_t>(i) * width + a] = p.offset(a, i);
        }
        if (memory > 0) {
            recall.resize(static_cast<std::size_t>(atoms) * width);
            pack_panels(Operand<float>(p.recall, true), recall.data());
        }
    }

    /// The number of entries of a signal.
    std::ptrdiff_t features() const { return static_cast<std::ptrdiff_t>(channels) * shape.first * shape.second; }
    /// The number of coefficients of a code.
    std::ptrdiff_t size() const {
        return static_cast<std::ptrdiff_t>(atoms) * positions.first * positions.second;
    }

    /// The coupling that layer t takes its input by, t > 0.
    const Correlation& coupling(int t) const { return couplings[coupling_of[t - 1]]; }

    /// The most frames of codes in a block.
    int block() const {
        return causal ? std::clamp(BLOCK_POSITIONS / positions.second, 1, MOST_FRAMES) : positions.first;
    }

    static constexpr int BLOCK_POSITIONS = 96, MOST_FRAMES = 64;

    const Sides shape, positions;
    const int channels, atoms, depth, memory;
    const bool causal, positional;
    const std::vector<double> averages;
    const std::vector<float> decays;
    const Correlation signal;
    AlignedVector<float> soft, low, offset, recall;

private:
    std::vector<Correlation> couplings;
    std::vector<int> coupling_of;
};

/// The input of a correlation, (frames, positions, channels), with zeros around it.
///
/// In a causal program the frames of a block follow those of earlier blocks, of which `past` are kept
/// and which move back to the start when there is no room left for a block.
class Plane {
public:
    /// `frames` is the number of frames of a block.
    Plane(const Correlation& coupling, Sides sides, bool causal, int frames)
        : coupling(&coupling),
          causal(causal),
          past(causal ? std::max(1, coupling.before.first) : coupling.before.first),
          room(causal ? frames + std::max(past, ROOM) : frames + past),
          left(static_cast<std::ptrdiff_t>(coupling.before.second) * coupling.channels),
          side(static_cast<std::ptrdiff_t>(sides.second) * coupling.channels),
          width(side + 2 * left),
          values(static_cast<std::size_t>(past + room) * width),
          active(static_cast<std::size_t>(past) + room) {}

    /// The first entry of a frame of the block; -1 is the frame before it.
    float* frame(int f) { return values.data() + (past + at + f) * width + left; }

    /// The distance of two frames.
    std::ptrdiff_t stride() const { return width; }

    /// Where the taps of the first position of a frame of codes begin.
    const float* taps(int f) const { return values.data() + first(f) * width; }

    /// Set which of the taps along axis 0 of some frames of codes are not all zero.
    void segments(int f, int frames, std::vector<Segment>& out) const {
        out.clear();
        for (int n = 0; n < coupling->taps.first; n++) {
            bool any = false;
            for (int i = f; i < f + frames && !any; i++)
                any = active[first(i) + n * coupling->dilation.first] != 0;
            if (any) coupling->segments(n, width, out);
        }
    }

    /// Note whether a frame that was written is zero; NaN is not.
    void note(int f) {
        const float* entries = frame(f);
        bool any = false;
        for (std::ptrdiff_t i = 0; i < side && !any; i += 64) {
            const int count = static_cast<int>(std::min<std::ptrdiff_t>(64, side - i));
            int found = 0;
            PURSUIT_SIMD_REDUCE(| : found)
            for (int k = 0; k < count; k++) found |= entries[i + k] != 0;
            any = found != 0;
        }
        active[past + at + f] = any;
    }

    /// Forget the earlier frames; those of a block are written before they are read.
    void restart() {
        if (!causal) return;
        at = 0;
        std::fill_n(values.begin(), past * width, 0.0f);
        std::fill_n(active.begin(), past, 0);
    }

    /// Make room for a block.
    void begin(int frames) {
        if (!causal || at + frames <= room) return;
        std::memmove(values.data(), values.data() + at * width, sizeof(float) * past * width);
        std::memmove(active.data(), active.data() + at, past);
        at = 0;
    }

    /// The next block follows this one.
    void end(int frames) {
        if (causal) at += frames;
    }

private:
    /// The fewest frames after which the past moves.
    static constexpr int ROOM = 16;

    std::ptrdiff_t first(int f) const {
        return past + at + static_cast<std::ptrdiff_t>(f) * coupling->stride.first - coupling->before.first;
    }

    const Correlation* coupling;
    bool causal;
    int past, room, at = 0;
    std::ptrdiff_t left, side, width;
    AlignedVector<float> values;
    std::vector<unsigned char> active;  // 1 for frames that are not zero
};

/// Encodes planes, or the frames of one causal signal: the memory that this takes.
class ConvolutionEngine {
public:
    const ConvolutionLayers& layers;

    explicit ConvolutionEngine(const ConvolutionLayers& layers)
        : layers(layers),
          block(layers.block()),
          stride(padded(layers.atoms)),
          signal(layers.signal, layers.shape, layers.causal, layers.causal ? block : layers.shape.first),
          base(static_cast<std::size_t>(block) * layers.positions.second * stride),
          last(static_cast<std::size_t>(block) * layers.positions.second * layers.atoms),
          means(layers.memory > 0 ? static_cast<std::size_t>(layers.positions.second) * layers.atoms : 0),
          averages(layers.averages.begin(), layers.averages.end()),
          weights(layers.decays.begin(), layers.decays.end()) {
        for (int t = 1; t < layers.depth; t++) {
            codes.emplace_back(layers.coupling(t), layers.positions, layers.causal, block);
        }
    }

    /// Forget all earlier frames.
    void restart() {
        signal.restart();
        for (Plane& plane : codes) plane.restart();
        std::fill(means.begin(), means.end(), 0.0f);
        for (MeanWeight& weight : averages) weight.restart();
        for (MeanWeight& weight : weights) weight.restart();
    }

    /// Write the codes of whole planes (n, m).
    void encode(const Matrix<const float>& x, const Matrix<float>& out) {
        const Sides shape = layers.shape, positions = layers.positions;
        const std::ptrdiff_t channel = static_cast<std::ptrdiff_t>(shape.first) * shape.second;
        const std::ptrdiff_t atom = static_cast<std::ptrdiff_t>(positions.first) * positions.second;
        for (int row = 0; row < x.rows; row++) {
            restart();
            run({x.row(row), channel, shape.second}, shape.first, {out.row(row), atom, positions.second});
        }
    }

    /// Write the codes of the next frames of a causal signal, one of several that lie side by side:
    /// frames have the shape (count, signals, channels, S1), codes (count, signals, C, P1).
    void push(const float* frames, int count, int signal, int signals, float* out) {
        const std::ptrdiff_t width = static_cast<std::ptrdiff_t>(layers.channels) * layers.shape.second;
        const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(layers.atoms) * layers.positions.second;
        run({frames + signal * width, layers.shape.second, signals * width}, count,
            {out + signal * size, layers.positions.second, signals * size});
    }

private:
    /// Encode a plane; for a causal program `frames` frames, which follow those before.
    void run(Maps<const float> x, int frames, Maps<float> out) {
        if (!layers.causal) {
            encode_block(x, layers.shape.first, layers.positions.first, out);
            return;
        }
        for (int f = 0; f < frames; f += block) {
            const int count = std::min(block, frames - f);
            signal.begin(count);
            for (Plane& plane : codes) plane.begin(count);
            encode_block(x, count, count, out);
            signal.end(count);
            for (Plane& plane : codes) plane.end(count);
            x.data += count * x.frame;
            out.data += count * out.frame;
        }
    }

    void encode_block(const Maps<const float>& x, int inputs, int frames, const Maps<float>& out) {
        for (int f = 0; f < inputs; f++) read(x, f);
        layer<true>(0, frames);
        for (int t = 1; t < layers.depth; t++) {
            for (int f = 0; f < frames; f++) codes[t - 1].note(f);
            if (t == layers.memory) remember(codes[t - 1], frames);
            layer<false>(t, frames);
        }
        for (int f = 0; f < frames; f++) write(f, out);
    }

    /// Copy a frame of a signal, and set its running means.
    void read(const Maps<const float>& x, int f) {
        const int side = layers.shape.second, channels = layers.channels, inputs = layers.signal.channels;
        float* to = signal.frame(f);
        for (int c = 0; c < channels; c++) {
            const float* PURSUIT_RESTRICT from = x.data + c * x.channel + f * x.frame;
            for (int i = 0; i < side; i++) {
                to[static_cast<std::ptrdiff_t>(i) * inputs + c] = std::abs(from[i]) < 1e-30f ? 0.0f : from[i];
            }
        }
        int channel = 0;
        for (MeanWeight& weight : averages) {
            weight.advance();
            channel += channels;
            for (std::ptrdiff_t i = 0; i < side; i++) {
                float* entries = to + i * inputs;
                for (int c = 0; c < channels; c++) {
                    const float before = entries[channel + c - signal.stride()];
                    entries[channel + c] = weight.mean(before, entries[c]);
                }
            }
        }
        signal.note(f);
    }

    /// b += R times the running mean of the codes.
    void remember(Plane& plane, int frames) {
        const int atoms = layers.atoms, positions = layers.positions.second;
        for (int f = 0; f < frames; f++) {
            for (MeanWeight& weight : weights) weight.advance();
            const float* z = plane.frame(f);
            for (int i = 0; i < positions; i++) {
                float* PURSUIT_RESTRICT mean = means.data() + static_cast<std::ptrdiff_t>(i) * atoms;
                for (int a = 0; a < atoms; a++) mean[a] = weights[a].mean(mean[a], z[a]);
                z += atoms;
            }
            const AddPositions finish{base_of(f), stride};
            for_tiles(positions, atoms, atoms, means.data(), atoms, false, layers.recall.data(), finish);
        }
    }

    /// All positions of some frames: along axis 1, or along axis 0 where that has few positions.
    template <bool FIRST>
    void layer(int t, int frames) {
        const Correlation& coupling = FIRST ? layers.signal : layers.coupling(t);
        const Plane& from = FIRST ? signal : codes[t - 1];
        const int atoms = layers.atoms, positions = layers.positions.second;
        const bool ends = t == layers.depth - 1;
        const std::ptrdiff_t frame_of_base = static_cast<std::ptrdiff_t>(positions) * stride;
        const std::ptrdiff_t frame_of_codes =
            ends ? static_cast<std::ptrdiff_t>(positions) * atoms : codes[t].stride();
        float* to = ends ? last.data() : codes[t].frame(0);
        const std::ptrdiff_t across = static_cast<std::ptrdiff_t>(coupling.stride.second) * coupling.channels;
        const std::ptrdiff_t offset = layers.positional ? stride : 0;
        const std::size_t thresholds = static_cast<std::size_t>(t) * stride;
        FinishPositions<FIRST> finish{};
        finish.soft = layers.soft.data() + thresholds;
        finish.low = layers.low.data() + thresholds;
        finish.atoms = atoms;
        if (positions >= TILE_ROWS || frames == 1) {
            finish.added_row = FIRST ? offset : stride;
            finish.base_row = stride;
            finish.codes_row = atoms;
            for (int f = 0; f < frames; f++) {
                finish.base = base_of(f);
                finish.added = FIRST ? layers.offset.data() : finish.base;
                finish.codes = to + f * frame_of_codes;
                from.segments(f, 1, segments);
                coupling.product(positions, from.taps(f), across, segments, finish);
            }
            return;
        }
        from.segments(0, frames, segments);
        finish.added_row = FIRST ? 0 : frame_of_base;
        finish.base_row = frame_of_base;
        finish.codes_row = frame_of_codes;
        for (std::ptrdiff_t i = 0; i < positions; i++) {
            finish.base = base.data() + i * stride;
            finish.added = FIRST ? layers.offset.data() + i * offset : finish.base;
            finish.codes = to + i * atoms;
            coupling.product(frames, from.taps(0) + i * across, coupling.stride.first * from.stride(), segments,
                             finish);
        }
    }

    /// Write the codes of a frame of the last layer, position by position for each atom.
    void write(int f, const Maps<float>& out) const {
        const int atoms = layers.atoms, positions = layers.positions.second;
        const float* from = last.data() + static_cast<std::ptrdiff_t>(f) * positions * atoms;
        for (int a = 0; a < atoms; a++) {
            float* PURSUIT_RESTRICT to = out.data + a * out.channel + f * out.frame;
            for (int i = 0; i < positions; i++) to[i] = from[static_cast<std::ptrdiff_t>(i) * atoms + a];
        }
    }

    float* base_of(int f) {
        return base.data() + static_cast<std::ptrdiff_t>(f) * layers.positions.second * stride;
    }

    const int block, stride;
    Plane signal;
    std::vector<Plane> codes;
    AlignedVector<float> base;   // b, (frames, positions, stride)
    AlignedVector<float> last;   // the codes of the last layer, (frames, positions, atoms)
    AlignedVector<float> means;  // the running mean of the codes, (positions, atoms)
    std::vector<MeanWeight> averages, weights;
    std::vector<Segment> segments;
};

}  // namespace pursuit::runtime
