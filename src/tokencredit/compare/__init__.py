"""Does one strategy help more than another? Runs in pairs, their statistics, and what those show, in words.

- ``runs.py``: which runs there are, where they lie, and what is left to do for each.
- ``launch.py``: processes for what is left, here or on a Ray cluster.
- ``collect.py``: what the runs have left behind, in memory.
- ``statistics.py``: intervals, tests, power. Plain numbers in, plain numbers out.
- ``summary.py``: the comparison of all runs, as ``compare.json`` holds it; ``verdict.py`` says it in words.
- ``tables.py``, ``page.py``: how it is shown.
"""
