"""The engine on Ray Serve: several replicas, on more than one GPU or machine, behind the same HTTP API.

Each replica has an engine (``replica``). All of them share one folder of states. Which replica
answers a stream is decided in three steps, and only the last one has to be right:

1. Every router chooses the replica by the stream's name alone (``router``). Routers that know the same
   replicas agree, without asking anybody. If a replica comes or goes, few streams change their place.
2. If a stream is held by another replica, which happens when replicas come and go, the caller asks all of
   them who holds it. That one leaves it to the others, or keeps it if it has only just got it (``backend``).
3. A replica answers a stream only while it has the lock of the stream's state. The lock is what makes two
   replicas that learn the same stream impossible, whatever routers believe. It ends with its process.
"""
