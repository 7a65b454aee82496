"""HTTP in processes of its own, beside the one that computes.

Reading requests and writing responses needs Python's lock, and so does the thread that feeds a GPU. Each
front is a process with the whole HTTP application; what it asks the engine goes through a pair of sockets,
and images through memory that both see.
"""
