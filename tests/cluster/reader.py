"""Ranks that read by HTTP alone, in a layout that no trainer asks for: what bytes as they are spare, against fp32 tensors.

reader.py HOST[:PORT] LAYOUT STEP_MS SECONDS

Four ranks in step, four samples of each in a step, eight micro batches of each asked for or in hand. Prints samples, seconds, bytes, and the
share of the time that ranks waited, as JSON.
"""

import collections
import concurrent.futures
import http.client
import json
import sys
import threading
import time

address, layout, step, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1000, float(sys.argv[4])
RANKS, MICRO_BATCH, WINDOW = 4, 4, 8
open_connections = threading.local()
begin = time.monotonic()
end = begin + seconds
steps, waited, size, last = 0, 0.0, 0, begin


def fetch(position):
    """Bytes of a range; None when there is no time left."""
    path = f"/v1/streams/train/batches/{position}-{position + MICRO_BATCH}?layout={layout}"
    while (left := end - time.monotonic()) > 0:
        connection = getattr(open_connections, "one", None)
        if connection is None:
            connection = open_connections.one = http.client.HTTPConnection(address if ":" in address else f"{address}:8470")
        connection.timeout = left
        if connection.sock is not None:
            connection.sock.settimeout(left)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        except TimeoutError:
            connection.close()
            continue
        except (ConnectionError, http.client.HTTPException):
            # Closed meanwhile; the same range is asked for on another one.
            connection.close()
            time.sleep(0.01)
            continue
        if answer.status != 200:
            raise SystemExit(f"{address} answers {answer.status} to {position}: {body[:300]!r}")
        return len(body)
    return None


with concurrent.futures.ThreadPoolExecutor(RANKS * WINDOW) as pool:
    # The window of all ranks together, in the order of need; they make steps together.
    asked = collections.deque(pool.submit(fetch, index * MICRO_BATCH) for index in range(RANKS * WINDOW))
    following = RANKS * WINDOW
    while True:
        since = time.monotonic()
        got = [asked.popleft().result() for _ in range(RANKS)]
        now = time.monotonic()
        # The first step waits for a start that is none of the layout's.
        if steps:
            waited += max(0.0, min(now, end) - since)
        else:
            begin = now
        if None in got or now >= end:
            break
        steps, size, last = steps + 1, size + sum(got), now
        for _ in range(RANKS):
            asked.append(pool.submit(fetch, following * MICRO_BATCH))
            following += 1
        time.sleep(min(step, max(0.0, end - time.monotonic())))

samples = steps * RANKS * MICRO_BATCH
print(json.dumps({
    "samples": samples, "seconds": round(last - begin, 2), "bytes": size,
    "samples_a_second": round(max(samples - RANKS * MICRO_BATCH, 0) / max(last - begin, 1e-9), 2),
    "wait_ratio": round(waited / max(end - begin, 1e-9), 3),
}))
