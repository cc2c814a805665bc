/* Greatest cosines of smoothed rows, LANES signals at a time.
 *
 * A signal is the inner products of a document's tokens with a query vector. It is transformed once. The kernels are
 * real, so the spectrum of one plus i times that of another smooths the signal by both: one by the outcome's real part
 * and one by its imaginary part. Signals and pairs of scales together fill the lanes of the inverse transforms.
 *
 * A kernel is symmetric about its centre, which is at a position or, for a document of even length, half a position
 * after one. Its spectrum about that centre is real, and that of -k is that of k or, for an even length, its opposite.
 * So half of it is kept, as real numbers, and what half a position amounts to is multiplied with the signal's transform.
 */

typedef struct {
  const loose_float *signal;  /* (length,) */
  const loose_float *spectra; /* (scales, half) */
  const loose_float *norms;   /* (scales, length) */
  float *best;                /* what the greatest cosine of the first scale raises */
  ptrdiff_t length;
} smoothed_signal;

typedef struct {
  smoothed_signal signals[LANES];
  ptrdiff_t count, scales;
  ptrdiff_t apart;        /* from one scale's best to the next one's; 0 where all raise one */
  transform_plan plan;
  floats *real, *imag;    /* (size,) the signals' transforms; of them (half,) after they were folded */
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
      best = greater(ratio(values[first + t], greater(least, columns[t])), best);
  }
  return best;
}

/* Keep the frequencies 0 to size / 2 of real signals' transforms, about the centres of their documents' kernels: a
 * signal's that `even` marks, with all bits, are turned back by half a position. */
INLINE void fold(floats *real, floats *imag, const transform_plan *p, ints even) {
  for (ptrdiff_t k = 0; k < p->half; k++) {
    floats re = real[p->places[k]], im = imag[p->places[k]], turned_re, turned_im;
    turn(re, im, p->half_cosines[k], -p->half_sines[k], &turned_re, &turned_im);
    real[k] = (floats)(((ints)turned_re & even) | ((ints)re & ~even));
    imag[k] = (floats)(((ints)turned_im & even) | ((ints)im & ~even));
  }
}

/* Multiply the frequencies k and -k of real signals' transforms with those of one kernel plus i times another. */
INLINE void multiply_both(floats re, floats im, floats one, floats other, const transform_plan *p, ptrdiff_t k,
                          floats *real, floats *imag) {
  floats re_one = re * one, im_other = im * other, re_other = re * other, im_one = im * one;
  real[p->places[k]] = re_one - im_other;
  imag[p->places[k]] = re_other + im_one;
  real[p->mirrors[k]] = re_one + im_other;
  imag[p->mirrors[k]] = re_other - im_one;
}

static void transform_signals(batch *b) {
  const loose_float *signals[LANES];
  ptrdiff_t lengths[LANES], size = b->plan.size;
  ints even;
  for (ptrdiff_t lane = 0; lane < LANES; lane++) {
    const smoothed_signal *one = &b->signals[lane < b->count ? lane : 0];
    signals[lane] = one->signal;
    lengths[lane] = lane < b->count ? one->length : 0;
    even[lane] = one->length % 2 ? 0 : -1;
  }
  for (ptrdiff_t first = 0; first < size; first += LANES) {
    floats columns[LANES];
    load_columns(signals, lengths, first, 0, columns);
    for (ptrdiff_t t = 0; t < LANES && first + t < size; t++) {
      b->real[first + t] = columns[t];
      b->imag[first + t] = all(0);
    }
  }
  transform(b->real, b->imag, &b->plan);
  fold(b->real, b->imag, &b->plan, even);
}

/* Multiply signals, of which each lane has the one that `from` says, with two kernels for each lane; the second may be
 * none. */
static void multiply(batch *b, ints from, const loose_float *const kernels[2][LANES]) {
  ptrdiff_t half = b->plan.half, halves[2][LANES];
  int alike = 1;
  for (int lane = 0; lane < LANES; lane++) {
    halves[0][lane] = half;
    halves[1][lane] = kernels[1][lane] ? half : 0;
    alike &= kernels[0][lane] == kernels[0][0] && kernels[1][lane] && kernels[1][lane] == kernels[1][0];
  }
  for (ptrdiff_t first = 0; first < half; first += LANES) {
    floats columns[2][LANES];
    for (int part = 0; part < 2 && !alike; part++)
      load_columns(kernels[part], halves[part], first, 0, columns[part]);
    for (ptrdiff_t t = 0; t < LANES && first + t < half; t++) {
      ptrdiff_t k = first + t;
      multiply_both(chosen(b->real[k], from), chosen(b->imag[k], from), alike ? all(kernels[0][0][k]) : columns[0][t],
                    alike ? all(kernels[1][0][k]) : columns[1][t], &b->plan, k, b->one, b->other);
    }
  }
}

/* Smooth LANES pairs of a signal and two scales, from `first` on, and raise what their greatest cosines raise. */
static void smooth_pairs(batch *b, ptrdiff_t first, ptrdiff_t pairs) {
  const loose_float *kernels[2][LANES], *norms[2][LANES];
  ptrdiff_t lengths[LANES], of_second[LANES], longest = 0;
  float *raised[2][LANES];
  ints from;
  for (ptrdiff_t lane = 0; lane < LANES; lane++) {
    ptrdiff_t place = first + lane < b->count * pairs ? first + lane : first; /* lanes that are left repeat the first */
    ptrdiff_t scale = 2 * (place / b->count);
    const smoothed_signal *one = &b->signals[place % b->count];
    int both = scale + 1 < b->scales;
    from[lane] = (int32_t)(place % b->count);
    kernels[0][lane] = one->spectra + scale * b->plan.half;
    kernels[1][lane] = both ? kernels[0][lane] + b->plan.half : NULL;
    norms[0][lane] = one->norms + scale * one->length;
    norms[1][lane] = both ? norms[0][lane] + one->length : NULL;
    raised[0][lane] = one->best + scale * b->apart;
    raised[1][lane] = raised[0][lane] + b->apart;
    lengths[lane] = one->length;
    of_second[lane] = both ? one->length : 0;
    if (one->length > longest) longest = one->length;
  }
  multiply(b, from, kernels);
  invert(b->one, b->other, &b->plan);
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
