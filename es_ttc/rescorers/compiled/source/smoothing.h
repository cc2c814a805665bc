/* Greatest cosines of smoothed rows, LANES jobs at a time.
 *
 * A job is one signal (the inner products of a document's tokens with a query vector) and the kernels of two scales.
 * The kernels are real, so the spectrum of one plus i times the other smooths the signal by both: one by the outcome's
 * real part and one by its imaginary part.
 */

typedef struct {
  const loose_float *signal;   /* (length,) */
  const loose_float *spectrum; /* (2, size) */
  const loose_float *norms[2]; /* (length,) for either scale; the second may be NULL */
  float *best[2];        /* what the greatest cosine of either scale raises */
  ptrdiff_t length;
} job;

typedef struct {
  job jobs[LANES];
  int count;
  ptrdiff_t size;         /* of the transforms */
  const float *twiddles;  /* (2, size) */
  floats *real, *imag;    /* (size,) to compute in */
  float floor;
} batch;

/* Raise `best` by values divided by their norms, over the positions of every lane's document. */
INLINE floats raise_ratios(const floats *values, const loose_float *const norms[LANES], const ptrdiff_t lengths[LANES],
                           ptrdiff_t longest, float floor, floats best) {
  const floats least = all(floor);
  for (ptrdiff_t first = 0; first < longest; first += LANES) {
    floats columns[LANES];
    load_columns(norms, lengths, first, __builtin_nanf(""), columns);
    ptrdiff_t end = longest - first < LANES ? longest - first : LANES;
    for (ptrdiff_t t = 0; t < end; t++) /* NaN, after a document's end, stays NaN and raises nothing */
      best = greater(values[first + t] / greater(least, columns[t]), best);
  }
  return best;
}

static void run(batch *b) {
  if (!b->count) return;
  const loose_float *signals[LANES], *reals[LANES], *imags[LANES], *norms[2][LANES];
  ptrdiff_t lengths[LANES], sizes[LANES], of_second[LANES], longest = 0;
  for (int lane = 0; lane < LANES; lane++) {
    const job *one = &b->jobs[lane < b->count ? lane : 0]; /* lanes that are left compute the first job again */
    signals[lane] = one->signal;
    reals[lane] = one->spectrum;
    imags[lane] = one->spectrum + b->size;
    norms[0][lane] = one->norms[0];
    norms[1][lane] = one->norms[1];
    lengths[lane] = one->length;
    of_second[lane] = one->norms[1] ? one->length : 0;
    sizes[lane] = b->size;
    if (one->length > longest) longest = one->length;
  }
  const float *cosines = b->twiddles, *sines = b->twiddles + b->size;
  for (ptrdiff_t first = 0; first < b->size; first += LANES) {
    floats columns[LANES];
    load_columns(signals, lengths, first, 0, columns);
    for (ptrdiff_t t = 0; t < LANES && first + t < b->size; t++) {
      b->real[first + t] = columns[t];
      b->imag[first + t] = all(0);
    }
  }
  transform(b->real, b->imag, b->size, cosines, sines);
  for (ptrdiff_t first = 0; first < b->size; first += LANES) {
    floats columns[2][LANES];
    load_columns(reals, sizes, first, 0, columns[0]);
    load_columns(imags, sizes, first, 0, columns[1]);
    for (ptrdiff_t t = 0; t < LANES && first + t < b->size; t++) {
      floats re = b->real[first + t], im = b->imag[first + t];
      b->real[first + t] = re * columns[0][t] - im * columns[1][t];
      b->imag[first + t] = re * columns[1][t] + im * columns[0][t];
    }
  }
  invert(b->real, b->imag, b->size, cosines, sines);
  floats lowest = all(-__builtin_inff());
  floats best[2] = {raise_ratios(b->real, norms[0], lengths, longest, b->floor, lowest),
                    raise_ratios(b->imag, norms[1], of_second, longest, b->floor, lowest)};
  for (int lane = 0; lane < b->count; lane++)
    for (int part = 0; part < 2; part++)
      if (b->jobs[lane].norms[part] && best[part][lane] > *b->jobs[lane].best[part])
        *b->jobs[lane].best[part] = best[part][lane];
  b->count = 0;
}
