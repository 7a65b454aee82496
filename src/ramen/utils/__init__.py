"""Small, stateless helpers: checks, devices, numerics, bytes, files, random draws."""
