// ioredis, node-redis and connect-redis against a server of kvd: node node.js HOST PORT
// Needs the packages ioredis, redis, connect-redis and express-session. Prints a line for each part; an exception ends it.
const assert = require('node:assert');
const Redis = require('ioredis');
const { createClient, createCluster } = require('redis');

const [host, port] = [process.argv[2], Number(process.argv[3])];
const url = `redis://${host}:${port}`;

async function ioredis() {
  const plain = new Redis({ host, port });
  assert.equal(await plain.set('io', '1', 'EX', 100), 'OK');
  assert.deepEqual(await plain.multi().incr('io').get('io').exec(), [[null, 2], [null, '2']]);
  const pipeline = plain.pipeline();
  for (let i = 0; i < 1000; i++) pipeline.set(`io${i}`, i);
  assert.equal((await pipeline.exec()).length, 1000);
  let cursor = '0';
  const found = new Set();
  do {
    const [next, keys] = await plain.scan(cursor, 'MATCH', 'io*', 'COUNT', 100);
    keys.forEach((key) => found.add(key));
    cursor = next;
  } while (cursor !== '0');
  assert.equal(found.size, 1001);
  plain.disconnect();
  const cluster = new Redis.Cluster([{ host, port }]);
  assert.equal(await cluster.set('foo', 'bar'), 'OK');
  assert.equal(await cluster.get('foo'), 'bar');
  await scaledReads();
  cluster.disconnect();
  console.log('ioredis, plain and cluster: passed');
}

// Reads from the nodes that follow, where there are some.
async function scaledReads() {
  const cluster = new Redis.Cluster([{ host, port }], { scaleReads: 'all' });
  await cluster.set('scaled', '1');
  await new Promise((resolve) => setTimeout(resolve, 500));
  for (let i = 0; i < 100; i++) assert.equal(await cluster.get('scaled'), '1');
  const followers = cluster.nodes('slave').length;
  cluster.disconnect();
  console.log(`ioredis, scaleReads with ${followers} followers: passed`);
}

// Sessions of Express. The prefix is a hash tag: the store reads all of them by one MGET.
async function connectRedis() {
  const { RedisStore } = require('connect-redis');
  const client = createClient({ url });
  await client.connect();
  const store = new RedisStore({ client, prefix: '{sessions}:' });
  await store.clear();
  const session = { user: 'ann', cookie: { originalMaxAge: 60000, expires: new Date(Date.now() + 60000) } };
  await store.set('one', session);
  assert.equal((await store.get('one')).user, 'ann');
  await store.touch('one', session);
  assert.equal(await client.ttl('{sessions}:one'), 60);
  assert.equal(await store.length(), 1);
  assert.deepEqual((await store.all()).map((it) => it.id), ['one']);
  await store.destroy('one');
  assert.deepEqual(await store.ids(), []);
  client.destroy();
  console.log('connect-redis: passed');
}

async function nodeRedis() {
  for (const RESP of [2, 3]) {
    const client = createClient({ url, RESP });
    await client.connect();
    await client.set('no', '1', { EX: 10 });
    assert.equal(await client.get('no'), '1');
    assert.deepEqual(await client.mGet(['{a}x', '{a}y']), [null, null]);
    client.destroy();
  }
  const cluster = createCluster({ rootNodes: [{ url }] });
  await cluster.connect();
  await cluster.set('q', 'w');
  assert.equal(await cluster.get('q'), 'w');
  cluster.destroy();
  console.log('node-redis, RESP2, RESP3 and cluster: passed');
}

ioredis().then(nodeRedis).then(connectRedis).catch((error) => { console.error(error); process.exit(1); });
