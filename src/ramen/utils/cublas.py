"""Scratch memory for products on a GPU. Imports nothing of torch, which reads these settings once."""

import os


def without_workspaces() -> None:
    """Let cuBLAS multiply without scratch memory, which it would clear before every product.

    For programs, before their first product on a GPU. What the environment says already stays as it is.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "0")
