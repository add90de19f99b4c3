"""What comes out: families of maps, the fitted map, its file and its errors."""
