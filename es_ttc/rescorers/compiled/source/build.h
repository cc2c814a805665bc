/* All of the loops; included once for each kind of processor, which has defined LANES, BUILD and NAME. */
#include "simd.h"
#include "room.h"
#include "transform.h"
#include "smoothing.h"
#include "codes.h"
#include "digits.h"
#include "products.h"
#include "tiles.h"
#include "greatest.h"
#include "lengths.h"

const kernels BUILD = {NAME, room, greatest_cosines, lengths_room, smoothed_lengths};
