// The layers of convolutional programs, and what encodes planes and streams by them.
#include <mutex>
#include <optional>

#include <nanobind/stl/optional.h>

#include "pursuit/runtime/convolution.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

namespace pursuit::bindings {

namespace {

using namespace pursuit::runtime;

template <class T>
Vector<const T> numbers(const Array1<const T>& array) {
    require_aligned(array.data());
    return {array.data(), as_int(array.shape(0))};
}

void make_layers(ConvolutionLayers* self, Array1<const std::int64_t> form, Array1<const double> averages,
                 Array3<const float> weight, Array1<const std::int64_t> taps, Array2<const float> offset,
                 Array1<const float> couplings, Array2<const std::int64_t> coupling_taps,
                 Array1<const std::int64_t> coupling_of, Array2<const std::int64_t> coupling_dilations,
                 Array2<const float> soft, Array1<const float> negative,
                 std::optional<Array2<const float>> recall, std::optional<Array1<const float>> decays) {
    require_aligned(weight.data());
    ConvolutionProgram program;
    program.form = numbers(form);
    program.averages = numbers(averages);
    program.weight = {weight.data(), as_int(weight.shape(0)), as_int(weight.shape(1)), as_int(weight.shape(2))};
    program.taps = numbers(taps);
    program.offset = matrix(offset);
    program.couplings = numbers(couplings);
    program.coupling_taps = matrix(coupling_taps);
    program.coupling_of = numbers(coupling_of);
    program.coupling_dilations = matrix(coupling_dilations);
    program.soft = matrix(soft);
    program.negative = numbers(negative);
    if (recall) program.recall = matrix(*recall);
    if (decays) program.decays = numbers(*decays);
    const char* misfit = convolution_misfit(program);
    require(misfit == nullptr, misfit);
    new (self) ConvolutionLayers(program);
}

/// An engine keeps what its calls change, so only one thread at a time may use it.
struct Engine {
    ConvolutionEngine engine;
    std::mutex mutex;

    explicit Engine(const ConvolutionLayers& layers) : engine(layers) {}
};

void encode(Engine& self, Array2<const float> x, Array2<float> codes) {
    const ConvolutionLayers& layers = self.engine.layers;
    const Matrix<const float> planes = matrix(x);
    const Matrix<float> out = matrix(codes);
    require(planes.columns == layers.features(), "x of shape (n, m)");
    require(out.rows == planes.rows && out.columns == layers.size(), "codes of shape (n, q)");
    nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(self.mutex);
    self.engine.encode(planes, out);
}

void push(Engine& self, Array3<const float> frames, Array3<float> codes, int signal) {
    const ConvolutionLayers& layers = self.engine.layers;
    require(layers.causal, "a causal program");
    const int count = as_int(frames.shape(0)), signals = as_int(frames.shape(1));
    require_aligned(frames.data());
    require_aligned(codes.data());
    require(signal >= 0 && signal < signals, "the number of a signal");
    require(frames.shape(2) == static_cast<std::size_t>(layers.channels) * layers.shape.second,
            "frames of shape (n, signals, channels S1)");
    require(as_int(codes.shape(0)) == count && as_int(codes.shape(1)) == signals &&
                codes.shape(2) == static_cast<std::size_t>(layers.atoms) * layers.positions.second,
            "codes of shape (n, signals, C P1)");
    nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(self.mutex);
    self.engine.push(frames.data(), count, signal, signals, codes.data());
}

}  // namespace

void bind_convolution(nb::module_& module) {
    nb::class_<ConvolutionLayers>(module, "ConvolutionLayers", "The weights of a convolutional encoder.")
        .def("__init__", &make_layers, given("form"), given("averages"), given("weight"), given("taps"),
             given("offset"), given("couplings"), given("coupling_taps"), given("coupling_of"),
             given("coupling_dilations"), given("soft"), given("negative"), given("recall").none(),
             given("decays").none());
    nb::class_<Engine>(module, "ConvolutionEngine", "Encodes planes, or the frames of one signal.")
        .def(nb::init<const ConvolutionLayers&>(), nb::arg("layers"), nb::keep_alive<1, 2>())
        .def("encode", &encode, given("x"), given("codes"), "Write the codes of whole planes.")
        .def("push", &push, given("frames"), given("codes"), nb::arg("signal"),
             "Write the codes of the next frames of one of the signals that lie side by side.");
}

}  // namespace pursuit::bindings
