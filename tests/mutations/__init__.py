"""Forty small faults, planted one at a time: does the quick tier notice?

    python -m tests.mutations                  all of them; the table at the end says which were caught, and by what
    python -m tests.mutations --list           the names
    python -m tests.mutations --only NAME …    some of them
    python -m tests.mutations -j 2             two at a time
    python -m tests.mutations --near           with the nearest tests alone: a quick first look at what is caught

`faults.py` has them: a file, its text, the text in its place, and the folders of tests that should notice. A fault is
planted in a copy of the working tree in a temporary folder, never in the tree itself, and those folders' tests of the
quick tier (`-m "not deep" -x`) run there. It is caught when a test fails that passes without it.

The forty were chosen before anybody looked for a test: slips in rules, states, filters, bounds, signs, locks and
orders that a person could make and a reviewer overlook. Twelve more are those that survived when this was first tried.
The exit status is 1 where fewer than nine of ten are caught, or where a fault's text is no longer in its file exactly
once; `test_list.py` says the latter in `make test` too. When a fault survives, the test that is missing is one for its
kind.
"""
