/* Vectors of LANES floats, and what loads, compares and transposes them.
 *
 * The file that includes this has chosen the instructions: it has defined LANES.
 */
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

INLINE floats load(const loose_float *from) {
  floats v;
  memcpy(&v, from, sizeof v);
  return v;
}

INLINE ints load_ints(const void *from) {
  ints v;
  memcpy(&v, from, sizeof v);
  return v;
}

INLINE void store(float *to, floats v) { memcpy(to, &v, sizeof v); }

INLINE floats all(float value) { return value - (floats){0}; }

INLINE floats as_floats(ints v) { return __builtin_convertvector(v, floats); }

/* A float16 by its bits, exactly: sign, exponent and mantissa move to their places in a float32. */
INLINE float half(uint16_t bits) {
  uint32_t word = ((uint32_t)(int32_t)(int16_t)bits << 13) & 0x8fffffffu;
  float moved;
  memcpy(&moved, &word, sizeof moved);
  return moved * 0x1p112f;
}

/* The same for each kind of instructions:
 *
 *   sum          the sum of all lanes
 *   greater      the greater of two numbers; the second where one is NaN
 *   at_least     a bit for each lane whose first number is no less than the second
 *   ratio        one number divided by another, which is greater than 0
 *   load_halves  float16 as float32
 *   load_bytes   int8 as float32
 */
#if defined(__x86_64__) && LANES == 16
INLINE float sum(floats v) { return _mm512_reduce_add_ps((__m512)v); }
INLINE floats greater(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE unsigned at_least(floats a, floats b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }
/* A division of sixteen takes as long as sixteen multiplications: an approximate one, and what is left of it. */
INLINE floats ratio(floats a, floats b) {
  floats inverse = (floats)_mm512_rcp14_ps((__m512)b), about = a * inverse;
  return about + (a - about * b) * inverse;
}
INLINE floats load_halves(const void *from) { return (floats)_mm512_cvtph_ps(_mm256_loadu_si256(from)); }
INLINE floats load_bytes(const void *from) {
  return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from)));
}
#define WOVEN_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define WOVEN_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__x86_64__) && LANES == 8
INLINE float sum(floats v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE floats greater(floats a, floats b) { return (floats)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE unsigned at_least(floats a, floats b) {
  return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GE_OQ));
}
INLINE floats ratio(floats a, floats b) { return a / b; }
INLINE floats load_halves(const void *from) { return (floats)_mm256_cvtph_ps(_mm_loadu_si128(from)); }
INLINE floats load_bytes(const void *from) {
  return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from)));
}
#define WOVEN_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define WOVEN_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
INLINE float sum(floats v) { return (v[0] + v[2]) + (v[1] + v[3]); }
INLINE floats greater(floats a, floats b) {
  ints first = a > b;
  return (floats)(((ints)a & first) | ((ints)b & ~first));
}
INLINE unsigned at_least(floats a, floats b) {
  ints reached = (ints)(a >= b) & (ints){1, 2, 4, 8};
  return (unsigned)(reached[0] | reached[1] | reached[2] | reached[3]);
}
INLINE floats ratio(floats a, floats b) { return a / b; }
#define WOVEN_LOW 0, 4, 1, 5
#define WOVEN_HIGH 2, 6, 3, 7
#if defined(__aarch64__)
INLINE floats load_halves(const void *from) { return (floats)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))); }
INLINE floats load_bytes(const void *from) {
  int32_t four;
  memcpy(&four, from, sizeof four);
  return (floats)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}
#else
INLINE floats load_halves(const void *from) {
  uint16_t bits[LANES];
  memcpy(bits, from, sizeof bits);
  return (floats){half(bits[0]), half(bits[1]), half(bits[2]), half(bits[3])};
}
INLINE floats load_bytes(const void *from) {
  const int8_t *bytes = from;
  return (floats){bytes[0], bytes[1], bytes[2], bytes[3]};
}
#endif
#endif

#if defined(__clang__)
#define WEAVE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define WEAVE(a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif

/* Lane l becomes the lane that `from` has at l. */
INLINE floats chosen(floats v, ints from) {
#if defined(__x86_64__) && LANES == 16
  return (floats)_mm512_permutexvar_ps((__m512i)from, (__m512)v);
#elif defined(__x86_64__) && LANES == 8
  return (floats)_mm256_permutevar8x32_ps((__m256)v, (__m256i)from);
#else
  return (floats){v[from[0]], v[from[1]], v[from[2]], v[from[3]]};
#endif
}

/* The sum of numbers. */
INLINE float total(const loose_float *numbers, ptrdiff_t count) {
  floats sums = all(0);
  ptrdiff_t t = 0;
  for (; t + LANES <= count; t += LANES) sums += load(numbers + t);
  float whole = sum(sums);
  for (; t < count; t++) whole += numbers[t];
  return whole;
}

/* The greatest of numbers times `factor`, minus infinity of none; NaN is passed over. */
INLINE float greatest(const loose_float *numbers, ptrdiff_t count, float factor) {
  floats lanes = all(-__builtin_inff());
  ptrdiff_t t = 0;
  for (; t + LANES <= count; t += LANES) lanes = greater(load(numbers + t) * factor, lanes);
  float best = lanes[0];
  for (int lane = 1; lane < LANES; lane++) best = lanes[lane] > best ? lanes[lane] : best;
  for (; t < count; t++) best = numbers[t] * factor > best ? numbers[t] * factor : best;
  return best;
}

/* Transpose LANES vectors: each round weaves the first half of them into the second. */
INLINE void transpose(floats v[LANES]) {
#pragma GCC unroll 4
  for (int round = 1; round < LANES; round *= 2) {
    floats woven[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) {
      woven[2 * i] = WEAVE(v[i], v[i + LANES / 2], WOVEN_LOW);
      woven[2 * i + 1] = WEAVE(v[i], v[i + LANES / 2], WOVEN_HIGH);
    }
    memcpy(v, woven, sizeof woven);
  }
}

/* Row r of what is read becomes lane r: up to LANES numbers of each of LANES rows, `fill` after a row's end. */
INLINE void load_columns(const loose_float *const rows[LANES], const ptrdiff_t lengths[LANES], ptrdiff_t first,
                         float fill, floats columns[LANES]) {
  for (int r = 0; r < LANES; r++) {
    ptrdiff_t left = lengths[r] - first;
    if (left >= LANES) {
      __builtin_prefetch(rows[r] + first + 4 * LANES);
      columns[r] = load(rows[r] + first);
    } else {
      columns[r] = all(fill);
      for (ptrdiff_t i = 0; i < left; i++) columns[r][i] = rows[r][first + i];
    }
  }
  transpose(columns);
}
