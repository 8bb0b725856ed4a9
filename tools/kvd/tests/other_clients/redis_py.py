"""redis-py and coredis against a server of kvd: python redis_py.py HOST PORT

Needs the packages redis and coredis. Prints a line for each part; an exception ends it.
"""

import asyncio
import sys
import time

import coredis
import redis
from redis.cluster import RedisCluster

HOST, PORT = sys.argv[1], int(sys.argv[2])


def plain(protocol):
    client = redis.Redis(HOST, PORT, protocol=protocol, decode_responses=True)
    for key in ("py", "{py}n"):
        client.delete(key)
    assert client.set("py", "1", ex=100) and client.get("py") == "1" and 99 <= client.ttl("py") <= 100
    assert client.set("py", "x", nx=True) is None
    assert client.set("py", "5", xx=True, get=True, keepttl=True) == "1"
    assert client.incr("py") == 6 and client.append("py", "7") == 2 and client.getdel("py") == "67"
    with client.pipeline() as pipe:
        assert pipe.set("{py}n", 1).incr("{py}n").get("{py}n").execute() == [True, 2, "2"]
    with client.pipeline() as pipe:
        pipe.watch("{py}n")
        client.set("{py}n", 9)
        pipe.multi()
        pipe.set("{py}n", 3)
        try:
            pipe.execute()
            raise AssertionError("a watched key was written")
        except redis.WatchError:
            pass
    try:
        client.incrby("{py}n", "x")
        raise AssertionError("x is no number")
    except redis.ResponseError as error:
        assert str(error) == "value is not an integer or out of range"
    assert client.execute_command("KVD.CAS", "{py}n", "IF", "9", "SET", "10") == 1
    assert client.info("server")["redis_mode"] == "cluster"
    assert client.config_get("maxclients")
    assert client.execute_command("SET", "py", "b", "IFEQ", "a") is None
    assert client.set("py", "a") and client.execute_command("SET", "py", "b", "IFEQ", "a") in (True, "OK")
    assert client.execute_command("DELIFEQ", "py", "b") == 1
    client.setbit("py", 3, 1)
    assert client.bitcount("py") == 1 and client.bitfield("py").get("u4", 0).execute() == [1]
    assert client.incrbyfloat("{py}n", 0.5) == 10.5 and client.getrange("{py}n", 0, 1) == "10"
    assert client.rename("{py}n", "{py}m") and client.copy("{py}m", "{py}n") and client.touch("{py}n") == 1
    assert client.expire("{py}n", 100, nx=True) and client.expiretime("{py}n") > 0 and client.getex("{py}n", persist=True)
    assert "{py}n" in client.keys("{py}*") and client.randomkey() and client.object("encoding", "{py}n")
    assert client.role()[0] == "master" and client.time()[0] > 0 and client.memory_usage("{py}n") > 0
    me = client.client_id()
    assert any(int(it["id"]) == me for it in client.client_list()) and client.client_info()["id"] == me
    assert client.command_count() > 80 and "get" in client.command() and client.slowlog_len() >= 0
    print(f"redis-py {redis.__version__}, RESP{protocol}: passed")


def unordered_pipeline():
    client = redis.Redis(HOST, PORT)
    pipe = client.pipeline(transaction=False)
    for i in range(5000):
        pipe.set(f"pipe{i}", i)
    assert all(pipe.execute())
    print("redis-py, pipeline of 5000: passed")


def cluster():
    client = RedisCluster(HOST, PORT, decode_responses=True)
    for i in range(500):
        assert client.set(f"cluster{i}", i)
    assert client.get("cluster77") == "77"
    assert client.mget_nonatomic("cluster1", "cluster2") == ["1", "2"]
    pipe = client.pipeline()
    for i in range(50):
        pipe.get(f"cluster{i}")
    assert pipe.execute() == [str(i) for i in range(50)]
    assert len(set(client.scan_iter(match="cluster*"))) == 500
    assert client.delete(*[f"cluster{i}" for i in range(500)]) == 500
    print(f"redis-py {redis.__version__}, RedisCluster over {len(client.get_nodes())} nodes: passed")


def replicas():
    """Reads of a cluster from the nodes that follow, where there are some."""
    client = RedisCluster(HOST, PORT, decode_responses=True, read_from_replicas=True)
    followers = client.get_replicas()
    if not followers:
        print("redis-py, read_from_replicas: skipped, there is one node")
        return
    assert client.set("replicas", "1")
    deadline = time.time() + 10
    while {client.get("replicas") for _ in range(len(followers) + 1)} != {"1"}:
        assert time.time() < deadline, "followers have what was written long ago"
    reads = lambda node: node.redis_connection.info("commandstats").get("cmdstat_get", {}).get("calls", 0)
    before = sum(map(reads, followers))
    for _ in range(100):
        assert client.get("replicas") == "1"
    assert sum(map(reads, followers)) > before + 30, "followers answer"
    print(f"redis-py, read_from_replicas with {len(followers)} followers: passed")


async def other():
    async with coredis.Redis(HOST, PORT, decode_responses=True) as client:
        assert await client.set("co", "1") and await client.incr("co") == 2
    async with coredis.RedisCluster(HOST, PORT, decode_responses=True) as client:
        assert await client.set("co", "3") and await client.get("co") == "3"
    print(f"coredis {coredis.__version__}, plain and cluster: passed")


if "cluster" not in sys.argv[3:]:
    plain(2)
    plain(3)
    unordered_pipeline()
cluster()
replicas()
if "cluster" not in sys.argv[3:]:
    asyncio.run(other())
