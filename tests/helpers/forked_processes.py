"""Processes that start quickly: they are forked from one that has imported what takes long.

That process has one thread and no open files of ours, unlike the one that runs the tests.
"""

import multiprocessing

import open_clip  # noqa: F401  # for all that are forked

import ramen.classify.run
import ramen.cli
import ramen.experiments.workers
import ramen.serve.serve_run  # noqa: F401

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])
