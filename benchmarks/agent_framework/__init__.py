"""What a longer history costs an agent: ``python -m benchmarks.agent_framework`` or ``nox -s bench``.

chatkeep's history provider on SQLite beside those that the framework has, with 10, 100, 1,000 and 10,000 messages
stored. Of a provider, the lengths are measured in turns, so that what else the machine does meets all of them; the
providers one after the other, in each round anew. The number of a length is the median over its calls; of a provider,
the round whose growth is the median one counts.

On disk for good is, when a save returns, only what chatkeep has stored: the file provider leaves that to the operating
system, and Redis to its configuration.

=====================  ================================================================================
module                 what it holds
=====================  ================================================================================
`providers`            the history providers, or why one is missing here
`rows`                 what is measured, with the bar that `test_speed.py` of the adapter holds it to
`report`               the table as text, and as a picture
=====================  ================================================================================
"""
