/* For every other processor: registers of four, which 64-bit ARM (NEON) and x86-64 have in any case. */
#define LANES 4
#define BUILD portable_kernels
#define NAME "portable"
#include "build.h"
