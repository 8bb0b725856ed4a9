"""Loads what `kvd export --format jsonl` has written into the raw key-value API of TiKV.

    pip install tikv-python
    kvd export --from DIR --format jsonl | python load_tikv.py PD-HOST:2379

TiKV has no tool that loads keys and values from a text file (tikv/tikv issue 9778): its backups are
restored from its own tables. Keys that expire need `storage.enable-ttl = true`, which is decided
when a TiKV cluster is made. TiKV refuses keys longer than `storage.max-key-size` (4 or 8 KiB) and
requests longer than `raftstore.raft-entry-max-size` (8 MiB), unless its settings allow more.

Stops at the first error. It may be run again: every key is set to its value.
"""

import base64
import json
import sys
import time

import tikv

MAX_KEYS = 512
MAX_BYTES = 1 << 20


def main(endpoints):
    loaded = expired = size = 0
    batch = {}
    with tikv.RawClient(endpoints.split(","), timeout=60) as client:

        def flush():
            nonlocal loaded, size
            if not batch:
                return
            try:
                client.put_many(batch)
            except tikv.TiKVError as error:
                sys.exit(f"{min(batch)!r} to {max(batch)!r}: {error}; {loaded} keys were loaded before")
            loaded += len(batch)
            batch.clear()
            size = 0

        for line in sys.stdin:
            entry = json.loads(line)
            key, value = (base64.b64decode(entry[name]) for name in ("key", "value"))
            if entry["expires_ms"] is None:
                batch[key] = value
                size += len(key) + len(value)
                if len(batch) >= MAX_KEYS or size >= MAX_BYTES:
                    flush()
                continue
            left = entry["expires_ms"] / 1000 - time.time()
            if left <= 0:
                expired += 1
                continue
            try:
                client.put(key, value, ttl=left)
            except tikv.TiKVError as error:
                sys.exit(f"{key!r}: {error}; {loaded} keys were loaded before")
            loaded += 1
        flush()
    print(f"{loaded} keys loaded; {expired} have expired meanwhile.", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: load_tikv.py PD-HOST:PORT[,PD-HOST:PORT...]")
    main(sys.argv[1])
