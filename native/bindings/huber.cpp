#include "pursuit/huber.hpp"

#include "arrays.hpp"
#include "bindings.hpp"
#include "pursuit/huber_fista.hpp"
#include "pursuit/huber_newton.hpp"

namespace pursuit::bindings {

namespace {

template <class T>
HuberDictionary<T> dictionary(const Array2<const T>& atoms, const Array2<const T>& features, int q, int m) {
    using D = HuberDictionary<T>;
    return {
        matrix(atoms, q, padded(m, D::PADDED), "atoms of shape (q, m padded)"),
        matrix(features, m, padded(q, D::PADDED), "features of shape (m, q padded)"),
    };
}

template <class X, template <class> class Descent>
void solve(Array2<const X> x, Array2<const double> atoms, Array2<const double> features,
           Array2<const float> single_atoms, Array2<const float> single_features, Array2<const double> gram,
           Array2<const double> ridge, Array1<const double> lam, double lam_star, double step_constant,
           bool nonnegative, double tol, std::int64_t max_iter, double rounding, Array2<X> codes,
           Array1<double> objective, Array1<double> gap, Array1<std::int64_t> iterations) {
    const auto signals = matrix(x);
    const int n = signals.rows, m = signals.columns, q = as_int(atoms.shape(0));
    const int depth = padded(q, HuberDictionary<double>::PADDED);
    const HuberProblem problem{
        dictionary<float>(single_atoms, single_features, q, m),
        dictionary<double>(atoms, features, q, m),
        matrix(gram, q, depth, "gram of shape (q, q padded)"),
        matrix(ridge, q, depth, "ridge of shape (q, q padded)"),
        vector(lam, m, "lam of shape (m,)"),
        lam_star,
        step_constant,
        nonnegative,
        tol,
        max_iter,
        rounding,
    };
    const HuberRows<X> rows{
        signals,
        matrix(codes, n, q + m, "codes of shape (n, q + m)"),
        vector(objective, n, "objective of shape (n,)"),
        vector(gap, n, "gap of shape (n,)"),
        vector(iterations, n, "iterations of shape (n,)"),
    };
    nb::gil_scoped_release release;
    HuberSolver<X, Descent>(problem).solve(rows);
}

template <class X, template <class> class Descent>
void define(nb::module_& module, const char* name) {
    module.def(name, &solve<X, Descent>, given("x"), given("atoms"), given("features"), given("single_atoms"),
               given("single_features"), given("gram"), given("ridge"), given("lam"), nb::arg("lam_star"),
               nb::arg("step_constant"), nb::arg("nonnegative"), nb::arg("tol"), nb::arg("max_iter"),
               nb::arg("rounding"), given("codes"), given("objective"), given("gap"), given("iterations"),
               "Scores and outliers of the rows of x, in place.");
}

}  // namespace

void bind_huber(nb::module_& module) {
    define<float, HuberNewton>(module, "huber_newton");
    define<double, HuberNewton>(module, "huber_newton");
    define<float, HuberFista>(module, "huber_fista");
    define<double, HuberFista>(module, "huber_fista");
}

}  // namespace pursuit::bindings
