"""How quick chatkeep is on Redis: ``python -m benchmarks.redis`` or ``nox -s bench``.

Beside the least that redis-py can do for the same messages, and beside what agent frameworks have of their own, each
pair measured in turns in one run, against one server of this machine.

===========  =========================================================================================
module       what it holds
===========  =========================================================================================
`raw`        the yardsticks: a script that pushes and trims, and one connection for each call
`peers`      the frameworks' own histories
`rows`       what is measured, each with the bar that `tests/redis/test_speed.py` holds it to
===========  =========================================================================================

The server is the one of ``CHATKEEP_BENCH_REDIS_URL``, or one that is started here. What is stored there expires.
"""
