"""Which pages are free: an allocator with reference counts, no tensors."""

from __future__ import annotations

from collections.abc import Sequence

from lora_kernels.errors import PoolFullError


class PageAllocator:
    """Hands out page ids 0..num_pages-1. A page is shared when a blend lists it, and free again at its last release."""

    def __init__(self, num_pages: int) -> None:
        self._references = [0] * num_pages
        self._free = num_pages

    @property
    def free(self) -> int:
        """Number of free pages."""
        return self._free

    def free_ids(self) -> list[int]:
        """Return the free pages, ascending."""
        return [page for page, references in enumerate(self._references) if not references]

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, adjacent and ascending where a gap allows (the torch path then needs no weight copy).

        Raises PoolFullError, taking nothing.
        """
        if count > self._free:
            raise PoolFullError(f"adapter needs {count} pages, {self._free} are free")
        run: list[int] = []
        for page, references in enumerate(self._references):
            if len(run) == count:
                break
            run = [] if references else [*run, page]
        if len(run) < count:
            run = [page for page, references in enumerate(self._references) if not references][:count]
        for page in run:
            self._references[page] = 1
        self._free -= count
        return run

    def share(self, pages: Sequence[int]) -> None:
        """Add one reference to each page, which must be held already."""
        for page in pages:
            self._references[page] += 1

    def release(self, pages: Sequence[int]) -> list[int]:
        """Drop one reference to each page and return those that became free."""
        freed = []
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                freed.append(page)
        self._free += len(freed)
        return freed
