"""A test for every documented name and argument of the front end, and the page that lists them.

* ``signatures.txt``: names, arguments and defaults as the documented pages show them, and nothing
  else of those pages; ``python -m tests.api.read_pages FOLDER`` makes it from them.
* ``names.py``: the rows that follow from that file, by page.
* ``covers.py``: the decorator ``@covers("samba.session.run")``, put on a test that would fail if
  that name misbehaved, here or anywhere else under ``tests/``.
* ``python -m tests.api`` writes ``docs/api_coverage.md``: each name with its tests, found by
  reading the decorators; no test runs and nothing is imported for it.
* ``test_coverage.py`` fails if that page is out of date or a decorator names an unknown name.

To add a test: write it, decorate it, run ``python -m tests.api``, commit the page with it.
"""
