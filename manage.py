#!/usr/bin/env python3
"""Django's command line, with this project's settings."""

import os
import sys

if __name__ == "__main__":
    from sealed_weights.process import keep_memory_private

    keep_memory_private()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
