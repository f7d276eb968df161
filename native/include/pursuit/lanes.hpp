// Arrays of whole vectors: padded to a multiple of the lanes, so that loops over them have no remainder.
#pragma once

#include "arrays.hpp"
#include "simd.hpp"

namespace pursuit {

inline constexpr int padded(int count, int multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

template <class T>
inline T sum_of(const Pack<T>& pack) {
    T values[LANES<T>];
    store<T>(values, pack);
    T sum = 0;
    for (int l = 0; l < LANES<T>; l++) sum += values[l];
    return sum;
}

/// y += factor x on `count` numbers, a multiple of the lanes.
template <class T>
inline void add_multiple(T factor, const T* PURSUIT_RESTRICT x, T* PURSUIT_RESTRICT y, int count) {
    for (int i = 0; i < count; i += LANES<T>) {
        Pack<T> sum = load(y + i);
        sum += factor * load(x + i);
        store<T>(y + i, sum);
    }
}

}  // namespace pursuit
