// Programs and executors. A program keeps the arrays that an executor is made from.
#include <optional>

#include <nanobind/stl/optional.h>

#include "pursuit/runtime/assemble.hpp"
#include "pursuit/runtime/dense.hpp"
#include "pursuit/runtime/sparse.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

namespace pursuit::bindings {

namespace {

using namespace pursuit::runtime;
using Matrices = Array3<const float>;
using Numbers = Array1<const std::int64_t>;

struct Given {
    Program view;
    std::vector<Run> runs;
    std::vector<nb::object> arrays;  // kept while the view is used
};

Cube cube(const std::optional<Matrices>& array) {
    if (!array) return {};
    require_aligned(array->data());
    return {array->data(), as_int(array->shape(0)), as_int(array->shape(1)), as_int(array->shape(2))};
}

template <class T>
Vector<const T> vector(const std::optional<Array1<const T>>& array) {
    if (!array) return {};
    require_aligned(array->data());
    return {array->data(), as_int(array->shape(0))};
}

void fit(const char* misfit) {
    require(misfit == nullptr, misfit);
}

void make(Given* self, Matrices weights, Numbers weight_of, std::optional<Matrices> grams,
          std::optional<Numbers> gram_of, std::optional<Matrices> atoms, std::optional<Numbers> atoms_of,
          std::optional<Matrices> steps, std::optional<Numbers> step_of, Array2<const float> mix,
          Array2<const float> soft, Array1<const float> negative, Array1<const float> decay,
          Array1<const float> units, Array2<const std::int64_t> runs, Matrices thresholds, Numbers widths,
          Numbers blocks, Array1<const float> constants) {
    const auto floats = [](const Array1<const float>& array) { return vector(std::optional(array)); };
    const auto numbers = [](const Numbers& array) { return vector(std::optional(array)); };
    const Arrays arrays{
        cube(weights), numbers(weight_of), cube(grams),      vector(gram_of), cube(atoms),      vector(atoms_of),
        cube(steps),   vector(step_of),    matrix(mix),      matrix(soft),    floats(negative), floats(decay),
        floats(units), matrix(runs),       cube(thresholds), numbers(widths), numbers(blocks),  floats(constants),
    };
    Given given;
    fit(assemble(arrays, given.view, given.runs));
    for (const auto& array : {weights, thresholds}) given.arrays.push_back(nb::cast(array));
    for (const auto& array : {grams, atoms, steps}) given.arrays.push_back(nb::cast(array));
    for (const auto& array : {gram_of, atoms_of, step_of}) given.arrays.push_back(nb::cast(array));
    for (const auto& array : {weight_of, widths, blocks}) given.arrays.push_back(nb::cast(array));
    for (const auto& array : {mix, soft}) given.arrays.push_back(nb::cast(array));
    for (const auto& array : {negative, decay, units, constants}) given.arrays.push_back(nb::cast(array));
    new (self) Given(std::move(given));
}

/// The arrays of a call, checked.
template <class Executor, class X>
struct Call {
    Matrix<const X> x;
    Matrix<float> codes;
    float* memory;

    Call(const Executor& executor, const Array2<const X>& x, const Array2<float>& codes,
         const Array1<float>& scratch)
        : x(matrix(x)), codes(matrix(codes)), memory(scratch.data()) {
        require(this->x.columns == executor.features(), "x of shape (n, m)");
        require(this->codes.rows == this->x.rows && this->codes.columns == executor.size(),
                "codes of shape (n, q)");
        require(scratch.shape(0) >= executor.scratch(this->x.rows), "scratch of the size that `scratch` returns");
    }
};

template <class X>
bool encode_dense(const Dense& executor, Array2<const X> x, double tiny, Array2<float> codes,
                  Array1<float> scratch) {
    const Call<Dense, X> call(executor, x, codes, scratch);
    nb::gil_scoped_release release;
    return executor.encode(call.x, static_cast<float>(tiny), call.codes, call.memory);
}

template <class X>
bool encode_sparse(const Sparse& executor, Array2<const X> x, double tiny, Array2<float> codes,
                   Array1<float> scratch, Array1<std::int64_t> changes) {
    const Call<Sparse, X> call(executor, x, codes, scratch);
    const Vector<std::int64_t> counts = bindings::vector(changes, executor.depth(), "changes of shape (T,)");
    nb::gil_scoped_release release;
    return executor.encode(call.x, static_cast<float>(tiny), call.codes, call.memory, counts.data);
}

template <class X, class Class>
void define(Class& dense, nb::class_<Sparse>& sparse) {
    const char* text = "Encode rows; return False if a signal is not finite.";
    dense.def("encode", &encode_dense<X>, given("x"), nb::arg("tiny"), given("codes"), given("scratch"), text);
    sparse.def("encode", &encode_sparse<X>, given("x"), nb::arg("tiny"), given("codes"), given("scratch"),
               given("changes"), text);
}

}  // namespace

void bind_runtime(nb::module_& module) {
    nb::class_<Given>(module, "Program", "The arrays of an encoder.")
        .def("__init__", &make, given("weights"), given("weight_of"), given("grams").none(),
             given("gram_of").none(), given("atoms").none(), given("atoms_of").none(), given("steps").none(),
             given("step_of").none(), given("mix"), given("soft"), given("negative"), given("decay"),
             given("units"), given("runs"), given("thresholds"), given("widths"), given("blocks"),
             given("constants"));
    auto dense =
        nb::class_<Dense>(module, "Dense", "Layers that replace the whole code, for blocks of rows.")
            .def(
                "__init__",
                [](Dense* self, const Given& program) {
                    fit(dense_misfit(program.view));
                    new (self) Dense(program.view);
                },
                nb::arg("program"))
            .def("scratch", &Dense::scratch, nb::arg("rows"), "The floats of scratch memory for some rows.");
    auto sparse =
        nb::class_<Sparse>(module, "Sparse", "Layers one signal at a time, by the coefficients that change.")
            .def(
                "__init__",
                [](Sparse* self, const Given& program) {
                    fit(sparse_misfit(program.view));
                    new (self) Sparse(program.view);
                },
                nb::arg("program"))
            .def("scratch", &Sparse::scratch, nb::arg("rows"), "The floats of scratch memory for some rows.");
    define<float>(dense, sparse);
    define<double>(dense, sparse);
}

}  // namespace pursuit::bindings
