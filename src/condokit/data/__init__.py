"""What the user gave: tables, roles of their columns, and rows of two domains."""
