// Adam, for a few parameters of any sizes at once: with the clipped gradient g,
//
//   m <- b1 m + (1 - b1) g,    v <- b2 v + (1 - b2) g^2,
//   w <- w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
#pragma once

#include <cmath>

#include "arrays.hpp"

namespace pursuit {

/// A parameter, its gradient and its moments, with the learning rate and the number t of this step.
template <class T>
struct AdamParameter {
    Vector<T> value;
    Vector<const T> gradient;
    Vector<T> mean, square;
    double rate, count;
};

/// The sum of squares of a gradient.
template <class T>
double squared_norm(const Vector<const T>& values) {
    constexpr int block = 1024;
    double total = 0;
    for (int first = 0; first < values.size; first += block) {
        const int last = values.size - first < block ? values.size : first + block;
        const T* PURSUIT_RESTRICT from = values.data;
        T sum = 0;
        PURSUIT_SIMD_REDUCE(+ : sum)
        for (int i = first; i < last; i++) sum += from[i] * from[i];
        total += sum;
    }
    return total;
}

/// Update one parameter with its gradient times `scale`; `b2` is the decay of the squares.
template <class T>
void adam(const AdamParameter<T>& p, T scale, double b2) {
    constexpr double b1 = 0.9;
    const T keep1 = T(b1), new1 = T(1 - b1), keep2 = T(b2), new2 = T(1 - b2), eps = T(1e-8);
    const T rate = static_cast<T>(p.rate / (1 - std::pow(b1, p.count)));
    const T unbiased = static_cast<T>(1 / std::sqrt(1 - std::pow(b2, p.count)));
    T* PURSUIT_RESTRICT w = p.value.data;
    const T* PURSUIT_RESTRICT gradient = p.gradient.data;
    T* PURSUIT_RESTRICT mean = p.mean.data;
    T* PURSUIT_RESTRICT square = p.square.data;
    PURSUIT_SIMD
    for (int i = 0; i < p.value.size; i++) {
        const T g = scale * gradient[i];
        mean[i] = keep1 * mean[i] + new1 * g;
        square[i] = keep2 * square[i] + new2 * g * g;
        w[i] -= rate * mean[i] / (std::sqrt(square[i]) * unbiased + eps);
    }
}

}  // namespace pursuit
