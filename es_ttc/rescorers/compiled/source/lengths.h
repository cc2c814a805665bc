/* Lengths of a document's smoothed rows: the norms that are stored beside its token vectors.
 *
 * LANES components of all tokens are as many signals, which every pair of kernels smooths (see smoothing.h); the squares
 * of what comes out are added up over the components.
 */

typedef struct {
  floats *real, *imag;           /* (size,) the transforms of some components */
  floats *one_scale, *the_other; /* (size,) the same, smoothed by two scales */
  floats *squares;               /* (scales, length) */
} lengths_places;

static lengths_places lengths_places_in(const lengths_task *of, cutter *room) {
  size_t size = sizeof(floats) * (size_t)of->size;
  lengths_places p = {cut(room, size), cut(room, size), cut(room, size), cut(room, size), NULL};
  p.squares = cut(room, sizeof(floats) * (size_t)(of->scales * of->length));
  return p;
}

static size_t lengths_room(const lengths_task *of) {
  cutter nothing = {NULL, LINE};
  lengths_places_in(of, &nothing);
  return nothing.used;
}

/* Read LANES components of every token, from `first` on; 0 after the last token and the last component. */
INLINE void load_components(const lengths_task *of, ptrdiff_t first, floats *to) {
  ptrdiff_t left = of->dims - first;
  for (ptrdiff_t t = 0; t < of->length; t++) {
    const loose_float *row = of->rows + t * of->dims + first;
    if (left >= LANES) {
      to[t] = load(row);
    } else {
      to[t] = all(0);
      for (ptrdiff_t c = 0; c < left; c++) to[t][c] = row[c];
    }
  }
  for (ptrdiff_t t = of->length; t < of->size; t++) to[t] = all(0);
}

static void smoothed_lengths(const lengths_task *of, void *memory) {
  cutter room = {aligned(memory), 0};
  lengths_places p = lengths_places_in(of, &room);
  const transform_plan plan = plan_at(of->plan, of->size);
  const ints even = (ints){0} - (of->length % 2 ? 0 : 1);
  for (ptrdiff_t i = 0; i < of->scales * of->length; i++) p.squares[i] = all(0);
  for (ptrdiff_t first = 0; first < of->dims; first += LANES) {
    load_components(of, first, p.real);
    for (ptrdiff_t t = 0; t < of->size; t++) p.imag[t] = all(0);
    transform(p.real, p.imag, &plan);
    fold(p.real, p.imag, &plan, even);
    for (ptrdiff_t scale = 0; scale < of->scales; scale += 2) {
      const float *one = of->spectra + scale * plan.half, *other = scale + 1 < of->scales ? one + plan.half : NULL;
      for (ptrdiff_t k = 0; k < plan.half; k++)
        multiply_both(p.real[k], p.imag[k], all(one[k]), all(other ? other[k] : 0), &plan, k, p.one_scale, p.the_other);
      invert(p.one_scale, p.the_other, &plan);
      floats *squares = p.squares + scale * of->length;
      for (ptrdiff_t t = 0; t < of->length; t++) squares[t] += p.one_scale[t] * p.one_scale[t];
      for (ptrdiff_t t = 0; t < of->length && scale + 1 < of->scales; t++)
        squares[of->length + t] += p.the_other[t] * p.the_other[t];
    }
  }
  for (ptrdiff_t i = 0; i < of->scales * of->length; i++) of->out[i] = sqrtf(sum(p.squares[i]));
}
