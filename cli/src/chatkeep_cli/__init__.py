"""The ``chatkeep`` command: it parses and prints; what it shows is done by chatkeep and its backends.

``main`` has the commands and their help, one module each does the work: ``demo``, ``backends``, ``ping``, ``sessions``,
``show``, ``add``. ``failures`` has the exit codes, ``text`` and ``screen`` what may reach a terminal.
"""
