"""The migrations of an empty database take a third of the time: they render fewer model classes.

After each operation Django renders the changed model anew, and all that are related to it, which here is nearly every
model: two thirds of the time of `migrate`. Operations on a new model, or on its indexes and constraints, need that
model's class alone. Django marks such a state as delayed, and renders all of it before code of a migration sees it;
operations on relations render all of it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db.migrations.state import ProjectState


@contextmanager
def rendering_less() -> Iterator[None]:
    """Render no more than the next operation needs, within the block; for databases without rows."""
    state: Any = ProjectState  # the method is Django's own affair, and in no stubs
    djangos = state._find_reload_model
    state._find_reload_model = _models_to_render
    try:
        yield
    finally:
        state._find_reload_model = djangos


def _models_to_render(
    state: ProjectState, app_label: str, model_name: str, delay: bool = False
) -> set[tuple[str, str]]:
    """Return the models that are rendered again because this one changed; `delay`: not in what leads to others."""
    is_new = model_name not in state.apps.all_models[app_label]
    if not is_new and not delay:
        return set(state.models)
    state.is_delayed = True
    return {(app_label, model_name)}
