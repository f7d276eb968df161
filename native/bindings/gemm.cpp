#include "pursuit/gemm.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

namespace pursuit::bindings {

namespace {

/// A matrix whose rows may lie apart, with adjacent columns.
template <class T>
using Rows = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;

template <class T>
Matrix<T> strided(const Rows<T>& array) {
    require(array.size() == 0 || array.shape(1) == 1 || array.stride(1) == 1, "rows of adjacent numbers");
    return {array.data(), as_int(array.shape(0)), as_int(array.shape(1)), array.stride(0)};
}

template <class T>
void product(Rows<const T> a, Rows<const T> b, Rows<T> c, double alpha, double beta, bool transpose_a,
             bool transpose_b) {
    const Operand<T> left(strided(a), transpose_a), right(strided(b), transpose_b);
    const Matrix<T> out = strided(c);
    require(left.columns == right.rows, "a and b whose inner sizes are equal");
    require(out.rows == left.rows && out.columns == right.columns, "c of the shape of the product");
    nb::gil_scoped_release release;
    GemmScratch<T> scratch;
    gemm(static_cast<T>(alpha), left, right, static_cast<T>(beta), out, scratch);
}

template <class T>
void define(nb::module_& module) {
    module.def("gemm", &product<T>, given("a"), given("b"), given("c"), nb::arg("alpha") = 1.0,
               nb::arg("beta") = 0.0, nb::arg("transpose_a") = false, nb::arg("transpose_b") = false,
               "c = alpha a b + beta c, in place; a and b can be transposed.");
}

}  // namespace

void bind_gemm(nb::module_& module) {
    define<float>(module);
    define<double>(module);
}

}  // namespace pursuit::bindings
