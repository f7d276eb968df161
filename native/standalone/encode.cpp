// Trained encoders from C and from WebAssembly, without Python: a program in one buffer, signals in,
// codes out. `pursuit.runtime.flat` writes the buffer.
//
//     magic "PURSUIT1", int64 executor (0 dense, 1 sparse, 2 convolution), then the arrays in the order
//     of `Arrays` or `ConvolutionProgram`: int64 type (0 none, 1 float32, 2 int64, 3 float64), int64
//     dimensions, 3 int64 sizes, and the numbers, filled up to a multiple of 8 bytes.
#include <climits>
#include <cstring>
#include <memory>
#include <type_traits>

#include "pursuit/runtime/assemble.hpp"
#include "pursuit/runtime/convolution.hpp"
#include "pursuit/runtime/dense.hpp"
#include "pursuit/runtime/sparse.hpp"

#if defined(_WIN32)
#define PURSUIT_EXPORT extern "C" __declspec(dllexport)
#else
#define PURSUIT_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

using namespace pursuit;
using namespace pursuit::runtime;

/// Reads arrays one after another; `ok` becomes false at the first that does not fit.
class Reader {
public:
    Reader(const unsigned char* data, std::size_t size) : data(data), size(size) {}

    bool ok = true;

    std::int64_t number() {
        std::int64_t value = 0;
        if (ok && (ok = size - at >= sizeof value)) {
            std::memcpy(&value, data + at, sizeof value);
            at += sizeof value;
        }
        return value;
    }

    /// The numbers of an array with `dimensions` sizes, which are written to `sizes`; null if it is missing.
    template <class T>
    const T* array(int type, int dimensions, int* sizes) {
        const std::int64_t found = number(), count = number();
        std::int64_t total = 1;
        for (int k = 0; k < 3; k++) {
            const std::int64_t length = number();
            ok = ok && length >= 0 && length <= INT_MAX;
            if (!ok) return nullptr;
            if (k < dimensions) sizes[k] = static_cast<int>(length);
            if (k >= dimensions) continue;
            ok = length == 0 || total <= static_cast<std::int64_t>(size) / length;
            if (!ok) return nullptr;
            total *= length;
        }
        if (found == 0) {
            for (int k = 0; k < dimensions; k++) sizes[k] = 0;
            return nullptr;
        }
        const std::size_t bytes = (static_cast<std::size_t>(total) * sizeof(T) + 7) / 8 * 8;
        ok = found == type && count == dimensions && size - at >= bytes;
        if (!ok) return nullptr;
        const T* result = reinterpret_cast<const T*>(data + at);
        at += bytes;
        return result;
    }

    Cube cube() {
        int sizes[3] = {};
        const float* numbers = array<float>(1, 3, sizes);
        return {numbers, sizes[0], sizes[1], sizes[2]};
    }
    template <class T>
    Matrix<const T> matrix() {
        int sizes[2] = {};
        const T* numbers = array<T>(TYPE<T>, 2, sizes);
        return {numbers, sizes[0], sizes[1]};
    }
    template <class T>
    Vector<const T> vector() {
        int sizes[1] = {};
        const T* numbers = array<T>(TYPE<T>, 1, sizes);
        return {numbers, sizes[0]};
    }

private:
    template <class T>
    static constexpr int TYPE = sizeof(T) == 4          ? 1
                                : std::is_integral_v<T> ? 2
                                                        : 3;

    const unsigned char* data;
    const std::size_t size;
    std::size_t at = 0;
};

Arrays read_arrays(Reader& read) {
    Arrays a;
    a.weights = read.cube();
    a.weight_of = read.vector<std::int64_t>();
    a.grams = read.cube();
    a.gram_of = read.vector<std::int64_t>();
    a.atoms = read.cube();
    a.atoms_of = read.vector<std::int64_t>();
    a.steps = read.cube();
    a.step_of = read.vector<std::int64_t>();
    a.mix = read.matrix<float>();
    a.soft = read.matrix<float>();
    a.negative = read.vector<float>();
    a.decay = read.vector<float>();
    a.units = read.vector<float>();
    a.runs = read.matrix<std::int64_t>();
    a.thresholds = read.cube();
    a.widths = read.vector<std::int64_t>();
    a.blocks = read.vector<std::int64_t>();
    a.constants = read.vector<float>();
    return a;
}

ConvolutionProgram read_convolution(Reader& read) {
    ConvolutionProgram p;
    p.form = read.vector<std::int64_t>();
    p.averages = read.vector<double>();
    p.weight = read.cube();
    p.taps = read.vector<std::int64_t>();
    p.offset = read.matrix<float>();
    p.couplings = read.vector<float>();
    p.coupling_taps = read.matrix<std::int64_t>();
    p.coupling_of = read.vector<std::int64_t>();
    p.coupling_dilations = read.matrix<std::int64_t>();
    p.soft = read.matrix<float>();
    p.negative = read.vector<float>();
    p.recall = read.matrix<float>();
    p.decays = read.vector<float>();
    return p;
}

}  // namespace

/// A loaded encoder.
struct pursuit_encoder {
    std::unique_ptr<Dense> dense;
    std::unique_ptr<Sparse> sparse;
    std::unique_ptr<ConvolutionLayers> layers;
    std::unique_ptr<ConvolutionEngine> engine;
    int features = 0, size = 0;
    std::vector<float> scratch;
    std::vector<std::int64_t> changes;
};

namespace {

/// Make what runs the layers of a program; return whether the arrays fit.
bool make_layers(const Arrays& arrays, std::int64_t kind, pursuit_encoder& encoder) {
    Program program;
    std::vector<Run> runs;
    if (assemble(arrays, program, runs) != nullptr) return false;
    encoder.features = program.features;
    encoder.size = program.size;
    if (kind == 0 && dense_misfit(program) == nullptr) {
        encoder.dense = std::make_unique<Dense>(program);
        return true;
    }
    if (kind == 1 && sparse_misfit(program) == nullptr) {
        encoder.sparse = std::make_unique<Sparse>(program);
        encoder.changes.resize(static_cast<std::size_t>(program.depth));
        return true;
    }
    return false;
}

bool make_convolution(const ConvolutionProgram& program, pursuit_encoder& encoder) {
    if (convolution_misfit(program) != nullptr) return false;
    auto layers = std::make_unique<ConvolutionLayers>(program);
    if (layers->features() > INT_MAX || layers->size() > INT_MAX) return false;
    encoder.features = static_cast<int>(layers->features());
    encoder.size = static_cast<int>(layers->size());
    encoder.layers = std::move(layers);
    return true;
}

/// The engine of a convolutional encoder, which is made at the first call.
ConvolutionEngine& engine_of(pursuit_encoder& encoder) {
    if (!encoder.engine) {
        encoder.engine = std::make_unique<ConvolutionEngine>(*encoder.layers);
        encoder.engine->restart();
    }
    return *encoder.engine;
}

bool is_finite(const float* values, std::ptrdiff_t count) {
    return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

}  // namespace

/// Load an encoder from a buffer, aligned to 8 bytes, which may be freed afterwards; null if it is not valid.
PURSUIT_EXPORT pursuit_encoder* pursuit_load(const void* buffer, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(buffer);
    if (size < 16 || std::memcmp(bytes, "PURSUIT1", 8) != 0) return nullptr;
    Reader read(bytes + 8, size - 8);
    const std::int64_t kind = read.number();
    auto encoder = std::make_unique<pursuit_encoder>();
    bool made;
    if (kind == 2) {
        const ConvolutionProgram program = read_convolution(read);
        made = read.ok && make_convolution(program, *encoder);
    } else {
        const Arrays arrays = read_arrays(read);
        made = read.ok && make_layers(arrays, kind, *encoder);
    }
    return made ? encoder.release() : nullptr;
}

/// m, the number of features of a signal.
PURSUIT_EXPORT int pursuit_features(const pursuit_encoder* encoder) {
    return encoder->features;
}

/// q, the number of coefficients of a code.
PURSUIT_EXPORT int pursuit_size(const pursuit_encoder* encoder) {
    return encoder->size;
}

/// Write the codes (rows, q) of signals x (rows, m), float32; return 1, or 0 if a signal is not finite.
///
/// One encoder serves one thread at a time. Memory is allocated where there are more rows than before.
PURSUIT_EXPORT int pursuit_encode(pursuit_encoder* encoder, const float* x, int rows, float* codes) {
    constexpr float tiny = 1e-30f;
    if (rows < 1) return 1;
    const Matrix<const float> signals(x, rows, encoder->features);
    const Matrix<float> out(codes, rows, encoder->size);
    if (encoder->layers) {
        if (!is_finite(x, static_cast<std::ptrdiff_t>(rows) * encoder->features)) return 0;
        engine_of(*encoder).encode(signals, out);
        encoder->engine->restart();
        return 1;
    }
    const std::size_t needed = encoder->dense ? encoder->dense->scratch(rows) : encoder->sparse->scratch(rows);
    if (encoder->scratch.size() < needed) encoder->scratch.resize(needed);
    float* memory = encoder->scratch.data();
    if (encoder->dense) return encoder->dense->encode(signals, tiny, out, memory);
    return encoder->sparse->encode(signals, tiny, out, memory, encoder->changes.data());
}

/// The numbers of a frame of a causal convolutional encoder, 0 for other encoders.
PURSUIT_EXPORT int pursuit_frame_features(const pursuit_encoder* encoder) {
    return encoder->layers && encoder->layers->causal ? encoder->layers->channels * encoder->layers->shape.second
                                                      : 0;
}

/// The coefficients of a frame's code of a causal convolutional encoder, 0 for other encoders.
PURSUIT_EXPORT int pursuit_frame_size(const pursuit_encoder* encoder) {
    return encoder->layers && encoder->layers->causal ? encoder->layers->atoms * encoder->layers->positions.second
                                                      : 0;
}

/// Write the codes of the next frames of a stream, as `pursuit_encode` does; `pursuit_encode` ends the stream.
PURSUIT_EXPORT int pursuit_push(pursuit_encoder* encoder, const float* frames, int count, float* codes) {
    const int features = pursuit_frame_features(encoder);
    if (features == 0) return 0;
    if (count < 1) return 1;
    if (!is_finite(frames, static_cast<std::ptrdiff_t>(count) * features)) return 0;
    engine_of(*encoder).push(frames, count, 0, 1, codes);
    return 1;
}

/// Begin another stream.
PURSUIT_EXPORT void pursuit_restart(pursuit_encoder* encoder) {
    if (encoder->engine) encoder->engine->restart();
}

/// Free an encoder.
PURSUIT_EXPORT void pursuit_free(pursuit_encoder* encoder) {
    delete encoder;
}
