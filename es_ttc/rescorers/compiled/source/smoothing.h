/* Greatest cosines of smoothed rows, LANES signals at a time.
 *
 * A signal is the inner products of a document's tokens with a query vector. It is transformed once. The kernels are
 * real, so the spectrum of one plus i times that of another smooths the signal by both: one by the outcome's real part
 * and one by its imaginary part. Signals and pairs of scales together fill the lanes of the inverse transforms.
 */

typedef struct {
  const loose_float *signal;  /* (length,) */
  const loose_float *spectra; /* (pairs, 2, size) */
  const loose_float *norms;   /* (scales, length) */
  float *best;                /* what the greatest cosine of the first scale raises */
  ptrdiff_t length;
} smoothed_signal;

typedef struct {
  smoothed_signal signals[LANES];
  ptrdiff_t count, scales;
  ptrdiff_t apart;        /* from one scale's best to the next one's; 0 where all raise one */
  ptrdiff_t size;         /* of the transforms */
  const float *twiddles;  /* (2, size) */
  floats *real, *imag;    /* (size,) the signals' transforms */
  floats *one, *other;    /* (size,) signals smoothed by a pair of scales */
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

static void transform_signals(batch *b) {
  const loose_float *signals[LANES];
  ptrdiff_t lengths[LANES];
  for (ptrdiff_t lane = 0; lane < LANES; lane++) {
    const smoothed_signal *one = &b->signals[lane < b->count ? lane : 0];
    signals[lane] = one->signal;
    lengths[lane] = lane < b->count ? one->length : 0;
  }
  for (ptrdiff_t first = 0; first < b->size; first += LANES) {
    floats columns[LANES];
    load_columns(signals, lengths, first, 0, columns);
    for (ptrdiff_t t = 0; t < LANES && first + t < b->size; t++) {
      b->real[first + t] = columns[t];
      b->imag[first + t] = all(0);
    }
  }
  transform(b->real, b->imag, b->size, b->twiddles, b->twiddles + b->size);
}

/* Multiply transforms of signals, of which each lane has the one that `from` says, with a spectrum for each lane. */
static void multiply(batch *b, ints from, const loose_float *const spectra[LANES]) {
  const loose_float *imags[LANES];
  ptrdiff_t sizes[LANES];
  int alike = 1;
  for (int lane = 0; lane < LANES; lane++) {
    imags[lane] = spectra[lane] + b->size;
    sizes[lane] = b->size;
    alike &= spectra[lane] == spectra[0];
  }
  for (ptrdiff_t first = 0; first < b->size; first += LANES) {
    floats columns[2][LANES];
    if (!alike) {
      load_columns(spectra, sizes, first, 0, columns[0]);
      load_columns(imags, sizes, first, 0, columns[1]);
    }
    for (ptrdiff_t t = 0; t < LANES && first + t < b->size; t++) {
      floats real = chosen(b->real[first + t], from), imag = chosen(b->imag[first + t], from);
      floats re = alike ? all(spectra[0][first + t]) : columns[0][t];
      floats im = alike ? all(imags[0][first + t]) : columns[1][t];
      b->one[first + t] = real * re - imag * im;
      b->other[first + t] = real * im + imag * re;
    }
  }
}

/* Smooth LANES pairs of a signal and two scales, from `first` on, and raise what their greatest cosines raise. */
static void smooth_pairs(batch *b, ptrdiff_t first, ptrdiff_t pairs) {
  const loose_float *spectra[LANES], *norms[2][LANES];
  ptrdiff_t lengths[LANES], of_second[LANES], longest = 0;
  float *raised[2][LANES];
  ints from;
  for (ptrdiff_t lane = 0; lane < LANES; lane++) {
    ptrdiff_t place = first + lane < b->count * pairs ? first + lane : first; /* lanes that are left repeat the first */
    ptrdiff_t scale = 2 * (place / b->count);
    const smoothed_signal *one = &b->signals[place % b->count];
    int both = scale + 1 < b->scales;
    from[lane] = (int32_t)(place % b->count);
    spectra[lane] = one->spectra + scale * b->size;
    norms[0][lane] = one->norms + scale * one->length;
    norms[1][lane] = both ? norms[0][lane] + one->length : NULL;
    raised[0][lane] = one->best + scale * b->apart;
    raised[1][lane] = raised[0][lane] + b->apart;
    lengths[lane] = one->length;
    of_second[lane] = both ? one->length : 0;
    if (one->length > longest) longest = one->length;
  }
  multiply(b, from, spectra);
  invert(b->one, b->other, b->size, b->twiddles, b->twiddles + b->size);
  floats lowest = all(-__builtin_inff());
  floats best[2] = {raise_ratios(b->one, norms[0], lengths, longest, b->floor, lowest),
                    raise_ratios(b->other, norms[1], of_second, longest, b->floor, lowest)};
  for (int lane = 0; lane < LANES; lane++)
    for (int part = 0; part < 2; part++)
      if (norms[part][lane] && best[part][lane] > *raised[part][lane]) *raised[part][lane] = best[part][lane];
}

static void run(batch *b) {
  if (!b->count) return;
  transform_signals(b);
  ptrdiff_t pairs = (b->scales + 1) / 2;
  for (ptrdiff_t first = 0; first < b->count * pairs; first += LANES) smooth_pairs(b, first, pairs);
  b->count = 0;
}
