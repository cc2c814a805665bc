"""What an index must carry: declarations, index bodies, and the spec kept in its mapping."""
