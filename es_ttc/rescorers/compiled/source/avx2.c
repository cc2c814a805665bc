/* For processors with AVX2: registers of eight. */
#if defined(__x86_64__)
#define LANES 8
#define BUILD avx2_kernels
#define NAME "avx2"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#define LEAST_STEP 0x80
#define GREATEST_STEP 63 /* so that the sum of two products, 2 * 255 * 63, fits into int16 */
#define DOT_OF_BYTES(sum, tokens, queries) \
  ((sum) + (ints)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)(tokens), (__m256i)(queries)), _mm256_set1_epi16(1)))
#include "build.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
