// Programs and executors. A program keeps the arrays that an executor is made from.
#include <optional>

#include <nanobind/stl/optional.h>

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

void require_range(const Vector<const std::int64_t>& numbers, std::int64_t end, const char* what) {
    for (const std::int64_t number : numbers) require(0 <= number && number < end, what);
}

Stack stack(const std::optional<Matrices>& matrices, const std::optional<Numbers>& of, int rows, int columns,
            int depth, const char* what) {
    if (!matrices) return {};
    require_aligned(matrices->data());
    require(of && as_int(matrices->shape(1)) == rows && as_int(matrices->shape(2)) == columns, what);
    const Stack result{matrices->data(), as_int(matrices->shape(0)), rows, columns, vector(*of, depth, what)};
    require_range(result.of, result.count, what);
    return result;
}

void make(Given* self, Matrices weights, Numbers weight_of, std::optional<Matrices> grams,
          std::optional<Numbers> gram_of, std::optional<Matrices> atoms, std::optional<Numbers> atoms_of,
          std::optional<Matrices> steps, std::optional<Numbers> step_of, Array2<const float> mix,
          Array2<const float> soft, Array1<const float> negative, Array1<const float> decay,
          Array1<const float> units, Array2<const std::int64_t> runs, Array3<const float> thresholds,
          Numbers widths, Numbers blocks, Array1<const float> constants) {
    static_assert(sizeof(Mix) == 5 * sizeof(float));
    Given given;
    Program& p = given.view;
    p.depth = as_int(mix.shape(0));
    p.size = as_int(soft.shape(1));
    p.features = as_int(weights.shape(2));
    const int depth = p.depth, q = p.size, m = p.features, rows = steps ? q - m : q;
    require(mix.shape(1) == 5 && depth > 0, "mix of shape (T, 5)");
    require(rows > 0 && m > 0, "at least one atom and one feature");
    require(grams || atoms, "grams or atoms");
    require(!steps || atoms, "atoms beside steps");
    p.mix = {reinterpret_cast<const Mix*>(mix.data()), depth};
    p.weights = stack(weights, weight_of, rows, m, depth, "weights of shape (k, q, m)");
    p.grams = stack(grams, gram_of, q, q, depth, "grams of shape (k, q, q)");
    p.atoms = stack(atoms, atoms_of, rows, m, depth, "atoms of shape (k, q, m)");
    p.steps = stack(steps, step_of, 1, m, depth, "steps of shape (k, 1, m)");
    p.soft = matrix(soft, depth, q, "soft of shape (T, q)");
    p.negative = vector(negative, q, "negative of shape (q,)");
    p.decay = vector(decay, q, "decay of shape (q,)");
    p.units = vector(units, q, "units of shape (q,)");
    p.widths = vector(widths, depth, "widths of shape (T,)");
    p.blocks = vector(blocks, q, "blocks of shape (q,)");
    p.constants = vector(constants, q, "constants of shape (q,)");
    require_range(p.widths, q + 1, "widths between 0 and q");
    require_range(p.blocks, q, "blocks between 0 and q - 1");
    require(as_int(thresholds.shape(0)) == depth, "thresholds of shape (T, levels, groups)");
    p.levels = as_int(thresholds.shape(1));
    p.thresholds = {thresholds.data(), depth * p.levels, as_int(thresholds.shape(2))};
    require(runs.shape(1) == 4, "runs of shape (k, 4)");
    int level = 0;
    for (int k = 0; k < as_int(runs.shape(0)); k++) {
        const std::int64_t* r = runs.data() + 4 * k;
        require(level <= r[0] && r[0] < p.levels, "runs in the order of their levels");
        require(0 <= r[1] && r[1] <= r[2] && r[2] <= q, "runs within the code");
        require(0 <= r[3] && r[3] < p.thresholds.columns, "runs of groups that have thresholds");
        level = static_cast<int>(r[0]);
        given.runs.push_back({level, static_cast<int>(r[1]), static_cast<int>(r[2]), static_cast<int>(r[3])});
    }
    for (const auto& array : {weights, thresholds}) given.arrays.push_back(nb::cast(array));
    for (const auto& array : {grams, atoms, steps}) given.arrays.push_back(nb::cast(array));
    for (const auto& array : {gram_of, atoms_of, step_of}) given.arrays.push_back(nb::cast(array));
    for (const auto& array : {weight_of, widths, blocks}) given.arrays.push_back(nb::cast(array));
    for (const auto& array : {mix, soft}) given.arrays.push_back(nb::cast(array));
    for (const auto& array : {negative, decay, units, constants}) given.arrays.push_back(nb::cast(array));
    new (self) Given(std::move(given));
    self->view.runs = {self->runs.data(), static_cast<int>(self->runs.size())};
}

/// The arrays of a call, checked.
template <class Executor, class X>
struct Call {
    Matrix<const X> x;
    Matrix<float> codes;
    float* memory;

    Call(const Executor& executor, const Array2<const X>& x, const Array2<float>& codes, const Array1<float>& scratch)
        : x(matrix(x)), codes(matrix(codes)), memory(scratch.data()) {
        require(this->x.columns == executor.features(), "x of shape (n, m)");
        require(this->codes.rows == this->x.rows && this->codes.columns == executor.size(), "codes of shape (n, q)");
        require(scratch.shape(0) >= executor.scratch(this->x.rows), "scratch of the size that `scratch` returns");
    }
};

template <class X>
bool encode_dense(const Dense& executor, Array2<const X> x, double tiny, Array2<float> codes, Array1<float> scratch) {
    const Call<Dense, X> call(executor, x, codes, scratch);
    nb::gil_scoped_release release;
    return executor.encode(call.x, static_cast<float>(tiny), call.codes, call.memory);
}

template <class X>
bool encode_sparse(const Sparse& executor, Array2<const X> x, double tiny, Array2<float> codes,
                   Array1<float> scratch, Array1<std::int64_t> changes) {
    const Call<Sparse, X> call(executor, x, codes, scratch);
    const Vector<std::int64_t> counts = vector(changes, executor.depth(), "changes of shape (T,)");
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
        .def("__init__", &make, given("weights"), given("weight_of"), given("grams").none(), given("gram_of").none(),
             given("atoms").none(), given("atoms_of").none(), given("steps").none(), given("step_of").none(),
             given("mix"), given("soft"), given("negative"), given("decay"), given("units"), given("runs"),
             given("thresholds"), given("widths"), given("blocks"), given("constants"));
    auto dense = nb::class_<Dense>(module, "Dense", "Layers that replace the whole code, for blocks of rows.")
        .def("__init__", [](Dense* self, const Given& program) {
            const Program& p = program.view;
            for (const auto width : p.widths) require(width == p.size, "layers that replace the whole code");
            require(p.steps.count == 0 || p.levels == 0, "no groups beside an identity block");
            new (self) Dense(p);
        }, nb::arg("program"))
        .def("scratch", &Dense::scratch, nb::arg("rows"), "The floats of scratch memory for some rows.");
    auto sparse = nb::class_<Sparse>(module, "Sparse", "Layers one signal at a time, by the coefficients that change.")
        .def("__init__", [](Sparse* self, const Given& program) {
            require(program.view.grams.count > 0 && program.view.steps.count == 0, "grams, and weights of all atoms");
            new (self) Sparse(program.view);
        }, nb::arg("program"))
        .def("scratch", &Sparse::scratch, nb::arg("rows"), "The floats of scratch memory for some rows.");
    define<float>(dense, sparse);
    define<double>(dense, sparse);
}

}  // namespace pursuit::bindings
