/* Fourier transforms of LANES complex signals side by side, in place.
 *
 * A signal's element t is lane l of element t of two arrays of vectors, real and imaginary parts. The transform leaves
 * its frequencies in the order in which decimation in frequency finds them, and the inverse expects them so: nothing
 * is brought back into order, and in_frequency() of compiled/frequencies.py says where each one is. A size is a power
 * of two, or three times one.
 * All lanes compute the same operations, so a signal's transform does not depend on the others'.
 */

/* What transforms of one size read, as transform_plan() of compiled/frequencies.py packs it. */
typedef struct {
  ptrdiff_t size, half;                    /* half: size / 2 + 1 frequencies, 0 to size / 2 */
  const float *cosines, *sines;            /* (size,) of 2 pi t / size */
  const float *half_cosines, *half_sines;  /* (half,) of pi k / size, for the frequencies in the order of places */
  const int32_t *places, *mirrors;         /* (half,) where the frequencies k are, ascending, and where -k are */
} transform_plan;

INLINE transform_plan plan_at(const void *packed, ptrdiff_t size) {
  transform_plan p = {.size = size, .half = size / 2 + 1, .cosines = packed};
  p.sines = p.cosines + size;
  p.half_cosines = p.sines + size;
  p.half_sines = p.half_cosines + p.half;
  p.places = (const int32_t *)(p.half_sines + p.half);
  p.mirrors = p.places + p.half;
  return p;
}

INLINE void turn(floats real, floats imag, float cosine, float sine, floats *to_real, floats *to_imag) {
  *to_real = real * cosine - imag * sine;
  *to_imag = real * sine + imag * cosine;
}

/* Butterflies of three; the inverse has the opposite sign of imaginary parts and turns before them. */
INLINE void pass_3(floats *re, floats *im, ptrdiff_t size, const float *cosines, const float *sines, float sign) {
  const float half_root = 0.866025403784438647f * sign;
  ptrdiff_t part = size / 3;
  for (ptrdiff_t j = 0; j < part; j++) {
    floats *r = re + j, *i = im + j;
    floats r0 = r[0], i0 = i[0], r1 = r[part], i1 = i[part], r2 = r[2 * part], i2 = i[2 * part];
    float c1 = cosines[j], s1 = -sign * sines[j], c2 = cosines[2 * j], s2 = -sign * sines[2 * j];
    if (sign < 0) {
      turn(r1, i1, c1, s1, &r1, &i1);
      turn(r2, i2, c2, s2, &r2, &i2);
    }
    floats rs = r1 + r2, is = i1 + i2, rd = (r1 - r2) * half_root, id = (i1 - i2) * half_root;
    floats rm = r0 - 0.5f * rs, sm = i0 - 0.5f * is;
    r[0] = r0 + rs;
    i[0] = i0 + is;
    r1 = rm + id, i1 = sm - rd, r2 = rm - id, i2 = sm + rd;
    if (sign > 0) {
      turn(r1, i1, c1, s1, &r1, &i1);
      turn(r2, i2, c2, s2, &r2, &i2);
    }
    r[part] = r1, i[part] = i1, r[2 * part] = r2, i[2 * part] = i2;
  }
}

INLINE void butterfly_4(floats *r, floats *i, ptrdiff_t part, const float *w, float sign) {
  floats r0 = r[0], r1 = r[part], r2 = r[2 * part], r3 = r[3 * part];
  floats i0 = i[0], i1 = i[part], i2 = i[2 * part], i3 = i[3 * part];
  if (w && sign < 0) {
    turn(r1, i1, w[0], w[1], &r1, &i1);
    turn(r2, i2, w[2], w[3], &r2, &i2);
    turn(r3, i3, w[4], w[5], &r3, &i3);
  }
  floats rs = r0 + r2, is = i0 + i2, rd = r0 - r2, id = i0 - i2;
  floats rt = r1 + r3, it = i1 + i3, ru = sign * (i1 - i3), iu = sign * (r3 - r1);
  r[0] = rs + rt, i[0] = is + it;
  r1 = rd + ru, i1 = id + iu, r2 = rs - rt, i2 = is - it, r3 = rd - ru, i3 = id - iu;
  if (w && sign > 0) {
    turn(r1, i1, w[0], w[1], &r1, &i1);
    turn(r2, i2, w[2], w[3], &r2, &i2);
    turn(r3, i3, w[4], w[5], &r3, &i3);
  }
  r[part] = r1, i[part] = i1, r[2 * part] = r2, i[2 * part] = i2, r[3 * part] = r3, i[3 * part] = i3;
}

INLINE void pass_4(floats *re, floats *im, ptrdiff_t size, ptrdiff_t block, const float *cosines, const float *sines,
                   float sign) {
  ptrdiff_t part = block / 4, step = size / block;
  for (ptrdiff_t first = 0; first < size; first += block) {
    butterfly_4(re + first, im + first, part, NULL, sign);
    for (ptrdiff_t j = 1; j < part; j++) {
      ptrdiff_t a = j * step;
      float w[6] = {cosines[a],         -sign * sines[a],     cosines[2 * a],
                    -sign * sines[2 * a], cosines[3 * a], -sign * sines[3 * a]};
      butterfly_4(re + first + j, im + first + j, part, w, sign);
    }
  }
}

INLINE void pass_2(floats *v, ptrdiff_t size) {
  for (ptrdiff_t t = 0; t < size; t += 2) {
    floats a = v[t], b = v[t + 1];
    v[t] = a + b;
    v[t + 1] = a - b;
  }
}

static void transform(floats *re, floats *im, const transform_plan *p) {
  ptrdiff_t size = p->size, block = size;
  if (block % 3 == 0) {
    pass_3(re, im, size, p->cosines, p->sines, 1);
    block /= 3;
  }
  for (; block % 4 == 0; block /= 4) pass_4(re, im, size, block, p->cosines, p->sines, 1);
  if (block == 2) {
    pass_2(re, size);
    pass_2(im, size);
  }
}

/* The inverse, times the size. */
static void invert(floats *re, floats *im, const transform_plan *p) {
  ptrdiff_t size = p->size, whole = size % 3 ? size : size / 3, block = whole;
  while (block % 4 == 0) block /= 4;
  if (block == 2) {
    pass_2(re, size);
    pass_2(im, size);
  }
  while (block < whole) {
    block *= 4;
    pass_4(re, im, size, block, p->cosines, p->sines, -1);
  }
  if (size % 3 == 0) pass_3(re, im, size, p->cosines, p->sines, -1);
}
