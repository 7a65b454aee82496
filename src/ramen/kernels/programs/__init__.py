"""The Triton programs, one module for each in ``ramen.kernels``. Importing them needs Triton."""
