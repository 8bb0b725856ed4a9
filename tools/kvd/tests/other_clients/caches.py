"""Caches of frameworks against a server of kvd: python caches.py HOST PORT

Needs the packages django, cachelib and redis. The prefix of keys is a hash tag, so that all keys are
in one slot: these caches read and delete several keys by one command. Prints a line for each part;
an exception ends it.
"""

import sys
import time

import cachelib
import django
from cachelib.redis import RedisCache
from django.conf import settings

HOST, PORT = sys.argv[1], int(sys.argv[2])


def django_cache():
    backend = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": f"redis://{HOST}:{PORT}",
        "KEY_PREFIX": "{django}",
    }
    settings.configure(CACHES={"default": backend})
    from django.core.cache import cache

    cache.clear()
    assert cache.get("a", "none") == "none"
    cache.set("a", {"b": [1, 2]}, timeout=100)
    assert cache.get("a") == {"b": [1, 2]}
    assert cache.add("a", 1) is False and cache.add("n", 5, timeout=100) is True
    assert cache.incr("n") == 6 and cache.decr("n", 2) == 4
    assert cache.touch("n", 200) is True and cache.touch("nosuch") is False
    cache.set_many({"x": 1, "y": "text"}, timeout=100)
    assert cache.get_many(["x", "y", "z"]) == {"x": 1, "y": "text"}
    assert cache.has_key("x") and cache.get_or_set("z", lambda: 7) == 7
    cache.set("gone", 1, timeout=0.05)
    time.sleep(1)
    assert cache.get("gone") is None
    cache.delete_many(["x", "y"])
    assert cache.delete("n") is True and cache.delete("n") is False
    cache.clear()
    assert cache.get("a") is None
    print(f"Django {django.get_version()}, its cache: passed")


def cachelib_cache():
    cache = RedisCache(HOST, PORT, key_prefix="{cachelib}")
    assert cache.set("a", [1, "b"], timeout=100) and cache.get("a") == [1, "b"]
    assert cache.add("a", 2) is False and cache.has("a")
    assert cache.set_many({"x": 1, "y": 2}) and cache.get_many("x", "y", "z") == [1, 2, None]
    assert cache.inc("n", 3) == 3 and cache.dec("n") == 2
    assert cache.delete_many("x", "y") and cache.delete("a") and not cache.has("a")
    assert cache.clear() and not cache.has("n")
    print(f"cachelib {cachelib.__version__ if hasattr(cachelib, '__version__') else ''}: passed")


django_cache()
cachelib_cache()
