"""Writes. `listings`: models; `prices`: their prices; `derivation`: royalties; `bases`: base models;
`guards`: policies about personal data; `rollouts`: the version that a bare name means.
"""

from marketplace.catalog.services.base_places import add_base, remove_base
from marketplace.catalog.services.bases import (
    BaseFolder,
    add_checkpoint,
    list_base_model,
    read_base_folder,
    register_base,
    register_base_directory,
    register_reference,
)
from marketplace.catalog.services.derivation import DeclaredSource, derive_from, offer_derivation
from marketplace.catalog.services.guards import set_model_guards
from marketplace.catalog.services.listings import create_model, update_model
from marketplace.catalog.services.prices import set_price
from marketplace.catalog.services.rollouts import make_default, set_rollout, stop_rollout

__all__ = [
    "BaseFolder",
    "DeclaredSource",
    "add_base",
    "add_checkpoint",
    "create_model",
    "derive_from",
    "list_base_model",
    "make_default",
    "offer_derivation",
    "read_base_folder",
    "register_base",
    "register_base_directory",
    "register_reference",
    "remove_base",
    "set_model_guards",
    "set_price",
    "set_rollout",
    "stop_rollout",
    "update_model",
]
