/* Token vectors in codes of 4 or 2 bits, brought to the levels of int8 that the codes stand for: see
 * es_ttc/vectors/codes.py, which has the layout. */

enum { CODED = 64, REGISTERS = CODED / (4 * LANES) }; /* components of a block, and registers that hold them */

static const int8_t LEVELS_OF_4[16] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};
static const int8_t LEVELS_OF_2[16] = {-127, -38, 38, 127, -127, -38, 38, 127, -127, -38, 38, 127, -127, -38, 38, 127};

INLINE const int8_t *levels_of(enum kind kind) { return kind == INT4 ? LEVELS_OF_4 : LEVELS_OF_2; }

INLINE int is_coded(enum kind kind) { return kind == INT4 || kind == INT2; }

INLINE ptrdiff_t whole_blocks(ptrdiff_t dims) { return (dims + CODED - 1) / CODED * CODED; }

/* The bytes of a row. */
INLINE ptrdiff_t width_of(enum kind kind, ptrdiff_t dims) {
  switch (kind) {
    case FLOAT32:
      return 4 * dims;
    case FLOAT16:
      return 2 * dims;
    case INT8:
      return dims;
    case INT4:
      return whole_blocks(dims) / 2;
    default:
      return whole_blocks(dims) / 4;
  }
}

/* The levels of one block, in registers; their bits are turned over where `turned` has a bit. */
#if defined(__x86_64__) && LANES == 16
INLINE void expand_block(enum kind kind, const char *block, char turned, ints levels[REGISTERS]) {
  __m128i one = _mm_xor_si128(_mm_loadu_si128((const void *)levels_of(kind)), _mm_set1_epi8(turned));
  __m512i table = _mm512_broadcast_i32x4(one), codes;
  if (kind == INT4) {
    codes = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)block));
    codes = _mm512_srlv_epi32(codes, _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4));
    codes = _mm512_and_si512(codes, _mm512_set1_epi8(15));
  } else {
    codes = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)block));
    codes = _mm512_srlv_epi32(codes, _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6));
    codes = _mm512_and_si512(codes, _mm512_set1_epi8(3));
  }
  levels[0] = (ints)_mm512_shuffle_epi8(table, codes);
}
#elif defined(__x86_64__) && LANES == 8
INLINE void expand_block(enum kind kind, const char *block, char turned, ints levels[REGISTERS]) {
  __m128i one = _mm_xor_si128(_mm_loadu_si128((const void *)levels_of(kind)), _mm_set1_epi8(turned));
  __m256i table = _mm256_broadcastsi128_si256(one), low, high;
  if (kind == INT4) {
    low = _mm256_loadu_si256((const void *)block);
    high = _mm256_srli_epi32(low, 4);
  } else {
    __m256i codes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)block));
    low = _mm256_srlv_epi32(codes, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2));
    high = _mm256_srlv_epi32(codes, _mm256_setr_epi32(4, 4, 4, 4, 6, 6, 6, 6));
  }
  __m256i bits = _mm256_set1_epi8(kind == INT4 ? 15 : 3);
  levels[0] = (ints)_mm256_shuffle_epi8(table, _mm256_and_si256(low, bits));
  levels[1] = (ints)_mm256_shuffle_epi8(table, _mm256_and_si256(high, bits));
}
#elif defined(__aarch64__)
INLINE void expand_block(enum kind kind, const char *block, char turned, ints levels[REGISTERS]) {
  int8x16_t table = veorq_s8(vld1q_s8(levels_of(kind)), vdupq_n_s8((int8_t)turned));
  const int bits = kind == INT4 ? 4 : 2, bytes = CODED * bits / 8;
  const uint8x16_t mask = vdupq_n_u8((uint8_t)((1 << bits) - 1));
  for (int part = 0; part < 8 / bits; part++)
    for (int first = 0; first < bytes; first += 16) {
      uint8x16_t codes = vshlq_u8(vld1q_u8((const uint8_t *)block + first), vdupq_n_s8((int8_t)(-bits * part)));
      levels[(part * bytes + first) / 16] = (ints)vqtbl1q_s8(table, vandq_u8(codes, mask));
    }
}
#else
INLINE void expand_block(enum kind kind, const char *block, char turned, ints levels[REGISTERS]) {
  const int bits = kind == INT4 ? 4 : 2, bytes = CODED * bits / 8;
  char *to = (char *)levels;
  for (int part = 0; part < 8 / bits; part++)
    for (int i = 0; i < bytes; i++)
      to[part * bytes + i] = (char)(levels_of(kind)[(uint8_t)block[i] >> (bits * part) & ((1 << bits) - 1)] ^ turned);
}
#endif

/* A row, as whole blocks; what is `ahead` is read soon. `kind` is a constant where this is called in a loop. */
INLINE void expand(enum kind kind, const char *row, const char *ahead, ptrdiff_t dims, char turned, char *to) {
  ptrdiff_t bytes = kind == INT4 ? CODED / 2 : CODED / 4;
  for (ptrdiff_t c = 0; c < dims; c += CODED, row += bytes, ahead += bytes, to += CODED) {
    ints levels[REGISTERS];
    __builtin_prefetch(ahead, 0, 2);
    expand_block(kind, row, turned, levels);
    memcpy(to, levels, CODED);
  }
}
