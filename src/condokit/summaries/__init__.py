"""What a divergence is told of the data."""
