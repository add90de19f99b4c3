"""What the user gave: tables, the roles of their columns, and the rows of all domains."""
