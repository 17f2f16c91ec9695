// read takes a request's body, up to limit bytes.
export async function read(req, limit) {
  const chunks = [];
  let size = 0;
  for await (const chunk of req) {
    size += chunk.length;
    if (size > limit) throw Object.assign(new Error('request entity too large'), { status: 413, expose: true });
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}
