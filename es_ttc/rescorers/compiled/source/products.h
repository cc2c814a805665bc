/* Inner products of a document's tokens with up to FEW query vectors at a time, token by token: (roles, length). Where
 * the next document's tokens are is known, so that they are on their way before this one's end. */

INLINE floats load_as(enum kind kind, const char *row, ptrdiff_t c) {
  switch (kind) {
    case FLOAT32:
      return load((const loose_float *)row + c);
    case FLOAT16:
      return load_halves(row + 2 * c);
    default:
      return load_bytes(row + c);
  }
}

INLINE float value_as(enum kind kind, const char *row, ptrdiff_t c) {
  switch (kind) {
    case FLOAT32:
      return ((const loose_float *)row)[c];
    case FLOAT16: {
      uint16_t bits;
      memcpy(&bits, row + 2 * c, sizeof bits);
      return half(bits);
    }
    default:
      return (float)((const int8_t *)row)[c];
  }
}

/* `roles` is a constant where this is called, so the sums stay in registers: four at least, because an addition waits
 * some four cycles for the one before. */
INLINE void dots(enum kind kind, int roles, const char *row, const char *ahead, ptrdiff_t dims, const float *queries,
                 float out[FEW]) {
  const int ways = roles == 1 ? 4 : roles < 4 ? 2 : 1;
  floats sums[FEW][4] = {0};
  ptrdiff_t c = 0;
  for (; c + ways * LANES <= dims; c += ways * LANES)
    for (int way = 0; way < ways; way++) {
      __builtin_prefetch(ahead + width_of(kind, c + way * LANES));
      floats token = load_as(kind, row, c + way * LANES);
      for (int r = 0; r < roles; r++) sums[r][way] += token * load(queries + r * dims + c + way * LANES);
    }
  for (; c + LANES <= dims; c += LANES)
    for (int r = 0; r < roles; r++) sums[r][0] += load_as(kind, row, c) * load(queries + r * dims + c);
  for (int r = 0; r < roles; r++) {
    floats total = ways == 4 ? (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3])
                             : ways == 2 ? sums[r][0] + sums[r][1] : sums[r][0];
    out[r] = sum(total);
    for (ptrdiff_t rest = c; rest < dims; rest++) out[r] += value_as(kind, row, rest) * queries[r * dims + rest];
  }
}

/* Query vectors, as they are and in digits. */
typedef struct {
  const float *vectors; /* (roles, dims) */
  ptrdiff_t roles, dims;
#if defined(DOT_OF_BYTES)
  query_digits digits;
#else
  char *row; /* (dims,) levels of a row in codes, in whole blocks */
#endif
} query_vectors;

static query_vectors vectors_in(const float *vectors, ptrdiff_t roles, ptrdiff_t dims, cutter *room) {
  query_vectors q = {.vectors = vectors, .roles = roles, .dims = dims};
#if defined(DOT_OF_BYTES)
  q.digits = digits_in(roles, dims, room);
#else
  q.row = cut(room, (size_t)whole_blocks(dims));
#endif
  return q;
}

static void fill_vectors(const query_vectors *q) {
#if defined(DOT_OF_BYTES)
  fill_digits(q->vectors, q->roles, q->dims, &q->digits);
#else
  (void)q;
#endif
}

INLINE void products_as(enum kind kind, int roles, const document_row *document, const char *following,
                        const query_vectors *q, ptrdiff_t first, float *out) {
  ptrdiff_t width = width_of(kind, q->dims);
  const char *row = (const char *)(intptr_t)document->values, *end = row + document->length * width;
  const loose_float *factors = (const loose_float *)(intptr_t)document->factors;
  for (ptrdiff_t t = 0; t < document->length; t++, row += width) {
    float found[FEW];
    const char *ahead = end - row > AHEAD ? row + AHEAD : following + (AHEAD - (end - row));
#if defined(DOT_OF_BYTES)
    if (kind >= INT8)
      integer_dots(kind, roles, row, ahead, q->dims, &q->digits, first, found);
    else
      dots(kind, roles, row, ahead, q->dims, q->vectors + first * q->dims, found);
#else
    const char *values = row;
    if (is_coded(kind)) {
      expand(kind, row, ahead, q->dims, 0, q->row);
      values = ahead = q->row;
    }
    dots(kind < INT8 ? kind : INT8, roles, values, ahead, q->dims, q->vectors + first * q->dims, found);
#endif
    for (int r = 0; r < roles; r++) out[r * document->length + t] = kind >= INT8 ? found[r] * factors[t] : found[r];
  }
}

#define FOR_ROLES(KIND)                                           \
  case KIND:                                                      \
    switch (left) {                                               \
      case 1:                                                     \
        products_as(KIND, 1, document, following, q, first, out); \
        break;                                                    \
      case 2:                                                     \
        products_as(KIND, 2, document, following, q, first, out); \
        break;                                                    \
      case 3:                                                     \
        products_as(KIND, 3, document, following, q, first, out); \
        break;                                                    \
      default:                                                    \
        products_as(KIND, 4, document, following, q, first, out); \
    }                                                             \
    break;

static void products(const document_row *document, const char *following, const query_vectors *q, float *out) {
  for (ptrdiff_t first = 0; first < q->roles; first += FEW) {
    ptrdiff_t left = q->roles - first;
    switch (document->kind) {
      FOR_ROLES(FLOAT32)
      FOR_ROLES(FLOAT16)
      FOR_ROLES(INT8)
      FOR_ROLES(INT4)
      FOR_ROLES(INT2)
    }
    out += FEW * document->length;
  }
}
#undef FOR_ROLES
