import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

import { Store } from '../src/store.mjs';

function fresh(t) {
  const dir = mkdtempSync(join(tmpdir(), 'devidp-store-'));
  t.after(() => rmSync(dir, { recursive: true }));
  return dir;
}

test('each kind is bounded, and the oldest go first', async (t) => {
  const store = new Store(fresh(t));
  const clients = store.adapter('Client');
  const tokens = store.adapter('AccessToken');
  await clients.upsert('first', { n: 0 });
  for (let i = 0; i < 2000; i += 1) await tokens.upsert(`t${i}`, { i }, 3600);
  for (let i = 0; i < 1999; i += 1) await clients.upsert(`c${i}`, { i });
  assert.deepEqual(await clients.find('first'), { n: 0 }, 'tokens push no client out');
  await clients.upsert('one more', {});
  assert.equal(await clients.find('first'), undefined);
  store.flush();
});

test('what expires is not found and not kept', async (t) => {
  const dir = fresh(t);
  const store = new Store(dir);
  const tokens = store.adapter('AccessToken');
  await tokens.upsert('gone', { grantId: 'g' }, -1);
  await tokens.upsert('kept', { grantId: 'g' }, 60);
  await tokens.upsert('other', { grantId: 'h' }, 60);
  assert.equal(await tokens.find('gone'), undefined);
  store.flush();
  assert.deepEqual(JSON.parse(readFileSync(join(dir, 'state.json'))).AccessToken.map(([id]) => id), ['kept', 'other']);

  const again = new Store(dir);
  await again.adapter('AccessToken').revokeByGrantId('g');
  assert.equal(await again.adapter('AccessToken').find('kept'), undefined);
  assert.deepEqual(await again.adapter('AccessToken').find('other'), { grantId: 'h' });
  again.flush();
});
