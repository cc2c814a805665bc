/* For 64-bit ARM with products of bytes (FEAT_DotProd): registers of four. */
#if defined(__aarch64__)
#define LANES 4
#define BUILD dotprod_kernels
#define NAME "dotprod"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#define LEAST_STEP 0 /* steps are multiplied with their signs */
#define GREATEST_STEP 127
#define DOT_OF_BYTES(sum, tokens, queries) \
  ((ints)vdotq_s32((int32x4_t)(sum), (int8x16_t)(tokens), (int8x16_t)(queries)))
#include "build.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
