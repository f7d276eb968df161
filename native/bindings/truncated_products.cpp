#include "pursuit/truncated_products.hpp"

#include <nanobind/stl/pair.h>

#include "arrays.hpp"
#include "bindings.hpp"

namespace pursuit::bindings {

namespace {

template <class T>
std::pair<double, double> truncated_products(Array2<const T> x, Array2<const T> left, Array2<const T> right,
                                             Array2<const T> vectors, Array2<const T> basis, double lower,
                                             double upper, Array1<const T> by_row, Array1<const T> by_column,
                                             Array2<T> along_rows, Array2<T> along_columns) {
    const auto data = matrix(x);
    const auto factor = matrix(right);
    const int n = data.rows, m = data.columns, p = as_int(vectors.shape(0)), s = as_int(basis.shape(1));
    const bool rejects = by_row.shape(0) > 0 || by_column.shape(0) > 0;
    require(factor.columns == m, "right of shape (k, m)");
    const TruncatedResiduals<T> residuals{
        data,
        matrix(left, n, factor.rows, "left of shape (n, k)"),
        factor,
        lower,
        upper,
        rejects,
        vector(by_row, rejects ? n : 0, "by_row of shape (n,), or no limits"),
        vector(by_column, rejects ? m : 0, "by_column of shape (m,), or no limits"),
    };
    const TruncatedFactors<T> factors{
        matrix(vectors, p, m, "vectors of shape (p, m)"),
        matrix(basis, n, s, "basis of shape (n, s)"),
        matrix(along_rows, n, p, "along_rows of shape (n, p)"),
        matrix(along_columns, s, m, "along_columns of shape (s, m)"),
    };
    nb::gil_scoped_release release;
    return TruncatedProducts<T>(residuals, factors).run();
}

template <class T>
void define(nb::module_& module) {
    module.def("truncated_products", &truncated_products<T>, given("x"), given("left"), given("right"),
               given("vectors"), given("basis"), nb::arg("lower"), nb::arg("upper"), given("by_row"),
               given("by_column"), given("along_rows"), given("along_columns"),
               "Add T V' to along_rows and U' T to along_columns, T the truncated residuals of x - left right; "
               "return ||T||_F^2 and the sum of what was clipped.");
}

}  // namespace

void bind_truncated_products(nb::module_& module) {
    define<float>(module);
    define<double>(module);
}

}  // namespace pursuit::bindings
