"""One replica as several ranks (tensor parallelism). Rank 0 is the replica's process; the others are its children."""
