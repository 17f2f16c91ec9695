// One conversation with the TypeScript SDK 1.x, told as JSON on standard
// output: node sdk1.mjs URL TOKEN
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { converse } from './conversation.mjs';

const [url, token] = process.argv.slice(2);
const client = new Client({ name: 'telltale-test', version: '1.0.0' });
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: `Bearer ${token}` } } }));
await converse(client, { version: client.transport.protocolVersion });
