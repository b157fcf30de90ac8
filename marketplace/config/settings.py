"""Django settings. Nothing is read from the environment here except through env.py."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from marketplace.config.env import Env
from marketplace.config.mail import SECONDS as MAIL_SECONDS

ENV = Env.load()
BASE_DIR = Path(__file__).resolve().parents[2]


def _database(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.get("host", [parts.hostname or ""])[0],  # ?host=/folder names a unix socket's folder
        "PORT": str(parts.port or query.get("port", ["5432"])[0]),
        # A streaming response would pin a persistent connection for its whole life: close after each request,
        # and let the pool make that cheap.
        "CONN_MAX_AGE": 0,
        # Pages, work in the background and quotes of a web process have 14 places in all (docs/operations.md).
        "OPTIONS": {"pool": {"min_size": 0, "max_size": 16, "timeout": 10}, "connect_timeout": 5},
    }


SECRET_KEY = ENV.secret_key
DEBUG = ENV.debug
PUBLIC_URL = ENV.public_url
_HOST = urlsplit(PUBLIC_URL).hostname or "localhost"
# Workers and Prometheus ask by the address that API_URL names.
ALLOWED_HOSTS = [_HOST, urlsplit(ENV.api_url).hostname or _HOST, "127.0.0.1", "localhost", "[::1]"]
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "allauth",
    "allauth.account",
    "allauth.idp.oidc",
    "allauth.mfa",
    "allauth.usersessions",
    "django_htmx",
    "drf_spectacular",
    "rest_framework",
    "marketplace.config",
    "marketplace.accounts",
    "marketplace.teams",
    "marketplace.alerts",
    "marketplace.catalog",
    "marketplace.protection",
    "marketplace.access",
    "marketplace.vault",
    "marketplace.publishing",
    "marketplace.receipts",
    "marketplace.watch",
    "marketplace.evals",
    "marketplace.promises",
    "marketplace.prompts",
    "marketplace.responses",
    "marketplace.trials",
    "marketplace.jobs",
    "marketplace.operations",
    "marketplace.planning",
    "marketplace.privacy",
    "marketplace.api",
    "marketplace.web",
    "billing",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "marketplace.web.middleware.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "marketplace.web.middleware.SeenSessionsMiddleware",
]

ROOT_URLCONF = "marketplace.config.urls"
ASGI_APPLICATION = "marketplace.config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "marketplace.web.context.navigation",
            ],
        },
    }
]

DATABASES = {"default": _database(ENV.database_url)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": ENV.valkey_url}}

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["marketplace.accounts.backend.SealedBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "optional"  # for signing in; `accounts.verification` closes publishing and spending
ACCOUNT_EMAIL_CONFIRMATION_AUTHENTICATED_REDIRECT_URL = "web:dashboard"
ACCOUNT_EMAIL_NOTIFICATIONS = True  # a changed password, a new passkey and the like are mailed
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_REAUTHENTICATION_TIMEOUT = 15 * 60  # `accounts.freshness`
ACCOUNT_ADAPTER = "marketplace.teams.adapter.TeamAccountAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = PUBLIC_URL.startswith("http://")  # browsers allow it for localhost alone
MFA_FORMS = {"add_webauthn": "marketplace.web.passkey_form.PasskeyForm"}
MFA_TOTP_ISSUER = "Intarsia"
# A code is good half a minute before and after its own: people type, and clocks differ (RFC 6238, section 5.2).
MFA_TOTP_TOLERANCE = 1
MFA_ADAPTER = "marketplace.accounts.second_factor.EncryptedFactors"
MFA_ALLOW_UNVERIFIED_EMAIL = True  # as ACCOUNT_EMAIL_VERIFICATION: nobody is kept from a second factor
IDP_OIDC_DEVICE_CODE_EXPIRES_IN = 10 * 60  # `accounts.device_login`
IDP_OIDC_ACCESS_TOKEN_EXPIRES_IN = 2 * 60  # it is traded for an API key at once
IDP_OIDC_RATE_LIMITS = {"device_code": "20/m/ip", "device_user_code": "20/m/ip"}
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "web:dashboard"
EMAIL_BACKEND = ENV.mail.backend
EMAIL_HOST, EMAIL_PORT = ENV.mail.host, ENV.mail.port
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = ENV.mail.user, ENV.mail.password
EMAIL_USE_TLS, EMAIL_USE_SSL = ENV.mail.starttls, ENV.mail.tls
EMAIL_FILE_PATH = ENV.mail.folder or None
EMAIL_TIMEOUT = MAIL_SECONDS
DEFAULT_FROM_EMAIL = SERVER_EMAIL = ENV.email_from or f"Intarsia <no-reply@{_HOST}>"
SUPPORT_EMAIL = ENV.support_email or f"support@{_HOST}"

SESSION_ENGINE = "marketplace.accounts.session_store"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PUBLIC_URL.startswith("https://")
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True  # serves app static files without a collectstatic step
WHITENOISE_AUTOREFRESH = DEBUG

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True

DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 2**20
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "marketplace.api.authentication.ApiKeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "marketplace.api.schema.OperationSchema",
    "DEFAULT_PAGINATION_CLASS": "marketplace.api.pagination.CreatedCursorPagination",
    "EXCEPTION_HANDLER": "marketplace.api.errors.exception_handler",
    "PAGE_SIZE": 50,
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Intarsia",
    "DESCRIPTION": "Predictions below /v1, in OpenAI's form, and everything else below /api/v1.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "marketplace.api.schema.add_the_rest",
    ],
    "ENUM_NAME_OVERRIDES": {  # several operations share them
        "Component": "marketplace.operations.models.Component",
        "MemberRole": "marketplace.accounts.models.Membership.Role",
        "ComponentState": "marketplace.api.views.status.STATES",
        "OutageKind": "marketplace.operations.models.Incident.Kind",
        "OutageState": "marketplace.operations.models.Update.State",
        "DisputeState": "billing.models.refunds.Dispute.State",
        "PaperKind": "billing.models.papers.Paper.Kind",
        "PromiseKind": "marketplace.promises.models.PromiseKind",
        "PlanState": "marketplace.planning.models.Plan.State",
        "PlanFileKind": "marketplace.planning.models.PlanFile.Kind",
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": ENV.log_level},
    "loggers": {name: {"level": "WARNING"} for name in ("httpx", "stripe")},  # a line a call says nothing
}
