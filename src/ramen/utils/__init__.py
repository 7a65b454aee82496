"""Small helpers of all packages: checks, devices, numerics, files, processes, commands."""
