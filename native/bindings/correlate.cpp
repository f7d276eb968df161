#include "pursuit/correlate.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

namespace pursuit::bindings {

namespace {

template <class T>
void correlate(Array2<const T> x, Array2<const T> atoms, Array2<T> out) {
    const auto signals = matrix(x);
    const auto dictionary = matrix(atoms);
    require(signals.columns == dictionary.columns, "x of shape (n, m) and atoms of shape (q, m)");
    const auto product = matrix(out, signals.rows, dictionary.rows, "out of shape (n, q)");
    nb::gil_scoped_release release;
    pursuit::correlate(signals, dictionary, product);
}

template <class T>
void define(nb::module_& module) {
    module.def("correlate", &correlate<T>, given("x"), given("atoms"), given("out"),
               "out = x atoms', on the calling thread.");
}

}  // namespace

void bind_correlate(nb::module_& module) {
    define<float>(module);
    define<double>(module);
}

}  // namespace pursuit::bindings
