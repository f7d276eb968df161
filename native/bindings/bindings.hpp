// What each file of bindings adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace pursuit::bindings {

void bind_adam(nanobind::module_& module);
void bind_block_descent(nanobind::module_& module);
void bind_convolution(nanobind::module_& module);
void bind_correlate(nanobind::module_& module);
void bind_dictionary_sweep(nanobind::module_& module);
void bind_gemm(nanobind::module_& module);
void bind_huber(nanobind::module_& module);
void bind_lasso(nanobind::module_& module);
void bind_runtime(nanobind::module_& module);
void bind_training(nanobind::module_& module);
void bind_truncated_products(nanobind::module_& module);

}  // namespace pursuit::bindings
