// Views of arrays in memory: what all kernels take instead of pointers and sizes.
#pragma once

#include <cstddef>
#include <vector>

// A pointer through which alone its memory is written while it lives.
#define PURSUIT_RESTRICT __restrict

// The next loop has no order: the compiler vectorises it, and does so in a reduction as well.
#define PURSUIT_PRAGMA(text) _Pragma(#text)
#if defined(_MSC_VER) && !defined(__clang__)
#define PURSUIT_SIMD
#define PURSUIT_SIMD_REDUCE(...)
#else
#define PURSUIT_SIMD PURSUIT_PRAGMA(omp simd)
#define PURSUIT_SIMD_REDUCE(...) PURSUIT_PRAGMA(omp simd reduction(__VA_ARGS__))
#endif

namespace pursuit {

/// A view of adjacent numbers. Indices are of 32 bits, which the compiler vectorises better.
template <class T>
struct Vector {
    T* data = nullptr;
    int size = 0;

    T& operator[](int i) const { return data[i]; }
    T* begin() const { return data; }
    T* end() const { return data + size; }
};

/// A view of a matrix in row-major order; `stride` is the distance of its rows.
template <class T>
struct Matrix {
    T* data = nullptr;
    int rows = 0;
    int columns = 0;
    std::ptrdiff_t stride = 0;

    Matrix() = default;
    Matrix(T* data, int rows, int columns) : Matrix(data, rows, columns, columns) {}
    Matrix(T* data, int rows, int columns, std::ptrdiff_t stride)
        : data(data), rows(rows), columns(columns), stride(stride) {}

    T* row(int i) const { return data + i * stride; }
    T& operator()(int i, int j) const { return data[i * stride + j]; }
};

template <class T>
Vector<T> view(std::vector<T>& values) {
    return {values.data(), static_cast<int>(values.size())};
}

}  // namespace pursuit
