"""Mergeable statistics in place of rows: gathered, merged, written, and read as domains."""
