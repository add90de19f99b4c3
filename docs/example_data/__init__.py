"""Example tables, a module for each field."""
