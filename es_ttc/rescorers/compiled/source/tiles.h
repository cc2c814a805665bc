/* Late interaction: every query vector's greatest product with a document's tokens, TILE tokens at a time.
 *
 * A register holds the same component of LANES query vectors and meets that component of one token after the other, so
 * sums need no adding up across a register, and what is read once serves all of them.
 *
 * Tokens of int8, or of codes, are multiplied as integers, four products a lane and instruction, by query vectors that are rounded to
 * int8. This only finds the tokens that may be the best; their products are then computed from the query vectors as
 * they are, so no score depends on the rounding.
 */
#include <math.h>

enum { TILE = 12, BLOCK = 8 * TILE };
/* Tokens of a block, which meet all query vectors before the next: they and their products stay in near caches. */

static const float ROUNDING = 4e-6f; /* more than the rounding of float32 changes a cosine */

typedef struct {
  ptrdiff_t count, dims, lanes, quads; /* lanes: of all panels; quads: components by four, rounded up */
  const float *vectors;                /* (count, dims) */
  float *panels;                       /* (lanes / LANES, dims, LANES) */
  int8_t *steps;                       /* (lanes / LANES, quads, LANES, 4): the vectors in steps */
  float *units;                        /* (lanes,) the length of a step */
  float *errors;                       /* (lanes,) more than the rounding to steps changes a cosine */
  int32_t *offsets;                    /* (lanes,) what a sum exceeds because steps of tokens are counted from the least */
  float *best;                         /* (lanes,) */
  char *block;                         /* (BLOCK, dims) as they are multiplied */
  float *found;                        /* (BLOCK, LANES) */
  char *row;                           /* (dims,) levels of a row in codes, in whole blocks */
} query_panels;

/* Where the memory that is read next begins, and how far one request is from the one before. */
typedef struct {
  const char *place;
  ptrdiff_t step;
} ahead;

/* `tokens` is TILE or 1, a constant where this is called. Every third row has a pointer of its own, and its followers
 * are one and two strides from it: a pointer for each row would be more than a processor has registers for. */
INLINE void tile_of_floats(int tokens, const char *rows, ptrdiff_t stride, const float *panel, ptrdiff_t dims,
                           ahead next, float *best) {
  const char *third[TILE / 3] = {rows, rows + 3 * stride, rows + 6 * stride, rows + 9 * stride};
  floats sums[TILE] = {0};
  for (ptrdiff_t c = 0; c < dims; c++) {
    floats query = load(panel + c * LANES);
    __builtin_prefetch(next.place + c * next.step, 0, 2);
#pragma GCC unroll 12
    for (int t = 0; t < tokens; t++) sums[t] += *(const loose_float *)(third[t / 3] + t % 3 * stride) * query;
    for (int group = 0; group < TILE / 3; group++) third[group] += sizeof(float);
  }
  floats greatest = load(best);
  for (int t = 0; t < tokens; t++) greatest = greater(sums[t], greatest);
  store(best, greatest);
}

static void compare_floats(const char *rows, ptrdiff_t count, const query_panels *q, ahead next) {
  ptrdiff_t stride = (ptrdiff_t)sizeof(float) * q->dims;
  for (ptrdiff_t lane = 0; lane < q->lanes; lane += LANES) {
    const float *panel = q->panels + lane * q->dims;
    for (ptrdiff_t first = 0; first < count; first += count < TILE ? 1 : TILE) {
      if (count < TILE)
        tile_of_floats(1, rows + first * stride, stride, panel, q->dims, next, q->best + lane);
      else /* the last tile may compare some tokens again */
        tile_of_floats(TILE, rows + (first + TILE <= count ? first : count - TILE) * stride, stride, panel, q->dims,
                       next, q->best + lane);
      next.place += q->dims * next.step;
    }
  }
}

#if defined(DOT_OF_BYTES)
INLINE void tile_of_bytes(const char *rows, ptrdiff_t stride, const int8_t *panel, ptrdiff_t quads, ints offset,
                          ahead next, ints sums[TILE]) {
  const char *third[TILE / 3] = {rows, rows + 3 * stride, rows + 6 * stride, rows + 9 * stride};
  for (int t = 0; t < TILE; t++) sums[t] = -offset;
  for (ptrdiff_t c = 0; c < quads; c++) {
    ints query = load_ints(panel + c * 4 * LANES);
    __builtin_prefetch(next.place + c * next.step, 0, 2);
#pragma GCC unroll 12
    for (int t = 0; t < TILE; t++) {
      int32_t four;
      memcpy(&four, third[t / 3] + t % 3 * stride, sizeof four);
      sums[t] = DOT_OF_BYTES(sums[t], four - (ints){0}, query);
    }
    for (int group = 0; group < TILE / 3; group++) third[group] += sizeof(int32_t);
  }
}

/* Copy the steps of rows as rows of whole quads; they begin at -LEAST_STEP where the instruction wants them unsigned. */
static void copy_steps(enum kind kind, const char *rows, ptrdiff_t count, ptrdiff_t dims, ptrdiff_t stride, char *to) {
  if (kind == INT4 || kind == INT2) { /* whole blocks: what is written after a row's end, the next row writes again */
    for (ptrdiff_t row = 0; row < count; row++, rows += width_of(kind, dims), to += stride)
      if (kind == INT4)
        expand(INT4, rows, rows, dims, (char)LEAST_STEP, to);
      else
        expand(INT2, rows, rows, dims, (char)LEAST_STEP, to);
    return;
  }
  if (dims == stride) {
    count *= dims;
    for (ptrdiff_t i = 0; i < count; i++) to[i] = (char)(rows[i] ^ LEAST_STEP);
    return;
  }
  for (ptrdiff_t row = 0; row < count; row++)
    for (ptrdiff_t c = 0; c < stride; c++) to[row * stride + c] = c < dims ? (char)(rows[row * dims + c] ^ LEAST_STEP) : 0;
}

/* Raise a panel's greatest products by those of the tokens whose rounded ones come near the greatest of a block. */
INLINE void decide(enum kind kind, const char *rows, const loose_float *factors, ptrdiff_t count, const query_panels *q,
                   ptrdiff_t lane, floats greatest) {
  floats errors = load(q->errors + lane);
  floats limit = greater(greatest - 2 * errors, load(q->best + lane) - errors);
  float limits[LANES];
  store(limits, limit);
  unsigned lanes = q->count - lane < LANES ? (1u << (q->count - lane)) - 1 : (unsigned)((UINT64_C(1) << LANES) - 1);
  for (ptrdiff_t t = 0; t < count; t++) {
    unsigned reached = at_least(load(q->found + t * LANES), load(limits)) & lanes;
    for (; reached; reached &= reached - 1) {
      int l = __builtin_ctz(reached);
      float exact[FEW], *best = q->best + lane + l;
      const char *row = rows + t * width_of(kind, q->dims);
      if (is_coded(kind)) {
        expand(kind, row, row, q->dims, 0, q->row);
        row = q->row;
      }
      dots(INT8, 1, row, row, q->dims, q->vectors + (lane + l) * q->dims, exact);
      float product = exact[0] * factors[t];
      if (product > *best) *best = product;
      if (*best - q->errors[lane + l] > limits[l]) limits[l] = *best - q->errors[lane + l];
    }
  }
}

static void compare_bytes(enum kind kind, const char *rows, const loose_float *factors, ptrdiff_t count,
                          const query_panels *q, ahead next) {
  ptrdiff_t stride = 4 * q->quads;
  copy_steps(kind, rows, count, q->dims, stride, q->block);
  for (ptrdiff_t lane = 0; lane < q->lanes; lane += LANES) {
    floats greatest = all(-__builtin_inff()), units = load(q->units + lane);
    ints offset = load_ints(q->offsets + lane);
    for (ptrdiff_t first = 0; first < count; first += TILE) {
      ints sums[TILE]; /* rows after the last one hold what was there before, and are not looked at */
      tile_of_bytes(q->block + first * stride, stride, q->steps + lane * stride, q->quads, offset, next, sums);
      next.place += q->quads * next.step;
      for (ptrdiff_t t = 0; t < TILE && first + t < count; t++) {
        floats cosine = as_floats(sums[t]) * units * factors[first + t];
        store(q->found + (first + t) * LANES, cosine);
        greatest = greater(cosine, greatest);
      }
    }
    decide(kind, rows, factors, count, q, lane, greatest);
  }
}
#endif

static void widen(const char *halves, ptrdiff_t count, float *to) {
  ptrdiff_t i = 0;
  for (; i + LANES <= count; i += LANES) store(to + i, load_halves(halves + 2 * i));
  for (; i < count; i++) to[i] = value_as(FLOAT16, halves, i);
}

/* Write the greatest product of every query vector with a document's tokens. */
static void greatest_products(const document_row *document, const char *following, const query_panels *q, float *out) {
  enum kind kind = (enum kind)document->kind;
  ptrdiff_t width = width_of(kind, q->dims), tiles = q->lanes / LANES * (BLOCK / TILE);
  for (ptrdiff_t lane = 0; lane < q->lanes; lane++) q->best[lane] = -__builtin_inff();
  for (ptrdiff_t first = 0; first < document->length; first += BLOCK) {
    ptrdiff_t count = document->length - first < BLOCK ? document->length - first : BLOCK;
    const char *rows = (const char *)(intptr_t)document->values + first * width;
    ahead next = {first + count < document->length ? rows + count * width : following, 0};
    ptrdiff_t pieces = tiles * (kind >= INT8 ? q->quads : q->dims);
    next.step = (BLOCK * width + pieces - 1) / pieces;
    const loose_float *factors = (const loose_float *)(intptr_t)document->factors + first;
    float *wide = (float *)(void *)q->block;
    switch (kind) {
      case FLOAT32:
        compare_floats(rows, count, q, next);
        break;
      case FLOAT16:
        widen(rows, count * q->dims, wide);
        compare_floats(q->block, count, q, next);
        break;
      default:
#if defined(DOT_OF_BYTES)
        compare_bytes(kind, rows, factors, count, q, next);
#else
        for (ptrdiff_t t = 0; t < count; t++) {
          const char *row = rows + t * width;
          if (is_coded(kind)) {
            expand(kind, row, row, q->dims, 0, q->row);
            row = q->row;
          }
          for (ptrdiff_t c = 0; c < q->dims; c++) wide[t * q->dims + c] = value_as(INT8, row, c) * factors[t];
        }
        compare_floats(q->block, count, q, next);
#endif
    }
  }
  memcpy(out, q->best, sizeof(float) * (size_t)q->count);
}

/* Bring query vectors into panels, as they are and in steps. */
static void fill_panels(query_panels *q) {
  for (ptrdiff_t v = 0; v < q->lanes; v++) {
    ptrdiff_t panel = v / LANES * LANES, lane = v % LANES;
    const float *vector = v < q->count ? q->vectors + v * q->dims : NULL;
    float *values = q->panels + panel * q->dims + lane;
    for (ptrdiff_t c = 0; c < q->dims; c++) values[c * LANES] = vector ? vector[c] : 0;
#if defined(DOT_OF_BYTES)
    float greatest = 0, squares = 0;
    for (ptrdiff_t c = 0; vector && c < q->dims; c++)
      if (fabsf(vector[c]) > greatest) greatest = fabsf(vector[c]);
    float unit = greatest > 0 ? greatest / GREATEST_STEP : 1;
    int32_t total = 0;
    int8_t *steps = q->steps + panel * 4 * q->quads + 4 * lane;
    for (ptrdiff_t c = 0; c < 4 * q->quads; c++) {
      float value = vector && c < q->dims ? vector[c] : 0, step = rintf(value / unit);
      squares += (step * unit - value) * (step * unit - value);
      total += (int32_t)step;
      steps[c / 4 * 4 * LANES + c % 4] = (int8_t)step;
    }
    q->units[v] = unit;
    q->errors[v] = 1.01f * sqrtf(squares) + ROUNDING;
    q->offsets[v] = LEAST_STEP * total;
#endif
  }
}
