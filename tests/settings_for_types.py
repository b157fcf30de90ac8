"""Django settings for the type checker: the plugin imports them, and they need an environment, but nothing runs."""

import os

os.environ.update(
    {
        "DATABASE_URL": "postgresql://types@localhost/types",
        "VALKEY_URL": "redis://localhost",
        "SECRET_KEY": "types" * 8,
        "API_KEY_PEPPER": "types" * 8,
        "ROOT_KEY_FILE": "/nonexistent/root.key",
        "BLOB_DIR": "/nonexistent/blobs",
        "PUBLIC_URL": "http://localhost:8000",
        "EMAIL_URL": "smtp://127.0.0.1:9",
        "STRIPE_API_KEY": "sk_test_types",
        "STRIPE_WEBHOOK_SECRET": "whsec_types",
    }
)

from marketplace.config.settings import *  # noqa: F403
