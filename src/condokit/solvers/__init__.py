"""How a map is found: searches, their starts, and the units they work in."""
