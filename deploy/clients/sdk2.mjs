// One conversation with the TypeScript SDK 2.x, told as JSON on standard
// output: node sdk2.mjs URL TOKEN legacy|auto|VERSION
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { converse } from './conversation.mjs';

const [url, token, era] = process.argv.slice(2);
const mode = era === 'legacy' || era === 'auto' ? era : { pin: era };
const client = new Client({ name: 'telltale-test', version: '1.0.0' }, { versionNegotiation: { mode } });
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: `Bearer ${token}` } } }));
const news = {};
if (client.getProtocolEra() === 'modern') {
  const stream = await client.listen({ resourceSubscriptions: ['telltale://events/recent', 'telltale://health'] });
  news.listens = stream.honoredFilter;
  await stream.close();
  news.closed = await stream.closed;
}
await converse(client, { version: client.getNegotiatedProtocolVersion(), era: client.getProtocolEra(), ...news });
