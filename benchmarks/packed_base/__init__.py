"""A base in 4 and 8 bits beside its bfloat16 twin."""
