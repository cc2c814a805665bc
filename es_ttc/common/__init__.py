"""Small things without a home of their own, which know nothing of search."""
