"""Studies of many batches: `BatchAdapter` beside ComBat, Harmony and plain corrections."""
