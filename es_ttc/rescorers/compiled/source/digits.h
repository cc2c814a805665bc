/* Query vectors in digits, for products with int8 tokens as integers: four a lane and instruction.
 *
 * A component is the sum of three digits, each 2 * GREATEST_STEP times finer than the one before. What is left of it is
 * below 2^-20 of the vector's greatest component (AVX-512: 2^-23), about the rounding of float32, and sums of integers
 * have no rounding of their own.
 */
enum { FEW = 4, AHEAD = 4096 }; /* bytes: a page further on, where processors do not look by themselves */

#if defined(DOT_OF_BYTES)
#include <math.h>

enum { DIGITS = 3, BASE = 2 * GREATEST_STEP, BYTES = 4 * LANES };

typedef struct {
  int8_t *digits;   /* (roles, DIGITS, padded); 0 after the last component */
  int32_t *offsets; /* (roles, DIGITS, LANES): what a lane's sum exceeds because tokens are counted from the least step */
  float *units;     /* (roles, DIGITS): what a step of a digit is worth */
  ptrdiff_t padded; /* components, up to a whole register */
} query_digits;

static query_digits digits_in(ptrdiff_t roles, ptrdiff_t dims, cutter *room) {
  query_digits q = {.padded = (dims + BYTES - 1) / BYTES * BYTES};
  size_t vectors = (size_t)(roles * DIGITS);
  q.digits = cut(room, vectors * (size_t)q.padded);
  q.offsets = cut(room, vectors * LANES * sizeof(int32_t));
  q.units = cut(room, vectors * sizeof(float));
  return q;
}

static void fill_digits(const float *vectors, ptrdiff_t roles, ptrdiff_t dims, const query_digits *q) {
  for (ptrdiff_t role = 0; role < roles; role++) {
    const float *vector = vectors + role * dims;
    double greatest = 0, finer = 1;
    int finite = 1;
    for (ptrdiff_t c = 0; c < dims; c++) {
      finite &= isfinite(vector[c]) != 0;
      if (fabs((double)vector[c]) > greatest) greatest = fabs((double)vector[c]);
    }
    for (ptrdiff_t d = 0; d < DIGITS; d++, finer *= BASE) /* products with what is not finite are not numbers */
      q->units[role * DIGITS + d] = finite ? (float)((greatest > 0 ? greatest / GREATEST_STEP : 1) / finer) : NAN;
    int8_t *digits = q->digits + role * DIGITS * q->padded;
    int32_t *offsets = q->offsets + role * DIGITS * LANES;
    memset(digits, 0, (size_t)(DIGITS * q->padded));
    memset(offsets, 0, sizeof(int32_t) * DIGITS * LANES);
    for (ptrdiff_t c = 0; c < dims && finite; c++) {
      double rest = (double)vector[c];
      for (ptrdiff_t d = 0; d < DIGITS; d++) {
        double unit = (double)q->units[role * DIGITS + d], step = unit > 0 ? rint(rest / unit) : 0;
        step = step > GREATEST_STEP ? GREATEST_STEP : step < -GREATEST_STEP ? -GREATEST_STEP : step;
        rest -= step * unit;
        digits[d * q->padded + c] = (int8_t)step;
        offsets[d * LANES + c / 4 % LANES] += LEAST_STEP * (int32_t)step;
      }
    }
  }
}

/* `roles` is a constant where this is called. */
INLINE void add_register(int roles, ints token, const int8_t *digits, ptrdiff_t padded, ints sums[][DIGITS]) {
  for (int r = 0; r < roles; r++)
    for (int d = 0; d < DIGITS; d++)
      sums[r][d] = DOT_OF_BYTES(sums[r][d], token, load_ints(digits + (r * DIGITS + d) * padded));
}

/* The products of a row of int8 or codes, in its steps, with some query vectors, of which `first` is the first; what is
 * `ahead` is read soon. */
INLINE void integer_dots(enum kind kind, int roles, const char *row, const char *ahead, ptrdiff_t dims,
                         const query_digits *q, ptrdiff_t first, float *out) {
  const ints least = (ints){0} + (int32_t)(LEAST_STEP * 0x01010101u);
  const int8_t *digits = q->digits + first * DIGITS * q->padded;
  ints sums[FEW][DIGITS];
  for (int r = 0; r < roles; r++)
    for (int d = 0; d < DIGITS; d++) sums[r][d] = -load_ints(q->offsets + ((first + r) * DIGITS + d) * LANES);
  ptrdiff_t c = 0;
  for (; is_coded(kind) && c < dims; c += CODED) {
    ints levels[REGISTERS];
    __builtin_prefetch(ahead + width_of(kind, c), 0, 2);
    expand_block(kind, row + width_of(kind, c), (char)LEAST_STEP, levels);
    for (int i = 0; i < REGISTERS && c + i * BYTES < q->padded; i++)
      add_register(roles, levels[i], digits + c + i * BYTES, q->padded, sums);
  }
  for (; c + BYTES <= dims; c += BYTES) {
    __builtin_prefetch(ahead + c, 0, 2); /* not into the nearest cache: that slows large windows by a third */
    add_register(roles, load_ints(row + c) ^ least, digits + c, q->padded, sums);
  }
  if (c < dims) {
    char rest[BYTES] = {0};
    memcpy(rest, row + c, (size_t)(dims - c));
    add_register(roles, load_ints(rest) ^ least, digits + c, q->padded, sums);
  }
  for (int r = 0; r < roles; r++) {
    const float *units = q->units + (first + r) * DIGITS;
    floats total = as_floats(sums[r][DIGITS - 1]) * units[DIGITS - 1];
    for (int d = DIGITS - 2; d >= 0; d--) total += as_floats(sums[r][d]) * units[d];
    out[r] = sum(total);
  }
}
#endif
