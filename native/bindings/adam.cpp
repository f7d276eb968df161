#include "pursuit/adam.hpp"

#include <nanobind/stl/vector.h>

#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"

namespace pursuit::bindings {

namespace {

template <class T>
using Arrays = std::vector<Array1<T>>;

template <class T>
double adam_step(const Arrays<T>& values, const Arrays<const T>& gradients, const Arrays<T>& means,
                 const Arrays<T>& squares, const std::vector<double>& rates, const std::vector<double>& counts,
                 double decay, double largest) {
    const std::size_t number = values.size();
    require(gradients.size() == number && means.size() == number && squares.size() == number &&
                rates.size() == number && counts.size() == number,
            "as many gradients, moments, rates and counts as parameters");
    require(decay >= 0 && decay < 1, "a decay of at least 0 and below 1");
    std::vector<AdamParameter<T>> parameters;
    for (std::size_t k = 0; k < number; k++) {
        const int size = as_int(values[k].shape(0));
        parameters.push_back({{values[k].data(), size},
                              vector(gradients[k], size, "a gradient like the parameter"),
                              vector(means[k], size, "moments like the parameter"),
                              vector(squares[k], size, "moments like the parameter"),
                              rates[k],
                              counts[k]});
    }
    nb::gil_scoped_release release;
    double total = 0;
    for (const auto& parameter : parameters) total += squared_norm(parameter.gradient);
    const double norm = std::sqrt(total);
    if (!std::isfinite(norm)) return norm;
    const T scale = static_cast<T>(norm > largest ? largest / (norm + 1e-6) : 1.0);
    for (const auto& parameter : parameters) adam(parameter, scale, decay);
    return norm;
}

template <class T>
void define(nb::module_& module) {
    module.def("adam", &adam_step<T>, given("values"), given("gradients"), given("means"), given("squares"),
               nb::arg("rates"), nb::arg("counts"), nb::arg("decay"), nb::arg("largest"),
               "A step of Adam with a gradient of at most the given norm, in place. Returns the norm; "
               "nothing changes unless it is finite.");
}

}  // namespace

void bind_adam(nb::module_& module) {
    define<float>(module);
    define<double>(module);
}

}  // namespace pursuit::bindings
