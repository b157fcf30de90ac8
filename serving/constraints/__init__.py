"""Grammars that completions must follow: JSON Schema, regular expressions and Lark. May import `core` and `errors`."""

from serving.constraints.compiler import GrammarCompiler, TenantGrammars
from serving.constraints.grammar import GrammarError, GrammarSpec, SchemaPart
from serving.constraints.schemas import embedded_schema, json_spec

__all__ = [
    "GrammarCompiler",
    "GrammarError",
    "GrammarSpec",
    "SchemaPart",
    "TenantGrammars",
    "embedded_schema",
    "json_spec",
]
