#include "pursuit/block_descent.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

namespace pursuit::bindings {

namespace {

/// Whether blocks from one start to the next cover the coordinates 0 to q - 1.
bool cover(Vector<const std::int64_t> starts, int q) {
    return starts[0] == 0 && starts[starts.size - 1] == q && std::is_sorted(starts.begin(), starts.end());
}

void block_coordinate(Array2<const double> x, Array2<const double> c, Array1<const double> energy,
                      Array2<const double> atoms, Array2<const double> gram, Array1<const double> ridge,
                      Array1<const std::int64_t> starts, Array1<const double> w, Array1<const double> v,
                      Array1<const double> constants, bool nonnegative, double tol, std::int64_t max_iter,
                      double rounding, bool single, Array2<double> codes, Array1<double> objective,
                      Array1<double> gap, Array1<std::int64_t> iterations) {
    const auto signals = matrix(x);
    const auto dictionary = matrix(atoms);
    const int n = signals.rows, m = dictionary.columns, q = dictionary.rows, blocks = as_int(v.shape(0));
    require(signals.columns == m, "x of shape (n, m)");
    const BlockProblem problem{
        dictionary,
        matrix(gram, q, q, "gram of shape (q, q)"),
        vector(ridge, q, "ridge of shape (q,)"),
        vector(starts, blocks + 1, "starts of shape (R + 1,)"),
        vector(w, q, "w of shape (q,)"),
        vector(v, blocks, "v of shape (R,)"),
        vector(constants, blocks, "constants of shape (R,)"),
        nonnegative,
        tol,
        max_iter,
        rounding,
        single,
    };
    require(cover(problem.starts, q), "starts that grow from 0 to q");
    const BlockRows rows{
        signals,
        matrix(c, n, q, "c of shape (n, q)"),
        vector(energy, n, "energy of shape (n,)"),
        matrix(codes, n, q, "codes of shape (n, q)"),
        vector(objective, n, "objective of shape (n,)"),
        vector(gap, n, "gap of shape (n,)"),
        vector(iterations, n, "iterations of shape (n,)"),
    };
    nb::gil_scoped_release release;
    BlockSolver(problem).solve(rows);
}

}  // namespace

void bind_block_descent(nb::module_& module) {
    module.def("block_coordinate", &block_coordinate, given("x"), given("c"), given("energy"), given("atoms"),
               given("gram"), given("ridge"), given("starts"), given("w"), given("v"), given("constants"),
               nb::arg("nonnegative"), nb::arg("tol"), nb::arg("max_iter"), nb::arg("rounding"),
               nb::arg("single"), given("codes"), given("objective"), given("gap"), given("iterations"),
               "Codes of the group Lasso and HiLasso of the rows of x, from their correlations c, in place.");
}

}  // namespace pursuit::bindings
