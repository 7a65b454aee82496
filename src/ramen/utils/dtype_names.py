"""The names of the dtypes that encoders may have, checked without loading torch."""

DTYPES = ("float64", "float32", "float16", "bfloat16")


def check_dtype_name(dtype: object) -> str:
    """Return ``dtype`` if it is one of the names.

    >>> check_dtype_name("float16")
    'float16'
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return str(dtype)
