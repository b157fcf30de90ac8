"""A version's way to market and off it again: upload, verification, review, publication, withdrawal.

The one package that writes to `catalog` and `vault` together; neither of the two knows it. Writes are in `services`.
"""
