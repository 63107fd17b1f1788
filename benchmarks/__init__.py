"""How quick chatkeep is, beside the least that the raw driver can do: ``python -m benchmarks`` or ``nox -s bench``.

Every row is a ratio of two things measured in one run, in turns, so that what else the machine does meets both sides.
The number of a side is the median over its calls, that of a row the median over its rounds, each with fresh files.

=====================  ================================================================================
module                 what it holds
=====================  ================================================================================
`turns`                the text: turns of a recorded conversation
`measure`              medians of two sides in turns
`raw`                  the yardsticks: aiosqlite in one hop per operation, and sqlite3 in this process
`rows`                 what is measured, each with the bar that `tests/sqlite/test_speed.py` holds it to
`report`               the table as text, and as a picture
=====================  ================================================================================
"""
