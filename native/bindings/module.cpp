// The extension module. It is compiled once for each instruction set, under that name.
#include "bindings.hpp"

#if defined(__x86_64__) || defined(_M_X64)
#ifdef _MSC_VER
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace {

// Asked of the processor itself, since not every compiler has __builtin_cpu_supports.
bool has_avx2() {
#if defined(__x86_64__) || defined(_M_X64)
    unsigned leaf0[4], leaf1[4], leaf7[4];
    const auto ask = [](unsigned leaf, unsigned* r) {
#ifdef _MSC_VER
        int values[4];
        __cpuidex(values, static_cast<int>(leaf), 0);
        for (int i = 0; i < 4; i++) r[i] = static_cast<unsigned>(values[i]);
#else
        __cpuid_count(leaf, 0, r[0], r[1], r[2], r[3]);
#endif
    };
    ask(0, leaf0);
    if (leaf0[0] < 7) return false;
    ask(1, leaf1);
    ask(7, leaf7);
    const bool fma = leaf1[2] >> 12 & 1, saves = leaf1[2] >> 27 & 1, f16c = leaf1[2] >> 29 & 1;
    const bool avx2 = leaf7[1] >> 5 & 1, bmi1 = leaf7[1] >> 3 & 1, bmi2 = leaf7[1] >> 8 & 1;
    if (!(fma && saves && f16c && avx2 && bmi1 && bmi2)) return false;
#ifdef _MSC_VER
    const unsigned long long enabled = _xgetbv(0);
#else
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const unsigned long long enabled = low;
#endif
    return (enabled & 6) == 6;  // the system saves the registers of AVX
#else
    return false;
#endif
}

}  // namespace

NB_MODULE(PURSUIT_MODULE, module) {
    module.doc() = "The kernels of pursuit, compiled for one instruction set.";
    module.def("has_avx2", &has_avx2, "Whether the processor and the system have AVX2 and FMA.");
    pursuit::bindings::bind_adam(module);
    pursuit::bindings::bind_block_descent(module);
    pursuit::bindings::bind_correlate(module);
    pursuit::bindings::bind_dictionary_sweep(module);
    pursuit::bindings::bind_gemm(module);
    pursuit::bindings::bind_huber(module);
    pursuit::bindings::bind_lasso(module);
    pursuit::bindings::bind_runtime(module);
    pursuit::bindings::bind_training(module);
    pursuit::bindings::bind_truncated_products(module);
}
