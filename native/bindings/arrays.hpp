// Arrays of Python as views, with checked sizes: a kernel only gets what fits together.
#pragma once

#include <climits>
#include <cstdint>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "pursuit/arrays.hpp"

namespace pursuit::bindings {

namespace nb = nanobind;

template <class T>
using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array3 = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

/// An array that is taken as it is: another dtype or layout is an error, never a silent copy.
inline auto given(const char* name) {
    return nb::arg(name).noconvert();
}

inline int as_int(std::size_t size) {
    if (size > INT_MAX) throw std::invalid_argument("arrays must have fewer than 2^31 rows and columns");
    return static_cast<int>(size);
}

inline void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(std::string("the kernel needs ") + what);
}

template <class T>
void require_aligned(const T* data) {
    require(reinterpret_cast<std::uintptr_t>(data) % alignof(T) == 0,
            "arrays whose numbers are aligned in memory");
}

template <class T>
Vector<T> vector(const Array1<T>& array, int size, const char* what) {
    require(as_int(array.shape(0)) == size, what);
    require_aligned(array.data());
    return {array.data(), size};
}

template <class T>
Matrix<T> matrix(const Array2<T>& array, int rows, int columns, const char* what) {
    require(as_int(array.shape(0)) == rows && as_int(array.shape(1)) == columns, what);
    require_aligned(array.data());
    return {array.data(), rows, columns};
}

template <class T>
Matrix<T> matrix(const Array2<T>& array) {
    require_aligned(array.data());
    return {array.data(), as_int(array.shape(0)), as_int(array.shape(1))};
}

}  // namespace pursuit::bindings
