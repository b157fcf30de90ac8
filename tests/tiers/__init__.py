"""How the suite is run: what each test costs, in which order and on which worker it runs, which shard it belongs to.

`plugin` is loaded by pytest; `run` is `make test` and `make test-all`; `costs` judges what a run cost.
"""

SERVICES = "INTARSIA_TEST_SERVICES"  # in the environment: the folder that all processes of a session share
