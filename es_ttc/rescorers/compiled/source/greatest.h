/* Greatest cosines of documents with query vectors. */
/* What a call computes in. */
typedef struct {
  query_vectors queries; /* those that are multiplied token by token */
  query_panels late;
  batch smoothed;
  float *signals; /* LANES + 1 documents' products, (roles, longest) each: those of waiting signals, and one more */
  float *norms;   /* and their norms, where they are stored in steps: (scales, longest) each */
  ptrdiff_t longest;
} places;

static ptrdiff_t tiled(const task *of) { return of->plain > FEW ? of->plain : 0; }

static ptrdiff_t scales_with_norms(const task *of) { return of->smoothing + (of->mean ? 1 : 0); }

static places places_in(const task *of, cutter *room) {
  places p = {0};
  ptrdiff_t size = 0, slots = 0;
  for (ptrdiff_t k = 0; k < of->count; k++) {
    if (of->documents[k].length > p.longest) p.longest = of->documents[k].length;
    if (of->documents[k].size > size) size = of->documents[k].size;
    if (of->documents[k].ranges) slots = LANES + 1;
  }
  p.queries = vectors_in(of->queries, of->roles - tiled(of), of->dims, room);
  p.signals = cut(room, sizeof(float) * (size_t)((LANES + 1) * p.queries.roles * p.longest));
  p.norms = cut(room, sizeof(float) * (size_t)(slots * scales_with_norms(of) * p.longest));
  p.smoothed.floor = of->floor;
  p.smoothed.scales = of->smoothing;
  p.smoothed.apart = of->scales > 1 ? of->roles : 0;
  p.smoothed.real = cut(room, sizeof(floats) * (size_t)size);
  p.smoothed.imag = cut(room, sizeof(floats) * (size_t)size);
  p.smoothed.one = cut(room, sizeof(floats) * (size_t)size);
  p.smoothed.other = cut(room, sizeof(floats) * (size_t)size);
  query_panels *late = &p.late;
  late->count = tiled(of);
  late->dims = of->dims;
  late->lanes = (late->count + LANES - 1) / LANES * LANES;
  late->quads = (of->dims + 3) / 4;
  late->vectors = of->queries + p.queries.roles * of->dims;
  if (late->count) {
    size_t lanes = (size_t)late->lanes, dims = (size_t)(4 * late->quads);
    late->panels = cut(room, sizeof(float) * lanes * dims);
    late->steps = cut(room, lanes * dims);
    late->units = cut(room, sizeof(float) * lanes);
    late->errors = cut(room, sizeof(float) * lanes);
    late->offsets = cut(room, sizeof(int32_t) * lanes);
    late->best = cut(room, sizeof(float) * lanes);
    late->block = cut(room, sizeof(float) * BLOCK * dims);
    late->found = cut(room, sizeof(float) * BLOCK * LANES);
    late->row = cut(room, (size_t)whole_blocks(of->dims));
  }
  return p;
}

static size_t room(const task *of) {
  cutter nothing = {NULL, LINE};
  places_in(of, &nothing);
  return nothing.used;
}

/* The greatest cosine at the two scales that need no convolution; minus infinity where neither counts. */
static float endpoints(const task *of, const document_row *document, const float *signal, const loose_float *norms,
                       int identity, int mean) {
  ptrdiff_t length = document->length;
  float best = identity ? greatest(signal, length, 1) : -__builtin_inff();
  if (mean) { /* one number divided by all norms: by the least of them, or the greatest where it is negative */
    norms += of->smoothing * length;
    float whole = total(signal, length) / (float)length, sign = whole < 0 ? 1 : -1;
    float norm = sign * greatest(norms, length, sign);
    float cosine = whole / (norm > of->floor ? norm : of->floor);
    if (cosine > best) best = cosine;
  }
  return best;
}

/* Have a signal smoothed by all scales, sooner or later. */
static void smooth(const document_row *document, const float *signal, const loose_float *norms, float *best,
                   batch *waiting) {
  if (waiting->plan.size != document->size || waiting->count == LANES) run(waiting);
  waiting->plan = plan_at((const void *)(intptr_t)document->plan, document->size);
  waiting->signals[waiting->count++] = (smoothed_signal){
      .signal = signal,
      .spectra = (const float *)(intptr_t)document->spectra,
      .norms = norms,
      .best = best,
      .length = document->length,
  };
}

/* The norms of a document as numbers, (scales, length): where they are, or brought to `room` from their steps. */
static const loose_float *norms_of(const task *of, const document_row *document, float *room) {
  if (!document->ranges) return (const loose_float *)(intptr_t)document->norms;
  const uint8_t *steps = (const uint8_t *)(intptr_t)document->norms;
  const loose_float *range = (const loose_float *)(intptr_t)document->ranges;
  float *to = room;
  for (ptrdiff_t scale = 0; scale < scales_with_norms(of); scale++, range += 2)
    for (ptrdiff_t t = 0; t < document->length; t++) {
      float root = range[0] + range[1] * (float)*steps++;
      *to++ = root * root;
    }
  return room;
}

static void greatest_cosines(const task *of, void *memory) {
  cutter room = {aligned(memory), 0};
  places p = places_in(of, &room);
  ptrdiff_t smoothed = of->roles - of->plain;
  fill_vectors(&p.queries);
  if (p.late.count) fill_panels(&p.late);
  for (ptrdiff_t k = 0; k < of->count; k++) {
    const document_row *document = of->documents + k;
    float *out = of->out + k * of->scales * of->roles;
    float *signals = p.signals + k % (LANES + 1) * p.queries.roles * p.longest;
    const loose_float *norms =
        norms_of(of, document, p.norms + k % (LANES + 1) * scales_with_norms(of) * p.longest);
    const char *following = (const char *)(intptr_t)of->documents[k + 1 < of->count ? k + 1 : k].values;
    products(document, following, &p.queries, signals);
    if (p.late.count) greatest_products(document, following, &p.late, out + p.queries.roles);
    for (ptrdiff_t role = 0; role < p.queries.roles; role++) {
      const float *signal = signals + role * document->length;
      if (role >= smoothed) {
        out[role] = endpoints(of, document, signal, norms, 1, 0);
        continue;
      }
      if (of->scales == 1) {
        out[role] = endpoints(of, document, signal, norms, of->identity, of->mean);
      } else {
        for (ptrdiff_t scale = 0; scale < of->scales; scale++) out[scale * of->roles + role] = -__builtin_inff();
        if (of->identity) out[role] = endpoints(of, document, signal, norms, 1, 0);
        if (of->mean) out[(of->scales - 1) * of->roles + role] = endpoints(of, document, signal, norms, 0, 1);
      }
      float *first = out + role + (of->scales > 1 && of->identity ? of->roles : 0);
      if (of->smoothing) smooth(document, signal, norms, first, &p.smoothed);
    }
  }
  run(&p.smoothed);
}
