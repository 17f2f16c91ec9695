// What the provider remembers: registrations, sessions, grants, tokens. In
// memory, and in state.json of the data directory a moment after each change.
// Each kind has a bound; the oldest of a full kind is forgotten.
import { readJSON, writeJSON } from './files.mjs';

const bound = 2000; // of each kind
const delay = 100; // ms from a change to the file

const now = () => Math.floor(Date.now() / 1000);

export class Store {
  constructor(dir) {
    this.file = `${dir}/state.json`;
    this.kinds = new Map(); // kind → Map of id → {payload, expires}
    for (const [kind, rows] of Object.entries(readJSON(this.file) ?? {})) this.kinds.set(kind, new Map(rows));
  }

  rows(kind) {
    if (!this.kinds.has(kind)) this.kinds.set(kind, new Map());
    return this.kinds.get(kind);
  }

  changed() {
    this.timer ??= setTimeout(() => this.flush(), delay);
  }

  // flush writes what is not yet written.
  flush() {
    if (!this.timer) return;
    clearTimeout(this.timer);
    this.timer = undefined;
    const t = now();
    const out = {};
    for (const [kind, rows] of this.kinds) {
      for (const [id, row] of rows) if (row.expires && row.expires <= t) rows.delete(id);
      out[kind] = [...rows];
    }
    writeJSON(this.file, out);
  }

  // adapter is the library's hook: the storage of one kind.
  adapter(kind) {
    const rows = this.rows(kind);
    const get = (id) => {
      const row = rows.get(id);
      return row && (!row.expires || row.expires > now()) ? row.payload : undefined;
    };
    const where = (name, value) => {
      for (const [id, row] of rows) if (row.payload[name] === value) return get(id);
      return undefined;
    };
    return {
      upsert: async (id, payload, expiresIn) => {
        rows.delete(id); // to the end: the oldest come first
        rows.set(id, { payload, expires: expiresIn ? now() + expiresIn : undefined });
        if (rows.size > bound) rows.delete(rows.keys().next().value);
        this.changed();
      },
      find: async (id) => get(id),
      findByUid: async (uid) => where('uid', uid),
      findByUserCode: async (code) => where('userCode', code),
      consume: async (id) => {
        const payload = get(id);
        if (payload) payload.consumed = now();
        this.changed();
      },
      destroy: async (id) => {
        rows.delete(id);
        this.changed();
      },
      revokeByGrantId: async (grantId) => {
        for (const [id, row] of rows) if (row.payload.grantId === grantId) rows.delete(id);
        this.changed();
      },
    };
  }
}
