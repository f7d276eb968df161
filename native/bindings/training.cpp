#include "pursuit/training.hpp"

#include <nanobind/stl/optional.h>

#include <optional>

#include "arrays.hpp"
#include "bindings.hpp"

namespace pursuit::bindings {

namespace {

template <class T>
using Maybe2 = std::optional<Array2<T>>;
template <class T>
using Maybe3 = std::optional<Array3<T>>;

template <class T>
MatrixStack<T> stack(const Array3<T>& array, int rows, int columns, const char* what) {
    require(as_int(array.shape(1)) == rows && as_int(array.shape(2)) == columns, what);
    return {array.data(), as_int(array.shape(0)), rows, columns};
}

/// The arrays of the layers, which must stay as they are between the two calls, and the tape.
template <class T>
class Layers {
public:
    Layers(bool gram, bool coupled, Array3<const T> weight, Array3<const T> matrix_, Maybe2<const T> outlier_step,
           std::optional<Array1<const T>> decay, Array2<const T> mixing, Array2<const T> thresholds,
           Array2<const std::int32_t> labels, Array1<const std::uint8_t> grouped,
           Array1<const std::uint8_t> nonnegative)
        : weight(weight),
          other(matrix_),
          outlier_step(outlier_step),
          decay(decay),
          mixing(mixing),
          thresholds(thresholds),
          labels(labels),
          grouped(grouped),
          nonnegative(nonnegative) {
        g.gram = gram;
        g.coupled = coupled;
        g.depth = as_int(mixing.shape(0));
        g.size = as_int(nonnegative.shape(0));
        g.stored = as_int(weight.shape(1));
        g.features = as_int(weight.shape(2));
        const int depth = g.depth, q = g.size, m = g.features, rest = q - g.stored;
        require(depth > 0 && q > 0 && m > 0 && g.stored > 0, "at least one layer, coefficient and feature");
        require(rest == 0 || (rest == m && !gram && outlier_step),
                "an outlier step for the identity block, and only for it");
        g.weight = stack(weight, g.stored, m, "weight of shape (1 or T, rows, m)");
        const bool square = gram && !coupled;
        g.matrix =
            stack(matrix_, square ? q : g.stored, square ? q : m, "matrix of shape (k, q, q) or (k, rows, m)");
        require(!(gram && coupled) || g.matrix.count == 1, "one dictionary for coupled layers");
        require(one_or(g.weight.count, depth), "one weight, or one for each layer");
        require(one_or(g.matrix.count, depth) || g.matrix.count == depth - 1,
                "one matrix, or one for each layer");
        if (rest > 0) {
            g.outlier_step = matrix(*outlier_step);
            require(g.outlier_step.columns == m && one_or(g.outlier_step.rows, depth),
                    "outlier_step of shape (1 or T, m)");
        }
        if (decay) g.decay = vector(*decay, q, "decay of shape (q,)");
        require(!(square && decay), "no decay where the matrices of the gram form are given");
        g.mixing = matrix(mixing, depth, 5, "mixing of shape (T, 5)");
        g.thresholds = matrix(thresholds);
        require(one_or(g.thresholds.rows, depth), "thresholds of shape (1 or T, columns)");
        const int stages = as_int(labels.shape(0));
        g.labels = matrix(labels, stages, q, "labels of shape (stages, q)");
        g.grouped = vector(grouped, stages, "grouped of shape (stages,)");
        g.nonnegative = vector(nonnegative, q, "nonnegative of shape (q,)");
        for (int s = 0; s < stages; s++) {
            for (int i = 0; i < q; i++)
                require(g.labels(s, i) < g.thresholds.columns, "labels that are columns of thresholds");
        }
    }
    Layers(const Layers&) = delete;

    void forward(Array2<const T> x, Array2<T> codes, bool keep) {
        const auto signals = matrix(x);
        require(signals.columns == g.features, "x of shape (n, m)");
        const auto to = matrix(codes, signals.rows, g.size, "codes of shape (n, q)");
        nb::gil_scoped_release release;
        TrainingPass<T>(g).forward(signals, to, keep ? &tape : nullptr);
    }

    void backward(Array2<const T> x, Array2<const T> codes, Array2<const T> gradient, Maybe2<T> gx,
                  Maybe3<T> gweight, Maybe3<T> gmatrix, Maybe2<T> gstep, Maybe2<T> gmixing,
                  Maybe2<T> gthresholds) {
        const auto signals = matrix(x);
        const int n = signals.rows, q = g.size, m = g.features;
        require(signals.columns == m, "x of shape (n, m)");
        require(tape.data != nullptr && tape.rows == n, "the signals of the forward pass");
        const auto reached = matrix(codes, n, q, "codes of shape (n, q)");
        const auto from = matrix(gradient, n, q, "a gradient of shape (n, q)");
        const auto out = gradients(n, gx, gweight, gmatrix, gstep, gmixing, gthresholds);
        nb::gil_scoped_release release;
        TrainingPass<T>(g).backward(signals, reached, tape, from, out);
    }

    nb::tuple learn(Array2<const T> x, int plain, double weight, double guard_weight, Array2<const T> atoms,
                    Array1<const T> lam, std::optional<Array1<const T>> ridge,
                    std::optional<Array1<const T>> units, Maybe2<const T> targets, bool learns, Maybe3<T> gweight,
                    Maybe3<T> gmatrix, Maybe2<T> gstep, Maybe2<T> gmixing, Maybe2<T> gthresholds,
                    Maybe2<T> gatoms) {
        const auto signals = matrix(x);
        require(signals.columns == g.features, "x of shape (n, m)");
        require(0 <= plain && plain <= signals.rows, "at most as many plain rows as rows");
        TrainingObjective<T> objective;
        objective.atoms = matrix(atoms);
        const int stored = objective.atoms.rows, rest = g.size - stored;
        require(objective.atoms.columns == g.features && stored > 0 && (rest == 0 || rest == g.features),
                "atoms of shape (rows, m)");
        objective.lam = vector(lam, g.thresholds.columns, "a weight for each threshold");
        if (ridge) objective.ridge = vector(*ridge, g.size, "ridge of shape (q,)");
        if (units) objective.units = vector(*units, g.size, "units of shape (q,)");
        const auto compared =
            targets ? matrix(*targets, plain, g.size, "targets of shape (plain, q)") : Matrix<const T>();
        const auto out = gradients(signals.rows, std::nullopt, gweight, gmatrix, gstep, gmixing, gthresholds);
        const auto to_atoms = gatoms ? matrix(*gatoms, stored, g.features, "a gradient like atoms") : Matrix<T>();
        TrainingLoss loss;
        {
            nb::gil_scoped_release release;
            loss = TrainingPass<T>(g).learn(signals, plain, weight, guard_weight, objective, compared,
                                            learns ? &out : nullptr, to_atoms);
        }
        return nb::make_tuple(loss.plain, loss.guard);
    }

private:
    TrainingGradients<T> gradients(int n, const Maybe2<T>& gx, const Maybe3<T>& gweight, const Maybe3<T>& gmatrix,
                                   const Maybe2<T>& gstep, const Maybe2<T>& gmixing,
                                   const Maybe2<T>& gthresholds) const {
        TrainingGradients<T> out;
        if (gx) out.x = matrix(*gx, n, g.features, "a gradient like x");
        if (gweight) out.weight = stack(*gweight, g.weight.rows, g.weight.columns, "a gradient like weight");
        if (gmatrix) out.matrix = stack(*gmatrix, g.matrix.rows, g.matrix.columns, "a gradient like matrix");
        require(!gweight || out.weight.count == g.weight.count, "a gradient like weight");
        require(!gmatrix || out.matrix.count == g.matrix.count, "a gradient like matrix");
        if (gstep)
            out.outlier_step =
                matrix(*gstep, g.outlier_step.rows, g.outlier_step.columns, "a gradient like outlier_step");
        if (gmixing) out.mixing = matrix(*gmixing, g.depth, 5, "a gradient like mixing");
        if (gthresholds)
            out.thresholds =
                matrix(*gthresholds, g.thresholds.rows, g.thresholds.columns, "a gradient like thresholds");
        return out;
    }

    static bool one_or(int count, int depth) { return count == 1 || count == depth; }

    Array3<const T> weight, other;
    Maybe2<const T> outlier_step;
    std::optional<Array1<const T>> decay;
    Array2<const T> mixing, thresholds;
    Array2<const std::int32_t> labels;
    Array1<const std::uint8_t> grouped, nonnegative;
    TrainingLayers<T> g;
    Tape<T> tape;
};

template <class T>
void define(nb::module_& module, const char* name) {
    nb::class_<Layers<T>>(module, name, "The layers of an encoder, with the tape of one forward pass.")
        .def(nb::init<bool, bool, Array3<const T>, Array3<const T>, Maybe2<const T>,
                      std::optional<Array1<const T>>, Array2<const T>, Array2<const T>,
                      Array2<const std::int32_t>, Array1<const std::uint8_t>, Array1<const std::uint8_t>>(),
             nb::arg("gram"), nb::arg("coupled"), given("weight"), given("matrix"), given("outlier_step").none(),
             given("decay").none(), given("mixing"), given("thresholds"), given("labels"), given("grouped"),
             given("nonnegative"))
        .def("forward", &Layers<T>::forward, given("x"), given("codes"), nb::arg("keep"),
             "Write the codes of x, and keep what `backward` needs.")
        .def("backward", &Layers<T>::backward, given("x"), given("codes"), given("gradient"), given("gx").none(),
             given("gweight").none(), given("gmatrix").none(), given("gstep").none(), given("gmixing").none(),
             given("gthresholds").none(),
             "Add the gradients, given that of the codes; None for those not needed.")
        .def("learn", &Layers<T>::learn, given("x"), nb::arg("plain"), nb::arg("weight"), nb::arg("guard_weight"),
             given("atoms"), given("lam"), given("ridge").none(), given("units").none(), given("targets").none(),
             nb::arg("learns"), given("gweight").none(), given("gmatrix").none(), given("gstep").none(),
             given("gmixing").none(), given("gthresholds").none(), given("gatoms").none(),
             "Return the sums of the loss and of the guard, and add the gradients of their weighted sum.");
}

}  // namespace

void bind_training(nb::module_& module) {
    nb::set_leak_warnings(false);  // codes whose gradient was not taken may live until the interpreter ends
    define<float>(module, "LayersFloat32");
    define<double>(module, "LayersFloat64");
}

}  // namespace pursuit::bindings
