"""How an adapter gets in: checked (plan.py), given pages (reservation.py), copied (writing.py).

quantize.py is for 8-bit pages, staging.py for GPUs. Imports storage, memory, spec and errors alone: no pool.
"""
