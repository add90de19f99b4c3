"""Summaries of the data for divergences: moments, Gaussians, samples of rows."""
