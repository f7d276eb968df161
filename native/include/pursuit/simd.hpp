// Vectors of the processor: a few adjacent numbers on which all operators act at once.
//
// GCC and clang have them as types of the language, for every processor (SSE, AVX, AVX-512, NEON, WebAssembly).
// Other compilers get a struct with the same operators and vectorise its loops.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

#if (defined(__GNUC__) || defined(__clang__)) && defined(__SSE2__)
#include <immintrin.h>
#elif defined(_MSC_VER)
#include <intrin.h>
#endif

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

/// A bit for each number that is at least `limit`, the lowest one for the first number.
template <class T>
PURSUIT_INLINE unsigned at_least(const Pack<T>& values, T limit) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        return _mm512_cmp_ps_mask((__m512)values, _mm512_set1_ps(limit), _CMP_GE_OQ);
    else
        return _mm512_cmp_pd_mask((__m512d)values, _mm512_set1_pd(limit), _CMP_GE_OQ);
#elif defined(__AVX__)
    if constexpr (sizeof(T) == 4)
        return _mm256_movemask_ps(_mm256_cmp_ps((__m256)values, _mm256_set1_ps(limit), _CMP_GE_OQ));
    else
        return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)values, _mm256_set1_pd(limit), _CMP_GE_OQ));
#elif defined(__SSE2__)
    if constexpr (sizeof(T) == 4)
        return _mm_movemask_ps(_mm_cmpge_ps((__m128)values, _mm_set1_ps(limit)));
    else
        return _mm_movemask_pd(_mm_cmpge_pd((__m128d)values, _mm_set1_pd(limit)));
#else
    unsigned bits = 0;
    for (int l = 0; l < static_cast<int>(VECTOR_BYTES / sizeof(T)); l++)
        bits |= (values[l] >= limit ? 1u : 0u) << l;
    return bits;
#endif
}

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

/// A bit for each number that is at least `limit`, the lowest one for the first number.
template <class T>
PURSUIT_INLINE unsigned at_least(const Pack<T>& values, T limit) {
    unsigned bits = 0;
    for (int l = 0; l < Pack<T>::SIZE; l++) bits |= (values.value[l] >= limit ? 1u : 0u) << l;
    return bits;
}

template <class V>
PURSUIT_INLINE V smaller(const V& a, const V& b) {
    return V::each([&](int i) { return a.value[i] < b.value[i] ? a.value[i] : b.value[i]; });
}
template <class V>
PURSUIT_INLINE V larger(const V& a, const V& b) {
    return V::each([&](int i) { return a.value[i] > b.value[i] ? a.value[i] : b.value[i]; });
}

#endif

/// The place of the lowest bit of a number that is not 0.
inline int lowest_bit(unsigned bits) {
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_ctz(bits);
#else
    unsigned long place;
    _BitScanForward(&place, bits);
    return static_cast<int>(place);
#endif
}

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
