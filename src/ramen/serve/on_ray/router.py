"""Which replica a request goes to."""

from hashlib import blake2b

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


def preference(stream: str, replica: str) -> bytes:
    """How much a stream prefers a replica: it goes to the one with the highest value.

    Each stream has an order of its own of all replicas. So streams are spread evenly, only streams of a
    replica that has gone change their place, and a new one takes over a fair share.
    """
    return blake2b(f"{stream}\n{replica}".encode(), digest_size=8).digest()


class StreamRouter(RequestRouter):
    """Sends the requests of a stream to one replica.

    The stream is the request's ``multiplexed_model_id``. The first argument, if there is one, is the replica
    that the caller prefers; it is ignored if there is no such replica.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica of the stream; all of them for a request without a stream."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        stream = pending_request.metadata.multiplexed_model_id
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if not stream or not by_name:
            return [candidate_replicas]
        preferred = pending_request.args[0] if pending_request.args else None
        if preferred not in by_name:
            preferred = max(by_name, key=lambda replica: preference(stream, replica))
        return [[by_name[preferred]]]
