"""Structured logs: one JSON object per line on standard error, from structlog and from the standard library alike.

Log lines contain request ids, digests, counts and times. Prompts, outputs, tickets and keys are never logged.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


def configure(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send every logger's lines to `stream` (default: standard error). Replaces the previous configuration."""
    shared: list[structlog.types.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for noisy in ("httpx", "httpcore", "uvicorn.error"):  # a line for every heartbeat says nothing
        logging.getLogger(noisy).setLevel(logging.WARNING)
