#include "pursuit/dictionary_sweep.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

namespace pursuit::bindings {

namespace {

template <class T>
void dictionary_sweep(Array2<T> atoms, Array2<const T> a, Array2<const T> b, Array1<const T> ridge,
                      Array1<const bool> ball, Array1<const bool> nonnegative, double smallest,
                      std::int64_t sweeps) {
    const auto dictionary = matrix(atoms);
    const int q = dictionary.rows, m = dictionary.columns;
    const DictionaryStatistics<T> statistics{
        matrix(a, q, q, "A of shape (q, q)"),
        matrix(b, q, m, "B of shape (q, m)"),
        vector(ridge, q, "ridge of shape (q,)"),
        vector(ball, q, "ball of shape (q,)"),
        vector(nonnegative, q, "nonnegative of shape (q,)"),
        smallest,
    };
    nb::gil_scoped_release release;
    DictionarySweep<T>(statistics, dictionary).run(sweeps);
}

template <class T>
void define(nb::module_& module) {
    module.def("dictionary_sweep", &dictionary_sweep<T>, given("atoms"), given("A"), given("B"), given("ridge"),
               given("ball"), given("nonnegative"), nb::arg("smallest"), nb::arg("sweeps"),
               "Update every atom in turn from the statistics A and B, in place.");
}

}  // namespace

void bind_dictionary_sweep(nb::module_& module) {
    define<float>(module);
    define<double>(module);
}

}  // namespace pursuit::bindings
