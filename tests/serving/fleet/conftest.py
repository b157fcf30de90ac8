"""The platform's internal API for a fleet, as for one replica."""

from tests.serving.platform.conftest import platform_url

__all__ = ["platform_url"]
