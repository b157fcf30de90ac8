"""The fault run: processes die, replicas lie, clients hang up; afterwards every prediction is audited by its id."""
