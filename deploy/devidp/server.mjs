// The demo identity provider of `telltaled dev`:
//   node server.mjs --config FILE
// prints `ready ISSUER` on stdout once it answers, makes a new signing key on
// SIGHUP (the former ones stay published), and ends on SIGTERM, on SIGINT and
// when its parent dies.
import { createServer } from 'node:http';
import { parseArgs } from 'node:util';

import { readConfig } from './src/config.mjs';
import { Keys } from './src/keys.mjs';
import { makeProvider } from './src/provider.mjs';
import { Store } from './src/store.mjs';

// The library prints notices with console.info; stdout is for the one line.
console.info = console.error;

const { values } = parseArgs({ options: { config: { type: 'string' } } });
if (!values.config) fail('usage: node server.mjs --config FILE');

const parent = process.ppid;
const config = readConfig(values.config);
const store = new Store(config.dataDir);
const keys = await Keys.open(config.dataDir);

let answer; // of the provider with the current keys
const server = createServer({ headersTimeout: 10_000, requestTimeout: 20_000 }, (req, res) => answer(req, res));
server.on('error', (err) => fail(`listen on ${config.host} port ${config.port}: ${err.message}`));
server.listen(config.port, config.host, () => {
  config.issuer = `http://${config.host.includes(':') ? `[${config.host}]` : config.host}:${server.address().port}`;
  answer = makeProvider(config, store, keys).callback();
  process.stdout.write(`ready ${config.issuer}\n`);
});

let rotation = Promise.resolve(); // one at a time
process.on('SIGHUP', () => {
  rotation = rotation.then(async () => {
    const kid = await keys.rotate();
    answer = makeProvider(config, store, keys).callback();
    process.stdout.write(`rotated ${kid}\n`);
  }).catch((err) => console.error('new signing key:', err));
});
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => stop(0));
setInterval(() => { if (process.ppid !== parent) stop(0); }, 500).unref();

function stop(code) {
  store.flush();
  process.exit(code);
}

function fail(message) {
  console.error(`devidp: ${message}`);
  process.exit(1);
}
