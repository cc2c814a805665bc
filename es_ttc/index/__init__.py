"""An index and its features: what it must carry, how documents are written, how an existing index gets them."""
