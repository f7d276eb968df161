#include "pursuit/lasso.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

namespace pursuit::bindings {

namespace {

template <class S, class X>
void active_set(Array2<const X> x, Array2<const S> c, Array2<const S> gram, Array2<const double> exact_gram,
                Array2<const X> atoms, Array1<const double> lam, Array1<const double> ridge, bool nonnegative,
                double tol, std::int64_t max_iter, double rounding, bool warm, Array2<X> codes,
                Array1<double> objective, Array1<double> gap, Array1<std::int64_t> iterations) {
    const auto signals = matrix(x);
    const auto dictionary = matrix(atoms);
    const int n = signals.rows, m = dictionary.columns, q = dictionary.rows;
    require(signals.columns == m, "x of shape (n, m)");
    const LassoProblem<S, X> problem{
        matrix(gram, q, q, "gram of shape (q, q)"),
        matrix(exact_gram, q, q, "exact_gram of shape (q, q)"),
        dictionary,
        vector(lam, q, "lam of shape (q,)"),
        vector(ridge, q, "ridge of shape (q,)"),
        nonnegative,
        tol,
        max_iter,
        rounding,
    };
    const LassoRows<S, X> rows{
        signals,
        matrix(c, n, q, "c of shape (n, q)"),
        warm,
        matrix(codes, n, q, "codes of shape (n, q)"),
        vector(objective, n, "objective of shape (n,)"),
        vector(gap, n, "gap of shape (n,)"),
        vector(iterations, n, "iterations of shape (n,)"),
    };
    nb::gil_scoped_release release;
    LassoSolver<S, X>(problem).solve(rows);
}

template <class S, class X>
void define(nb::module_& module) {
    module.def("active_set", &active_set<S, X>, given("x"), given("c"), given("gram"), given("exact_gram"),
               given("atoms"), given("lam"), given("ridge"), nb::arg("nonnegative"), nb::arg("tol"),
               nb::arg("max_iter"), nb::arg("rounding"), nb::arg("warm"), given("codes"), given("objective"),
               given("gap"), given("iterations"),
               "Lasso codes of the rows of x, from their correlations c, in place.");
}

}  // namespace

void bind_lasso(nb::module_& module) {
    define<float, float>(module);
    define<double, float>(module);
    define<double, double>(module);
}

}  // namespace pursuit::bindings
