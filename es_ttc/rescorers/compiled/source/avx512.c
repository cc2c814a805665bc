/* For processors with AVX-512 and its VNNI: registers of sixteen, sixty-four products of bytes in one instruction. */
#if defined(__x86_64__)
#define LANES 16
#define BUILD avx512_kernels
#define NAME "avx512"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#endif
#define LEAST_STEP 0x80
#define GREATEST_STEP 127
#define DOT_OF_BYTES(sum, tokens, queries) \
  ((ints)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(tokens), (__m512i)(queries)))
#include "build.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
