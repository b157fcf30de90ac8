"""Where weights lie: a site's pages (site.py, blocks.py), slots that list pages (tables.py), free pages (pages.py).

All of it together is a pool's `PageStore` (store.py). Imports memory, batch, spec and errors alone.
"""
