// Vectors of the processor: a few adjacent numbers on which all operators act at once.
//
// GCC and clang have them as types of the language, for every processor (SSE, AVX, AVX-512, NEON, WebAssembly).
// Other compilers get a struct with the same operators and vectorise its loops.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

namespace pursuit {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif

#if defined(__GNUC__) || defined(__clang__)

#define PURSUIT_INLINE inline __attribute__((always_inline))
#define PURSUIT_LAMBDA __attribute__((always_inline))
// The next loop has few rounds, of a number known to the compiler: its variables become registers.
#define PURSUIT_UNROLL _Pragma("GCC unroll 8")

template <class T>
struct PackType {
    typedef T type __attribute__((vector_size(VECTOR_BYTES)));
};
template <class T>
using Pack = typename PackType<T>::type;

template <class V>
PURSUIT_INLINE V smaller(const V& a, const V& b) {
    return a < b ? a : b;
}
template <class V>
PURSUIT_INLINE V larger(const V& a, const V& b) {
    return a > b ? a : b;
}

#else

#define PURSUIT_INLINE __forceinline
#define PURSUIT_LAMBDA
#define PURSUIT_UNROLL

template <class T>
struct Pack {
    static constexpr int SIZE = VECTOR_BYTES / sizeof(T);
    T value[SIZE];

    template <class F>
    static PURSUIT_INLINE Pack each(F f) {
        Pack out;
        for (int i = 0; i < SIZE; i++) out.value[i] = f(i);
        return out;
    }
    friend PURSUIT_INLINE Pack operator+(const Pack& a, const Pack& b) {
        return each([&](int i) { return a.value[i] + b.value[i]; });
    }
    friend PURSUIT_INLINE Pack operator-(const Pack& a, const Pack& b) {
        return each([&](int i) { return a.value[i] - b.value[i]; });
    }
    friend PURSUIT_INLINE Pack operator*(const Pack& a, const Pack& b) {
        return each([&](int i) { return a.value[i] * b.value[i]; });
    }
    friend PURSUIT_INLINE Pack operator*(T a, const Pack& b) {
        return each([&](int i) { return a * b.value[i]; });
    }
    PURSUIT_INLINE Pack& operator+=(const Pack& b) { return *this = *this + b; }
    PURSUIT_INLINE Pack& operator-=(const Pack& b) { return *this = *this - b; }
};

template <class V>
PURSUIT_INLINE V smaller(const V& a, const V& b) {
    return V::each([&](int i) { return a.value[i] < b.value[i] ? a.value[i] : b.value[i]; });
}
template <class V>
PURSUIT_INLINE V larger(const V& a, const V& b) {
    return V::each([&](int i) { return a.value[i] > b.value[i] ? a.value[i] : b.value[i]; });
}

#endif

/// The number of elements of a vector.
template <class T>
constexpr int LANES = VECTOR_BYTES / static_cast<int>(sizeof(T));

template <class T>
PURSUIT_INLINE Pack<T> load(const T* from) {
    Pack<T> value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class T>
PURSUIT_INLINE void store(T* to, const Pack<T>& value) {
    std::memcpy(to, &value, sizeof value);
}

/// Allocates at the beginning of a cache line, so that no vector lies across two of them.
template <class T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t LINE{64};

    LineAllocator() = default;
    template <class U>
    LineAllocator(const LineAllocator<U>&) {}
    T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), LINE)); }
    void deallocate(T* data, std::size_t) { ::operator delete(data, LINE); }
    template <class U>
    bool operator==(const LineAllocator<U>&) const {
        return true;
    }
    template <class U>
    bool operator!=(const LineAllocator<U>&) const {
        return false;
    }
};

template <class T>
using AlignedVector = std::vector<T, LineAllocator<T>>;

}  // namespace pursuit
