// Vector registers by name, for the few loops whose sums have to stay in them.
//
// Everywhere else the compiler vectorises plain loops. Arrays that are read by registers are padded
// to full cache lines, so that these loops have no remainder.
#pragma once

#include <cstring>
#include <new>
#include <vector>

#include "arrays.hpp"

#if defined(__AVX2__)
#define PURSUIT_REGISTER_BYTES 32
#else
#define PURSUIT_REGISTER_BYTES 16
#endif

// The next loop has a constant number of turns and disappears.
#if defined(__clang__)
#define PURSUIT_UNROLL PURSUIT_PRAGMA(unroll)
#elif defined(__GNUC__)
#define PURSUIT_UNROLL PURSUIT_PRAGMA(GCC unroll 16)
#else
#define PURSUIT_UNROLL
#endif

namespace pursuit {

namespace detail {

#if defined(__GNUC__) || defined(__clang__)
template <class T>
struct Register;
template <>
struct Register<float> {
    typedef float type __attribute__((vector_size(PURSUIT_REGISTER_BYTES)));
};
template <>
struct Register<double> {
    typedef double type __attribute__((vector_size(PURSUIT_REGISTER_BYTES)));
};
#else
template <class T>
struct Register {
    static constexpr int SIZE = PURSUIT_REGISTER_BYTES / sizeof(T);
    struct type {
        T values[SIZE];
        type& operator+=(const type& other) {
            for (int l = 0; l < SIZE; l++) values[l] += other.values[l];
            return *this;
        }
        type& operator-=(const type& other) {
            for (int l = 0; l < SIZE; l++) values[l] -= other.values[l];
            return *this;
        }
        friend type operator*(T factor, const type& other) {
            type product;
            for (int l = 0; l < SIZE; l++) product.values[l] = factor * other.values[l];
            return product;
        }
        friend type operator*(const type& a, const type& b) {
            type product;
            for (int l = 0; l < SIZE; l++) product.values[l] = a.values[l] * b.values[l];
            return product;
        }
    };
};
#endif

/// Memory that begins at a cache line.
template <class T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t LINE{64};

    LineAllocator() = default;
    template <class U>
    LineAllocator(const LineAllocator<U>&) {}

    T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), LINE)); }
    void deallocate(T* p, std::size_t) { ::operator delete(p, LINE); }
    template <class U>
    bool operator==(const LineAllocator<U>&) const { return true; }
    template <class U>
    bool operator!=(const LineAllocator<U>&) const { return false; }
};

}  // namespace detail

/// The numbers of one register, with + - * between them and `number * register`.
template <class T>
using Lanes = typename detail::Register<T>::type;

template <class T>
constexpr int LANES = PURSUIT_REGISTER_BYTES / sizeof(T);

/// Scratch memory of whole cache lines.
template <class T>
using Lines = std::vector<T, detail::LineAllocator<T>>;

template <class T>
inline Lanes<T> load(const T* from) {
    Lanes<T> lanes;
    std::memcpy(&lanes, from, sizeof(lanes));
    return lanes;
}

template <class T>
inline void store(const Lanes<T>& lanes, T* to) {
    std::memcpy(to, &lanes, sizeof(lanes));
}

template <class T>
inline T sum_of(const Lanes<T>& lanes) {
    T values[LANES<T>];
    store<T>(lanes, values);
    T sum = 0;
    for (int l = 0; l < LANES<T>; l++) sum += values[l];
    return sum;
}

inline constexpr int padded(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }

/// y += factor x on `count` numbers, a multiple of the lanes.
template <class T>
inline void add_multiple(T factor, const T* PURSUIT_RESTRICT x, T* PURSUIT_RESTRICT y, int count) {
    for (int i = 0; i < count; i += LANES<T>) {
        Lanes<T> sum = load(y + i);
        sum += factor * load(x + i);
        store<T>(sum, y + i);
    }
}

}  // namespace pursuit
