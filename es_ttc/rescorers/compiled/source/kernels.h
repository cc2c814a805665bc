/* What module.c and the builds share. */
#ifndef ES_TTC_KERNELS_H
#define ES_TTC_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* A float32 that may stand anywhere in memory, as those of stored documents do. */
typedef float loose_float __attribute__((aligned(1)));

enum kind { FLOAT32, FLOAT16, INT8, INT4, INT2 };

/* A document as es_ttc.rescorers.compiled.window packs it: addresses as int64, 0 where there is nothing. */
typedef struct {
  int64_t values;  /* (length, dims) of its kind; INT4 and INT2 as codes.h has them */
  int64_t factors; /* (length,) float32, of INT8, INT4 and INT2 */
  int64_t norms;   /* (scales, length) float32: those of the smoothing scales, then that of the mean; or uint8 steps */
  int64_t ranges;  /* (scales, 2) float32, of norms in steps: the least root, and what a step adds to it */
  int64_t spectra; /* (scales, size / 2 + 1) float32: the kernels', as smoothing.h has them */
  int64_t plan;    /* of the transforms, as transform.h has it */
  int64_t length;  /* tokens, 1 or more */
  int64_t size;    /* of the transform; 0 where nothing is smoothed */
  int64_t kind;
} document_row;

typedef struct {
  const document_row *documents; /* in ascending order of their sizes */
  ptrdiff_t count;
  const float *queries; /* (roles, dims) */
  ptrdiff_t roles, dims;
  ptrdiff_t plain;     /* how many of them, the last ones, are compared with the tokens themselves alone */
  ptrdiff_t smoothing; /* finite scales above 1 */
  int identity;        /* whether the tokens themselves count for the others */
  int mean;            /* whether the mean of all tokens counts */
  float floor;         /* least length to divide by */
  ptrdiff_t scales;    /* rows of out for each document: 1 for the greatest over all scales, or one for each */
  float *out;          /* (count, scales, roles), written; plain query vectors have the first row alone */
} task;

typedef struct {
  const loose_float *rows; /* (length, dims) */
  ptrdiff_t length, dims;
  const float *spectra; /* (scales, size / 2 + 1), as above */
  const void *plan;
  ptrdiff_t size, scales;
  float *out; /* (scales, length), written */
} lengths_task;

/* One build of the loops. The first of two functions returns the bytes that the second one computes in. */
typedef struct {
  const char *name;
  size_t (*room)(const task *);
  void (*greatest_cosines)(const task *, void *room);
  size_t (*lengths_room)(const lengths_task *);
  void (*smoothed_lengths)(const lengths_task *, void *room);
} kernels;

extern const kernels portable_kernels;
#if defined(__x86_64__)
extern const kernels avx2_kernels, avx512_kernels;
#elif defined(__aarch64__)
extern const kernels dotprod_kernels;
#endif

#endif
