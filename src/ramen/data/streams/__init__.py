"""Streams: the images of a data set in the order of a protocol, determined by a seed."""

from ramen.data.streams.orders import ALIASES, PROTOCOLS, find_protocol
from ramen.data.streams.stream import Stream, make_stream

__all__ = ["ALIASES", "PROTOCOLS", "Stream", "find_protocol", "make_stream"]
