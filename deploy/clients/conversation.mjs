// The conversation that every client of the tests has.

// converse asks what a person's client would ask and prints what it heard.
export async function converse(client, about) {
  const heard = { ...about, server: client.getServerVersion()?.name, capabilities: client.getServerCapabilities(), instructions: client.getInstructions()?.length };
  heard.tools = (await client.listTools()).tools.map((t) => t.name);
  heard.read = await client.callTool({ name: 'fleet_overview', arguments: {} });
  heard.refused = await client.callTool({ name: 'trace_tcp_retransmits', arguments: { duration_s: 86400, selector: { role: 'none' } } });
  heard.unknown = await client.callTool({ name: 'no_such_tool', arguments: {} }).then(() => null, (e) => ({ code: e.code, message: e.message }));
  heard.resources = (await client.listResources()).resources.map((r) => r.uri);
  heard.resource = await client.readResource({ uri: 'telltale://health' });
  heard.prompts = (await client.listPrompts()).prompts.map((p) => p.name);
  heard.prompt = await client.getPrompt({ name: 'system_triage', arguments: {} });
  heard.ping = await client.ping().then((r) => r, (e) => ({ code: e.code, message: e.message }));
  await client.close();
  console.log(JSON.stringify(heard));
}
