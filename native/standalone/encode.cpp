// Trained encoders from C and from WebAssembly, without Python: a program in one buffer, signals in,
// codes out. `pursuit.runtime.flat` writes the buffer.
//
//     magic "PURSUIT1", int64 executor (0 dense, 1 sparse), then 18 arrays in the order of `Arrays`:
//     int64 type (0 none, 1 float32, 2 int64), int64 dimensions, 3 int64 sizes, and the numbers,
//     filled up to a multiple of 8 bytes.
#include <climits>
#include <cstring>
#include <memory>

#include "pursuit/runtime/assemble.hpp"
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
    static constexpr int TYPE = sizeof(T) == 4 ? 1 : 2;

    const unsigned char* data;
    const std::size_t size;
    std::size_t at = 0;
};

}  // namespace

/// A loaded encoder.
struct pursuit_encoder {
    std::unique_ptr<Dense> dense;
    std::unique_ptr<Sparse> sparse;
    std::vector<float> scratch;
    std::vector<std::int64_t> changes;
};

/// Load an encoder from a buffer, aligned to 8 bytes, which may be freed afterwards; null if it is not valid.
PURSUIT_EXPORT pursuit_encoder* pursuit_load(const void* buffer, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(buffer);
    if (size < 16 || std::memcmp(bytes, "PURSUIT1", 8) != 0) return nullptr;
    Reader read(bytes + 8, size - 8);
    const std::int64_t kind = read.number();
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
    Program program;
    std::vector<Run> runs;
    if (!read.ok || assemble(a, program, runs) != nullptr) return nullptr;
    auto encoder = std::make_unique<pursuit_encoder>();
    if (kind == 0 && dense_misfit(program) == nullptr) {
        encoder->dense = std::make_unique<Dense>(program);
    } else if (kind == 1 && sparse_misfit(program) == nullptr) {
        encoder->sparse = std::make_unique<Sparse>(program);
        encoder->changes.resize(static_cast<std::size_t>(program.depth));
    } else {
        return nullptr;
    }
    return encoder.release();
}

/// m, the number of features of a signal.
PURSUIT_EXPORT int pursuit_features(const pursuit_encoder* encoder) {
    return encoder->dense ? encoder->dense->features() : encoder->sparse->features();
}

/// q, the number of coefficients of a code.
PURSUIT_EXPORT int pursuit_size(const pursuit_encoder* encoder) {
    return encoder->dense ? encoder->dense->size() : encoder->sparse->size();
}

/// Write the codes (rows, q) of signals x (rows, m), float32; return 1, or 0 if a signal is not finite.
///
/// One encoder serves one thread at a time. Memory is allocated where there are more rows than before.
PURSUIT_EXPORT int pursuit_encode(pursuit_encoder* encoder, const float* x, int rows, float* codes) {
    constexpr float tiny = 1e-30f;
    if (rows < 1) return 1;
    const Matrix<const float> signals(x, rows, pursuit_features(encoder));
    const Matrix<float> out(codes, rows, pursuit_size(encoder));
    const std::size_t needed = encoder->dense ? encoder->dense->scratch(rows) : encoder->sparse->scratch(rows);
    if (encoder->scratch.size() < needed) encoder->scratch.resize(needed);
    float* memory = encoder->scratch.data();
    if (encoder->dense) return encoder->dense->encode(signals, tiny, out, memory);
    return encoder->sparse->encode(signals, tiny, out, memory, encoder->changes.data());
}

/// Free an encoder.
PURSUIT_EXPORT void pursuit_free(pursuit_encoder* encoder) {
    delete encoder;
}
