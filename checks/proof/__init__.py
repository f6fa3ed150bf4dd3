"""The whole table of training cases: each a real Megatron run, gone on with by real MaxText.

    python -m checks.proof --releases DIR --python PY

``table.ROWS`` is the table. ``make proof`` runs it: hours on two cores; every row that is done is
kept, so it can be stopped and started again.
"""
