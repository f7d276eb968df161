// The extension module. It is compiled once for each instruction set, under that name.
#include "bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <string>
#include <vector>

#if defined(__x86_64__) || defined(_M_X64)
#ifdef _MSC_VER
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace {

// The instruction sets that the processor and the system have, each of which contains those before it. The
// processor itself is asked, since not every compiler has __builtin_cpu_supports.
std::vector<std::string> instruction_sets() {
    std::vector<std::string> names = {"baseline"};
#if defined(__x86_64__) || defined(_M_X64)
    unsigned leaf0[4], leaf1[4], leaf7[4], more[4];
    const auto ask = [](unsigned leaf, unsigned part, unsigned* r) {
#ifdef _MSC_VER
        int values[4];
        __cpuidex(values, static_cast<int>(leaf), static_cast<int>(part));
        for (int i = 0; i < 4; i++) r[i] = static_cast<unsigned>(values[i]);
#else
        __cpuid_count(leaf, part, r[0], r[1], r[2], r[3]);
#endif
    };
    const auto all = [](unsigned word, std::initializer_list<int> bits) {
        for (const int bit : bits)
            if (!(word >> bit & 1)) return false;
        return true;
    };
    ask(0, 0, leaf0);
    if (leaf0[0] < 7) return names;
    ask(1, 0, leaf1);
    ask(7, 0, leaf7);
    // fma, the system saves registers, f16c; bmi1, avx2, bmi2
    if (!all(leaf1[2], {12, 27, 29}) || !all(leaf7[1], {3, 5, 8})) return names;
#ifdef _MSC_VER
    const unsigned long long saved = _xgetbv(0);
#else
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const unsigned long long saved = low;
#endif
    if ((saved & 0x06) != 0x06) return names;
    names.push_back("avx2");
    if (leaf7[0] < 1) return names;
    ask(7, 1, more);
    // f, dq, cd, bw, vl. Processors without bf16 are from before 2020 to 2022: long vectors lower their clock.
    if (all(leaf7[1], {16, 17, 28, 30, 31}) && all(more[0], {5}) && (saved & 0xe6) == 0xe6)
        names.push_back("avx512");
#endif
    return names;
}

}  // namespace

NB_MODULE(PURSUIT_MODULE, module) {
    module.doc() = "The kernels of pursuit, compiled for one instruction set.";
    module.def("instruction_sets", &instruction_sets, "The instruction sets that can be used here.");
    pursuit::bindings::bind_adam(module);
    pursuit::bindings::bind_block_descent(module);
    pursuit::bindings::bind_convolution(module);
    pursuit::bindings::bind_correlate(module);
    pursuit::bindings::bind_dictionary_sweep(module);
    pursuit::bindings::bind_gemm(module);
    pursuit::bindings::bind_huber(module);
    pursuit::bindings::bind_lasso(module);
    pursuit::bindings::bind_runtime(module);
    pursuit::bindings::bind_training(module);
    pursuit::bindings::bind_truncated_products(module);
}
