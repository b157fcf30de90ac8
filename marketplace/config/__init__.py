"""Settings, URLs, ASGI entry point and Celery app. Every environment variable is declared in env.py."""
