/* Arrays cut one after the other from memory that the caller gives. */

enum { LINE = 64 }; /* bytes; arrays begin at multiples of it */

/* With no start it only adds up. */
typedef struct {
  char *start;
  size_t used;
} cutter;

static void *cut(cutter *room, size_t bytes) {
  void *here = room->start ? room->start + room->used : NULL;
  room->used += (bytes + LINE - 1) / LINE * LINE;
  return here;
}

static char *aligned(void *memory) { return (char *)(((uintptr_t)memory + LINE - 1) / LINE * LINE); }
