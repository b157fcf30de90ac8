"""Users, organizations, memberships, API keys. May import nothing of this project."""
