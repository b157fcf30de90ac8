"""One state machine over every operation of the books, against a model made of plain dicts (docs/ledger.md).

`model.py` is what the books must say. Each of the other modules has the operations of one noun: it calls the product,
and tells the model what must follow. `test_machine.py` puts them together and compares both after each step.
"""
